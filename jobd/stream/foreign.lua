-- The messages that workers other than jobd's own have in hand, or have acknowledged since anyone looked: all of them,
-- however many messages jobd's own consumers have in hand. Reads only.
--
-- KEYS[1]  a job stream
-- ARGV[1]  the group, ARGV[2] the prefix of jobd's own consumers, ARGV[3] how many messages are asked for at once
-- ARGV[4]  and so on: messages that are known already
-- returns  { { message id, consumer, job_id, enqueue_id }, ... }; consumer is "" for an acknowledged message. jobd deletes
--          what it acknowledges, so a message that is still there, delivered and not pending, was settled by someone else.

local stream, group, prefix, page = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local known = {}
for n = 4, #ARGV do
    known[ARGV[n]] = true
end

local function as_table(pairs)
    local fields = {}
    for n = 1, #pairs, 2 do
        fields[pairs[n]] = pairs[n + 1]
    end
    return fields
end

local last = nil
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local fields = as_table(info)
    if fields['name'] == group then
        last = fields['last-delivered-id']
    end
end
if not last or last == '0-0' then
    return {}
end

local found = {}

local function add(entry, consumer)
    if entry and not known[entry[1]] then
        local fields = as_table(entry[2])
        local job_id, enqueue_id = fields['job_id'] or '', fields['enqueue_id'] or '1'
        found[#found + 1] = { entry[1], consumer, string.sub(job_id, 1, 64), string.sub(enqueue_id, 1, 20) }
    end
end

-- Through all that is pending, in order. What lies between two of them was acknowledged.
local before, from, pending = '-', '-', nil
repeat
    pending = redis.call('XPENDING', stream, group, from, '+', page)
    for _, entry in ipairs(pending) do
        local id, consumer = entry[1], entry[2]
        for _, acknowledged in ipairs(redis.call('XRANGE', stream, before, '(' .. id)) do
            add(acknowledged, '')
        end
        if string.sub(consumer, 1, #prefix) ~= prefix and not known[id] then
            add(redis.call('XRANGE', stream, id, id)[1], consumer)
        end
        before, from = '(' .. id, '(' .. id
    end
until #pending < page
for _, acknowledged in ipairs(redis.call('XRANGE', stream, before, last)) do
    add(acknowledged, '')
end
return found

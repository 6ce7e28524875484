-- The messages that raw workers have in hand (pending), or have acknowledged since the last check: all of them, however many
-- messages jobd's own consumers have in hand. Reads only.
--
-- KEYS[1]  a job stream
-- ARGV[1]  how many messages are asked for at once
-- ARGV[2]  and so on: messages that are known already
-- returns  { { message id, consumer, job_id, enqueue_id }, ... }; consumer is "" for an acknowledged message. jobd deletes
--          what it acknowledges, so a message that is still there, delivered and not pending, was settled by someone else.

local stream, page = KEYS[1], tonumber(ARGV[1])
local known = {}
for n = 2, #ARGV do
    known[ARGV[n]] = true
end

local last = last_delivered(stream)
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
    pending = redis.call('XPENDING', stream, GROUP, from, '+', page)
    for _, entry in ipairs(pending) do
        local id, consumer = entry[1], entry[2]
        for _, acknowledged in ipairs(redis.call('XRANGE', stream, before, '(' .. id)) do
            add(acknowledged, '')
        end
        if not is_own(consumer) and not known[id] then
            add(redis.call('XRANGE', stream, id, id)[1], consumer)
        end
        before, from = '(' .. id, '(' .. id
    end
until #pending < page
for _, acknowledged in ipairs(redis.call('XRANGE', stream, before, last)) do
    add(acknowledged, '')
end
return found

-- The messages that workers other than jobd's own have in hand, or have acknowledged since anyone looked. Reads only.
--
-- KEYS[1]  a job stream
-- ARGV[1]  the group, ARGV[2] the prefix of jobd's own consumers, ARGV[3] how many messages to look at
-- returns  { { message id, consumer, job_id, enqueue_id }, ... }; consumer is "" for an acknowledged message. jobd deletes
--          what it acknowledges, so a message that is still there, delivered and not pending, was settled by someone else.

local stream, group, prefix, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local last = nil
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local fields = {}
    for n = 1, #info, 2 do
        fields[info[n]] = info[n + 1]
    end
    if fields['name'] == group then
        last = fields['last-delivered-id']
    end
end
if not last or last == '0-0' then
    return {}
end

local holder = {}
for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', count)) do
    holder[entry[1]] = entry[2]
end

local found = {}
for _, entry in ipairs(redis.call('XRANGE', stream, '-', last, 'COUNT', count)) do
    local consumer = holder[entry[1]] or ''
    if string.sub(consumer, 1, #prefix) ~= prefix then
        local job_id, enqueue_id = '', '1'
        for n = 1, #entry[2], 2 do
            if entry[2][n] == 'job_id' then job_id = entry[2][n + 1] end
            if entry[2][n] == 'enqueue_id' then enqueue_id = entry[2][n + 1] end
        end
        found[#found + 1] = { entry[1], consumer, string.sub(job_id, 1, 64), string.sub(enqueue_id, 1, 20) }
    end
end
return found

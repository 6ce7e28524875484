-- Closes a job stream, before its queue goes to the mode `direct`: project.lua takes no more offers of the modes before, and
-- what nobody has read is taken back.
--
-- KEYS[1]  jobd:epoch
-- KEYS[2]  jobd:modes
-- KEYS[3]  a job stream
-- ARGV[1]  the epoch that Postgres knows; if Redis has another, nothing is done and the answer is the one word EPOCH; "": none
--          has begun yet
-- ARGV[2]  the queue
-- ARGV[3]  the number of the mode to come
-- ARGV[4]  "", or ms: if a worker that is not jobd's has messages in hand or was active within this time, nothing is done and
--          the answer is the one word READ
-- ARGV[5]  and so on: messages in the hands of jobd's own consumers that are taken back as well
-- returns  { { message id, 1 if it is jobd's own, job_id, enqueue_id }, ... }: the messages that were read and are still
--          there. Acknowledged ones among them were worked on by somebody who is not jobd: jobd deletes what it acknowledges.

local stream = KEYS[3]
if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 'EPOCH'
end

local last = last_delivered(stream)
local has_raw_workers = false
for _, info in ipairs(last and redis.call('XINFO', 'CONSUMERS', stream, GROUP) or {}) do
    local fields = as_table(info)
    if not is_own(fields['name']) then
        has_raw_workers = true
        if ARGV[4] ~= '' and (fields['pending'] > 0 or fields['idle'] <= tonumber(ARGV[4])) then
            return 'READ'
        end
    end
end

if tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or '0') < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
if not last then
    return {} -- no stream, or nobody to read it
end

local useless = {}
for n = 5, #ARGV do
    useless[ARGV[n]] = true
end
local pending = {}
local number = redis.call('XPENDING', stream, GROUP)[1]
for _, entry in ipairs(number > 0 and redis.call('XPENDING', stream, GROUP, '-', '+', number) or {}) do
    pending[entry[1]] = entry[2]
end

local found = {}
for _, entry in ipairs(redis.call('XRANGE', stream, '-', last)) do
    local consumer = pending[entry[1]]
    local own = consumer and is_own(consumer) or not consumer and not has_raw_workers
    if own and (useless[entry[1]] or not consumer) then
        take_back(stream, entry)
    else
        local fields = as_table(entry[2])
        local job_id, enqueue_id = fields['job_id'] or '', fields['enqueue_id'] or '1'
        found[#found + 1] = { entry[1], own and 1 or 0, string.sub(job_id, 1, 64), string.sub(enqueue_id, 1, 20) }
    end
end
for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. last, '+')) do
    take_back(stream, entry)
end
return found

-- Tells Redis what Postgres has committed: hashes, events, TTLs, acknowledgements and new messages, a whole batch in one
-- call. Sent twice, or by two relays, it changes nothing the second time.
--
-- KEYS[1]  jobd:epoch
-- KEYS[2]  jobs:dlq
-- ARGV[1]  the epoch that Postgres knows; if Redis has another (it was flushed, restarted, or is an old copy) nothing is
--          done and the answer is the one word EPOCH
-- ARGV[2]  msgpack: changes, each { job_id, version, whole, fields, ttl_s, event_id, event, ack_stream, ack_id, dead }
--            fields    name, value, name, value ... of the hash
--            whole     the fields are the whole hash, so it may be made; else it must be there
--            event_id  "{attempt}-*": a cursor that grows with the attempts and does not ask Redis' clock
--            event     { type, ts, step, data }; no type: no event
--            ack_*     the message that this settles, or ""
--            dead      1: announced in jobs:dlq; 2: applied whatever the version, to put right what a zombie wrote
-- ARGV[3]  msgpack: offers, each { job_id, stream, task, payload, enqueue_id }
-- returns  { missing ids }: jobs whose hash was not there to be changed
--
-- A change is applied only if its version is newer than the hash's. A key of the wrong type in the way is moved aside.

local epoch = ARGV[1]
if redis.call('GET', KEYS[1]) ~= epoch then
    return 'EPOCH'
end

local function unobstructed(key, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        if string.find(answer.err, 'WRONGTYPE', 1, true) then
            redis.call('RENAME', key, 'jobd:aside:' .. key)
            redis.call('EXPIRE', 'jobd:aside:' .. key, 86400)
            return redis.call(...)
        end
        return redis.error_reply(answer.err)
    end
    return answer
end

local function add_event(key, id, event)
    local answer = redis.pcall(
        'XADD', key, id, 'type', event[1], 'ts', event[2], 'step', event[3], 'data', event[4]
    )
    if type(answer) == 'table' and answer.err then
        if string.find(answer.err, 'WRONGTYPE', 1, true) then
            redis.call('DEL', key)
        elseif string.find(answer.err, 'equal or smaller', 1, true) then
            id = '*' -- a raw worker wrote here under ids of its own, which are larger
        end
        redis.call('XADD', key, id, 'type', event[1], 'ts', event[2], 'step', event[3], 'data', event[4])
    end
end

local ENDS = { done = true, error = true, canceled = true }
local missing = {}

for _, change in ipairs(cmsgpack.unpack(ARGV[2])) do
    local id, version, whole, fields, ttl_s, event_id, event, ack_stream, ack_id, dead = unpack(change)
    local key = 'job:' .. id
    local known = unobstructed(key, 'HMGET', key, 'jobd_version', 'status')
    local seen, status = known[1], known[2]
    if not seen and not whole then
        missing[#missing + 1] = id
    elseif not seen or tonumber(seen) < version or dead == 2 then
        redis.call('HSET', key, 'jobd_version', version, unpack(fields))
        redis.call('EXPIRE', key, ttl_s)
        -- A raw worker has written its end itself, event and all; there is only one end.
        if event[1] ~= '' and not (ENDS[event[1]] and status == event[1]) then
            add_event(key .. ':events', event_id, event)
        end
        redis.call('EXPIRE', key .. ':events', ttl_s)
        if dead == 1 then
            redis.call('XADD', KEYS[2], '*', 'job_id', id, 'ts', event[2], 'data', event[4])
        end
    end
    if ack_id ~= '' then
        redis.pcall('XACK', ack_stream, 'workers', ack_id)
        redis.pcall('XDEL', ack_stream, ack_id)
    end
end

for _, offer in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, stream, task, payload, enqueue_id = unpack(offer)
    local key, mark = 'job:' .. id, epoch .. '/' .. enqueue_id
    if unobstructed(key, 'HGET', key, 'jobd_offered') ~= mark then
        unobstructed(
            stream, 'XADD', stream, '*', 'job_id', id, 'task', task, 'payload', payload, 'enqueue_id', enqueue_id
        )
        if redis.call('EXISTS', key) == 1 then
            redis.call('HSET', key, 'jobd_offered', mark)
        end
    end
end

return { missing }

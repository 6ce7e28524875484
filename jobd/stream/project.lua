-- Tells Redis what Postgres has committed: hashes, events, TTLs, acknowledgements and new messages, a whole batch in one
-- call. Sent twice, or by two relays, it changes nothing the second time.
--
-- KEYS[1]  jobd:epoch
-- KEYS[2]  jobs:dlq
-- KEYS[3]  jobd:told, the channel on which the nodes hear that there is news
-- ARGV[1]  the epoch that Postgres knows; if Redis has another (it was flushed, restarted, or is an old copy) nothing is
--          done and the answer is the one word EPOCH
-- ARGV[2]  msgpack: changes, each { job_id, version, mode, fields, ttl_s, events, acks, dead, left }
--            mode      0  the hash must be there
--                      1  applied whatever the version, to put right what a zombie wrote
--                      2  new: the fields are the whole hash
--                      3  whole hash and whole history, in place of what is left of them
--                      4  events only
--            fields    name, value, name, value ... of the hash
--            events    each { attempt, n, type, ts, step, data }; attempt and n are the cursor, which only grows
--            acks      the messages that this settles, each { stream, id }
--            dead      the job is announced in jobs:dlq
--            left      the stream in which the job is no longer to be had, or "": its message is deleted, unless a raw
--                      worker has it in hand, who is then seen to work on a job that it has lost
-- ARGV[3]  msgpack: offers, each { job_id, stream, task, payload, enqueue_id, version, created_ts, ttl_s }; the last two
--          say that nothing has happened to the job yet, so that its hash can be made if it has none, else they are ""
-- ARGV[4]  what to say on the channel, or ""
-- returns  { missing, unoffered }: jobs whose hash was not there to be changed, and jobs that have none to be offered with
--
-- A hash that was written in another epoch (`jobd_epoch`) counts as not there: a Postgres that went back in time, by a restore
-- or a failover that lost commits, is right about a job though its version is lower.
-- A change is applied only if its version is newer than the hash's, an event only if its cursor is larger than the last
-- one's (`jobd_event`). `jobd_event_bytes` counts them: of a job that tells a lot Redis keeps the last ones. A key of the wrong type in the way is moved aside.

local epoch = ARGV[1]
if redis.call('GET', KEYS[1]) ~= epoch then
    return 'EPOCH'
end

local TAG = string.sub(redis.sha1hex(epoch), 1, 8) -- the epoch, in every hash, in short
local ENDS = { done = true, error = true, canceled = true }
local FORCED, NEW, WHOLE, EVENTS = 1, 2, 3, 4
local MOST_ARGUMENTS = 1000
-- Bytes of events at which a job's stream is shortened, and to which. Postgres has all of them.
local MOST_EVENT_BYTES, KEPT_EVENT_BYTES = 1048576, 262144

local function unobstructed(key, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        if string.find(answer.err, 'WRONGTYPE', 1, true) then
            redis.call('RENAME', key, ASIDE .. key)
            redis.call('EXPIRE', ASIDE .. key, 86400)
            return redis.call(...)
        end
        error(answer.err)
    end
    return answer
end

local function add_event(key, event)
    local id = event[1] .. '-' .. event[2]
    local answer = redis.pcall(
        'XADD', key, id, 'type', event[3], 'ts', event[4], 'step', event[5], 'data', event[6]
    )
    if type(answer) == 'table' and answer.err then
        if string.find(answer.err, 'WRONGTYPE', 1, true) then
            redis.call('DEL', key)
        elseif string.find(answer.err, 'equal or smaller', 1, true) then
            id = '*' -- a raw worker wrote here under ids of its own, which are larger
        else
            error(answer.err)
        end
        redis.call('XADD', key, id, 'type', event[3], 'ts', event[4], 'step', event[5], 'data', event[6])
    end
end

-- Adds what is new; the last cursor as text, or nil if nothing was, and how many bytes.
local function add_events(key, events, last, status)
    local attempt, n = -1, -1
    if last then
        local a, b = string.match(last, '^(%d+)-(%d+)$')
        attempt, n = tonumber(a) or -1, tonumber(b) or -1
    end
    local newest, bytes = nil, 0
    for _, event in ipairs(events) do
        if event[1] > attempt or (event[1] == attempt and event[2] > n) then
            -- A raw worker has written its end itself, event and all; there is only one end.
            if not (ENDS[event[3]] and status == event[3]) then
                add_event(key, event)
                bytes = bytes + ENTRY_BYTES + #event[5] + #event[6]
            end
            newest = event[1] .. '-' .. event[2]
        end
    end
    return newest, bytes
end

-- By stream, the messages to be acknowledged; all of them at once, at the end.
local settled = {}

local function settle()
    for stream, ids in pairs(settled) do
        for first = 1, #ids, MOST_ARGUMENTS do
            local last = math.min(first + MOST_ARGUMENTS - 1, #ids)
            redis.pcall('XACK', stream, GROUP, unpack(ids, first, last))
            redis.pcall('XDEL', stream, unpack(ids, first, last))
        end
    end
end

-- By stream, by job, the message that was offered; false if that is not known.
local withdrawn = {}

local function withdraw_unless_settled(id, stream, message, acks)
    for _, ack in ipairs(acks) do
        if not message or ack[2] == message then
            return
        end
    end
    withdrawn[stream] = withdrawn[stream] or {}
    withdrawn[stream][id] = message
end

local function is_in_foreign_hands(stream, message, last)
    local entry = redis.call('XRANGE', stream, message, last, 'COUNT', 1)[1]
    if not entry or entry[1] ~= message then
        return false -- nobody has read it, or it is gone
    end
    local pending = redis.call('XPENDING', stream, GROUP, message, message, 1)[1]
    return not pending or not is_own(pending[2]) -- who is not jobd acknowledges and does not delete
end

local function withdraw()
    for stream, messages in pairs(withdrawn) do
        local last, unknown = last_delivered(stream), false
        last = last == nil and '0-0' or last -- a stream that nobody reads yet; false: no stream, or a key of another type
        for _, message in pairs(last and messages or {}) do
            if not message then
                unknown = true
            elseif not is_in_foreign_hands(stream, message, last) then
                redis.pcall('XACK', stream, GROUP, message)
                redis.pcall('XDEL', stream, message)
            end
        end
        for _, entry in ipairs(unknown and redis.call('XRANGE', stream, '(' .. last, '+') or {}) do
            for n = 1, #entry[2], 2 do
                if entry[2][n] == 'job_id' and messages[entry[2][n + 1]] == false then
                    redis.call('XDEL', stream, entry[1])
                end
            end
        end
    end
end

local missing, unoffered = {}, {}

for _, change in ipairs(cmsgpack.unpack(ARGV[2])) do
    local id, version, mode, fields, ttl_s, events, acks, dead, left = unpack(change)
    local key = JOB .. id
    local known = unobstructed(
        key, 'HMGET', key, 'jobd_version', 'status', 'jobd_event', 'jobd_message', 'jobd_event_bytes', 'jobd_epoch'
    )
    local seen, status, last = known[1], known[2], known[3]
    if known[6] ~= TAG and mode ~= FORCED then
        seen = false
    end
    if not seen and mode ~= NEW and mode ~= WHOLE then
        missing[#missing + 1] = id
    elseif mode == EVENTS or mode == FORCED or not seen or tonumber(seen) < version then
        if not seen and (mode == WHOLE or known[1]) then
            redis.call('DEL', key .. EVENTS_SUFFIX)
            status, last, known[5] = nil, nil, false
        end
        local newest, bytes = add_events(key .. EVENTS_SUFFIX, events, last, status)
        if newest then
            fields[#fields + 1] = 'jobd_event'
            fields[#fields + 1] = newest
        end
        if bytes > 0 and mode ~= NEW then
            bytes = bytes + (tonumber(known[5]) or 0)
            if bytes > MOST_EVENT_BYTES then
                bytes = trim(key .. EVENTS_SUFFIX, KEPT_EVENT_BYTES, '+')
            end
            fields[#fields + 1] = 'jobd_event_bytes'
            fields[#fields + 1] = bytes
        end
        if mode ~= EVENTS then
            fields[#fields + 1] = 'jobd_version'
            fields[#fields + 1] = version
        end
        if not seen then
            fields[#fields + 1] = 'jobd_epoch'
            fields[#fields + 1] = TAG
        end
        if #fields > 0 then
            redis.call('HSET', key, unpack(fields))
        end
        redis.call('EXPIRE', key, ttl_s)
        redis.call('EXPIRE', key .. EVENTS_SUFFIX, ttl_s)
        if dead then
            local event = events[#events]
            redis.call('XADD', KEYS[2], '*', 'job_id', id, 'ts', event[4], 'data', event[6])
        end
    end
    for _, ack in ipairs(acks) do
        local ids = settled[ack[1]] or {}
        settled[ack[1]], ids[#ids + 1] = ids, ack[2]
    end
    if left ~= '' and (known[4] or not seen and mode ~= NEW) then -- a new one has not been offered yet
        withdraw_unless_settled(id, left, known[4], acks)
    end
end
settle()
withdraw()

for _, offer in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, stream, task, payload, enqueue_id, version, created_ts, ttl_s = unpack(offer)
    local key, mark = JOB .. id, epoch .. '/' .. enqueue_id
    local known = unobstructed(key, 'HMGET', key, 'jobd_offered', 'jobd_version', 'jobd_epoch')
    if known[2] and known[3] ~= TAG then
        known[2] = false
        if created_ts ~= '' then
            redis.call('DEL', key .. EVENTS_SUFFIX)
        end
    end
    if not known[2] and created_ts ~= '' then
        redis.call(
            'HSET', key, 'job_id', id, 'task', task, 'payload', payload, 'status', 'queued', 'created_ts', created_ts,
            'updated_ts', created_ts, 'ttl_s', ttl_s, 'result', '', 'error', '', 'jobd_version', version,
            'jobd_event', '0-1', 'jobd_epoch', TAG
        )
        add_event(key .. EVENTS_SUFFIX, { 0, 1, 'queued', created_ts, 'gateway.enqueue', '{}' })
        redis.call('EXPIRE', key, ttl_s)
        redis.call('EXPIRE', key .. EVENTS_SUFFIX, ttl_s)
        known[2] = version
    end
    if not known[2] then
        unoffered[#unoffered + 1] = id
    elseif known[1] ~= mark then
        local message = unobstructed(
            stream, 'XADD', stream, '*', 'job_id', id, 'task', task, 'payload', payload, 'enqueue_id', enqueue_id
        )
        redis.call('HSET', key, 'jobd_offered', mark, 'jobd_message', message)
    end
end

if ARGV[4] ~= '' then
    redis.call('PUBLISH', KEYS[3], ARGV[4])
end

return { missing, unoffered }

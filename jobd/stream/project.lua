-- Publishes to Redis what Postgres has committed: hashes, events, TTLs, acknowledgements and new messages, a whole batch in
-- one call. Sent twice, or by two relays, it changes nothing the second time (idempotent).
--
-- KEYS[1]  jobd:epoch
-- KEYS[2]  jobs:dlq
-- KEYS[3]  jobd:told, the channel on which the nodes hear that there is news
-- KEYS[4]  jobd:modes
-- KEYS[5]  jobd:work, the channel on which the nodes hear that queues in mode `direct` have jobs
-- ARGV[1]  the epoch that Postgres knows; if Redis has another (it was flushed, restarted, or is an old copy) nothing is
--          done and the answer is the one word EPOCH
-- ARGV[2]  msgpack: plain changes, one after the other in one array, each with
--            job_id, kinds, version, task, queue, payload, ttl_s, created_ts, started_ts, finished_ts, result, result_ref,
--            stream, message_id: a job that is at most in its first attempt, which has no events but `running` and `done`
--            kinds     a sum of 1 (queued), 2 (running), 4 (done) and 8 (taken without its message): what is new
--            payload   "" if Redis should have the hash already
--            stream    with message_id: the message that this settles; "": none
-- ARGV[3]  msgpack: other changes, each { job_id, version, mode, fields, ttl_s, events, acks, dead, left, first }
--            mode      0  the hash must be there
--                      1  applied whatever the version, to put right what a zombie wrote
--                      2  new: the fields are the whole hash
--                      3  whole hash and whole history, in place of what is left of them
--                      4  events only
--            fields    name, value, name, value ... of the hash
--            events    each { attempt, n, type, ts, step, data }; attempt and n are the cursor, which only grows
--            acks      the messages that this settles, each { stream, id }
--            dead      the job is announced in jobs:dlq
--            left      the stream in which the job may no longer be claimed, or "": its message is deleted, unless a raw
--                      worker has it in hand, which is then treated as a zombie
--            first     number of leading entries of `fields` that are written only if there is no hash
-- ARGV[4]  msgpack: offers, each { job_id, stream, task, payload, enqueue_id, version, created_ts, ttl_s }; the last two
--          say that nothing has happened to the job yet, so that its hash can be made if it has none, else they are ""
-- ARGV[5]  msgpack: of each queue in mode `stream` that plain changes or offers are about { queue, stream, mode_no }. If its
--          fence in jobd:modes is higher, the queue was meanwhile handed over to another mode, and nothing of it is offered.
-- ARGV[6]  most seconds that finished jobs are kept, or ""
-- ARGV[7]  message to publish on jobd:told, or ""
-- ARGV[8]  message to publish on jobd:work, or ""
-- returns  { missing, unoffered, refused }: jobs whose hash was not there to be changed, jobs that have none to be offered
--          with, and queues whose offers were refused
--
-- A hash that was written in another epoch (`jobd_epoch`) counts as not there: a Postgres that went back in time, by a restore
-- or a failover that lost commits, is right about a job though its version is lower.
-- A change is applied only if its version is newer than the hash's, an event only if its cursor is larger than the last
-- one's (`jobd_event`). `jobd_event_bytes` is the size of the event stream: above a high-water mark the oldest are trimmed.
-- A key of the wrong type in the way is moved aside.

local call, pcall = redis.call, redis.pcall
local epoch = ARGV[1]
if call('GET', KEYS[1]) ~= epoch then
    return 'EPOCH'
end

local TAG = string.sub(redis.sha1hex(epoch), 1, 8) -- short hash of the epoch, kept as `jobd_epoch` in every job's hash
local ENDS = { done = true, error = true, canceled = true }
local FORCED, NEW, WHOLE, EVENTS = 1, 2, 3, 4
local PLAIN_FIELDS = 14
local MOST_ARGUMENTS = 1000
-- High-water mark of a job's event stream in bytes, and what is left after trimming. Postgres has all of them.
local MOST_EVENT_BYTES, KEPT_EVENT_BYTES = 1048576, 262144

local function unobstructed(key, ...)
    local answer = pcall(...)
    if type(answer) == 'table' and answer.err then
        if string.find(answer.err, 'WRONGTYPE', 1, true) then
            call('RENAME', key, ASIDE .. key)
            call('EXPIRE', ASIDE .. key, 86400)
            return call(...)
        end
        error(answer.err)
    end
    return answer
end

-- Adds an event. A key of another type in the way is deleted; `is_first`: so is a stream with events from an earlier epoch.
local function add_event(key, id, kind, ts, step, data, is_first)
    local answer = pcall('XADD', key, id, 'type', kind, 'ts', ts, 'step', step, 'data', data)
    if type(answer) == 'table' and answer.err then
        local is_late = string.find(answer.err, 'equal or smaller', 1, true)
        if string.find(answer.err, 'WRONGTYPE', 1, true) or is_late and is_first then
            call('DEL', key)
        elseif is_late then
            id = '*' -- a raw worker wrote here under ids of its own, which are larger
        else
            error(answer.err)
        end
        call('XADD', key, id, 'type', kind, 'ts', ts, 'step', step, 'data', data)
    end
end

-- Adds the events after the cursor `last`; returns the newest cursor as text (nil: nothing was new) and the bytes added.
local function add_events(key, events, last, status)
    local attempt, n = -1, -1
    if last then
        local a, b = string.match(last, '^(%d+)-(%d+)$')
        attempt, n = tonumber(a) or -1, tonumber(b) or -1
    end
    local newest, bytes = nil, 0
    for _, event in ipairs(events) do
        if event[1] > attempt or (event[1] == attempt and event[2] > n) then
            -- A raw worker has written the final status and its event itself; there is only one final event.
            if not (ENDS[event[3]] and status == event[3]) then
                add_event(key, event[1] .. '-' .. event[2], event[3], event[4], event[5], event[6])
                bytes = bytes + ENTRY_BYTES + #event[5] + #event[6]
            end
            newest = event[1] .. '-' .. event[2]
        end
    end
    return newest, bytes
end

-- By stream, the messages to be acknowledged; all of them at once, at the end.
local settled = {}

local function will_settle(stream, message)
    local ids = settled[stream] or {}
    settled[stream], ids[#ids + 1] = ids, message
end

local function settle()
    for stream, ids in pairs(settled) do
        for first = 1, #ids, MOST_ARGUMENTS do
            local last = math.min(first + MOST_ARGUMENTS - 1, #ids)
            pcall('XACK', stream, GROUP, unpack(ids, first, last))
            pcall('XDEL', stream, unpack(ids, first, last))
        end
    end
end

-- By stream, by job, the message that was offered; false if that is not known.
local withdrawn = {}

local function will_withdraw(id, stream, message)
    withdrawn[stream] = withdrawn[stream] or {}
    withdrawn[stream][id] = message
end

local function is_in_foreign_hands(stream, message, last)
    local entry = call('XRANGE', stream, message, last, 'COUNT', 1)[1]
    if not entry or entry[1] ~= message then
        return false -- nobody has read it, or it is gone
    end
    local pending = call('XPENDING', stream, GROUP, message, message, 1)[1]
    return not pending or not is_own(pending[2]) -- not pending: acknowledged by a raw worker, since jobd deletes too
end

local function withdraw()
    for stream, messages in pairs(withdrawn) do
        local last, unknown = last_delivered(stream), false
        last = last == nil and '0-0' or last -- a stream that nobody reads yet; false: no stream, or a key of another type
        for _, message in pairs(last and messages or {}) do
            if not message then
                unknown = true
            elseif not is_in_foreign_hands(stream, message, last) then
                pcall('XACK', stream, GROUP, message)
                pcall('XDEL', stream, message)
            end
        end
        for _, entry in ipairs(unknown and call('XRANGE', stream, '(' .. last, '+') or {}) do
            for n = 1, #entry[2], 2 do
                if entry[2][n] == 'job_id' and messages[entry[2][n + 1]] == false then
                    call('XDEL', stream, entry[1])
                end
            end
        end
    end
end

local missing, unoffered, refused = {}, {}, {}
local most_s = tonumber(ARGV[6])

-- By queue, its stream; by stream, its queue and the number of its mode. Queues in mode `direct` have none.
local stream_of, mode_of = {}, {}
for _, queue in ipairs(cmsgpack.unpack(ARGV[5])) do
    stream_of[queue[1]], mode_of[queue[2]] = queue[2], queue
end

local function publish_plain(
    id, kinds, version, task, queue, payload, ttl_s, created_ts, started_ts, finished_ts, result, result_ref, stream, message_id
)
    local key = JOB .. id
    local known = unobstructed(
        key, 'HMGET', key, 'jobd_version', 'jobd_epoch', 'jobd_event', 'jobd_message', 'status'
    )
    local seen = known[2] == TAG and known[1]
    local is_done, is_running = kinds % 8 >= 4, kinds % 4 >= 2
    if not seen and payload == '' then
        missing[#missing + 1] = id
    elseif not seen or tonumber(seen) < version then
        local events = key .. EVENTS_SUFFIX
        local status, ts, cursor, kept_s = 'queued', created_ts, '0-1', ttl_s
        if is_done then
            status, ts, cursor = 'done', finished_ts, '1-1'
            kept_s = most_s and math.min(ttl_s, most_s) or ttl_s
        elseif is_running then
            status, ts, cursor = 'running', started_ts, '1-0'
        end
        if not seen then
            add_event(events, '0-1', 'queued', created_ts, 'gateway.enqueue', '{}', true)
        end
        if seen and is_running and known[3] ~= '1-0' or not seen and kinds % 8 >= 2 then
            add_event(events, '1-0', 'running', started_ts, 'worker.start', '{"attempt":1}')
        end
        if is_done and not (seen and known[5] == 'done') then -- a raw worker has written its end itself
            add_event(events, '1-1', 'done', finished_ts, 'worker.done', '{"attempt":1}')
        end
        if not seen then
            call(
                'HSET', key, 'job_id', id, 'task', task, 'payload', payload, 'status', status, 'created_ts', created_ts,
                'updated_ts', ts, 'ttl_s', ttl_s, 'result', result, 'error', '', 'jobd_event', cursor, 'jobd_version', version,
                'jobd_epoch', TAG
            )
        elseif is_done then
            call(
                'HSET', key, 'status', status, 'updated_ts', ts, 'result', result, 'error', '', 'jobd_event', cursor,
                'jobd_version', version
            )
        else
            call('HSET', key, 'status', status, 'updated_ts', ts, 'jobd_event', cursor, 'jobd_version', version)
        end
        if result_ref ~= '' then
            call('HSET', key, 'result_ref', result_ref)
        end
        call('EXPIRE', key, kept_s)
        call('EXPIRE', events, kept_s)
    end
    if message_id ~= '' then
        will_settle(stream, message_id)
    end
    local left = (is_done or kinds >= 8) and stream_of[queue]
    if left and (known[4] and known[4] ~= message_id or not known[4] and message_id == '' and not seen and kinds % 2 == 0) then
        will_withdraw(id, left, known[4]) -- a new one has not been offered yet
    end
end

local plain = cmsgpack.unpack(ARGV[2])
for n = 1, #plain, PLAIN_FIELDS do
    publish_plain(unpack(plain, n, n + PLAIN_FIELDS - 1))
end

local function withdraw_unless_settled(id, stream, message, acks)
    for _, ack in ipairs(acks) do
        if not message or ack[2] == message then
            return
        end
    end
    will_withdraw(id, stream, message)
end

for _, change in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, version, mode, fields, ttl_s, events, acks, dead, left, first = unpack(change)
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
            call('DEL', key .. EVENTS_SUFFIX)
            status, last, known[5] = nil, nil, false
        end
        local newest, bytes = add_events(key .. EVENTS_SUFFIX, events, last, status)
        if newest then
            fields[#fields + 1] = 'jobd_event'
            fields[#fields + 1] = newest
        end
        if bytes > 0 then
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
        local from = seen and first + 1 or 1
        if #fields >= from then
            call('HSET', key, unpack(fields, from))
        end
        call('EXPIRE', key, ttl_s)
        call('EXPIRE', key .. EVENTS_SUFFIX, ttl_s)
        if dead then
            local event = events[#events]
            call('XADD', KEYS[2], '*', 'job_id', id, 'ts', event[4], 'data', event[6])
        end
    end
    for _, ack in ipairs(acks) do
        will_settle(ack[1], ack[2])
    end
    if left ~= '' and (known[4] or not seen and mode ~= NEW) then -- a new one has not been offered yet
        withdraw_unless_settled(id, left, known[4], acks)
    end
end
settle()
withdraw()

-- By stream, whether offers are accepted; checked against the fence once in a call.
local is_open = {}

local function takes_offers(stream)
    if is_open[stream] == nil then
        local queue = mode_of[stream]
        is_open[stream] = tonumber(call('HGET', KEYS[4], queue[1]) or '0') <= queue[3]
        if not is_open[stream] then
            refused[#refused + 1] = queue[1]
        end
    end
    return is_open[stream]
end

local function add_message(stream, id, task, payload, enqueue_id)
    return unobstructed(
        stream, 'XADD', stream, '*', 'job_id', id, 'task', task, 'payload', payload, 'enqueue_id', enqueue_id
    )
end

local function offer_job(id, stream, task, payload, enqueue_id, version, created_ts, ttl_s)
    local key, mark = JOB .. id, epoch .. '/' .. enqueue_id
    local known = unobstructed(key, 'HMGET', key, 'jobd_offered', 'jobd_version', 'jobd_epoch', 'jobd_message')
    local is_offered, is_known = known[1] == mark, known[2] and known[3] == TAG
    if not is_known and created_ts == '' then
        unoffered[#unoffered + 1] = id
    elseif not is_known then
        local message = is_offered and (known[4] or '') or add_message(stream, id, task, payload, enqueue_id)
        add_event(key .. EVENTS_SUFFIX, '0-1', 'queued', created_ts, 'gateway.enqueue', '{}', true)
        call(
            'HSET', key, 'job_id', id, 'task', task, 'payload', payload, 'status', 'queued', 'created_ts', created_ts,
            'updated_ts', created_ts, 'ttl_s', ttl_s, 'result', '', 'error', '', 'jobd_version', version,
            'jobd_event', '0-1', 'jobd_epoch', TAG, 'jobd_offered', mark, 'jobd_message', message
        )
        call('EXPIRE', key, ttl_s)
        call('EXPIRE', key .. EVENTS_SUFFIX, ttl_s)
    elseif not is_offered then
        local message = add_message(stream, id, task, payload, enqueue_id)
        call('HSET', key, 'jobd_offered', mark, 'jobd_message', message)
    end
end

for _, offer in ipairs(cmsgpack.unpack(ARGV[4])) do
    if takes_offers(offer[2]) then
        offer_job(unpack(offer))
    end
end

if ARGV[7] ~= '' then
    call('PUBLISH', KEYS[3], ARGV[7])
end
if ARGV[8] ~= '' then
    call('PUBLISH', KEYS[5], ARGV[8])
end

return { missing, unoffered, refused }

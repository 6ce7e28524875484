-- Takes the messages of a stream back that nobody has read yet, so that its jobs can be offered again later.
--
-- KEYS[1]  a job stream
-- ARGV[1]  "", or the epoch that is to begin: a job whose message somebody has in hand then counts as offered in it, so
--          that there is never a second message beside the first
-- returns  how many

local stream, epoch = KEYS[1], ARGV[1]
local KEPT_S = 600 -- a mark whose job is never published

local last = last_delivered(stream)
if not last then
    return 0 -- no stream, or nobody to read it yet
end

-- A raw worker writes the hash itself, and Postgres does not know it yet: it is believed in the new epoch.
local function adopt(entry, is_raw)
    local fields = as_table(entry[2])
    if fields['job_id'] then
        local key, mark = JOB .. fields['job_id'], epoch .. '/' .. (fields['enqueue_id'] or '1')
        redis.pcall('HSET', key, 'jobd_offered', mark, 'jobd_message', entry[1])
        if is_raw then
            redis.pcall('HSET', key, 'jobd_epoch', string.sub(redis.sha1hex(epoch), 1, 8))
        end
        if redis.call('TTL', key) == -1 then
            redis.call('EXPIRE', key, KEPT_S)
        end
    end
end

local unread = redis.call('XRANGE', stream, '(' .. last, '+')
for _, entry in ipairs(unread) do
    take_back(stream, entry)
end

if epoch ~= '' then
    local has_raw_workers = false
    for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
        local name = as_table(info)['name']
        has_raw_workers = has_raw_workers or not is_own(name)
    end
    for _, entry in ipairs(redis.call('XRANGE', stream, '-', last)) do
        -- A raw worker acknowledges and leaves the message; nobody else does, but for a jobd that was killed just then.
        local pending = redis.call('XPENDING', stream, GROUP, entry[1], entry[1], 1)[1]
        if has_raw_workers or pending then
            adopt(entry, not pending or not is_own(pending[2]))
        else
            take_back(stream, entry)
        end
    end
end
return #unread

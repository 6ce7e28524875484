-- The beginning of every script (scripts.py). Before it stand the names of keys.py: GROUP, OWN_PREFIX (of jobd's own
-- consumers), JOB and EVENTS_SUFFIX (of a job's keys), ASIDE (of keys that were in the way).

-- { name, value, name, value ... }, as Redis answers, by name.
local function as_table(pairs)
    local fields = {}
    for n = 1, #pairs, 2 do
        fields[pairs[n]] = pairs[n + 1]
    end
    return fields
end

local function is_own(consumer)
    return string.sub(consumer, 1, #OWN_PREFIX) == OWN_PREFIX
end

-- The id of the last message that the group has read; nil without a group, and false without a stream of this name.
local function last_delivered(stream)
    local groups = redis.pcall('XINFO', 'GROUPS', stream)
    if groups.err then
        return false
    end
    for _, info in ipairs(groups) do
        local fields = as_table(info)
        if fields['name'] == GROUP then
            return fields['last-delivered-id']
        end
    end
    return nil
end


-- Takes a message back, so that its job can be offered again.
local function take_back(stream, entry)
    redis.call('XACK', stream, GROUP, entry[1])
    redis.call('XDEL', stream, entry[1])
    local job_id = as_table(entry[2])['job_id']
    if job_id then
        redis.pcall('HDEL', JOB .. job_id, 'jobd_offered', 'jobd_message')
    end
end

-- Shortens the event stream of a job: the newest entries stay, a `gap` stands for those that went. Entries keep their ids,
-- so a client that reads on from one of them misses nothing. Also the beginning of project.lua, for its function.
--
-- KEYS[1]  job:{id}:events, as the only key
-- ARGV[1]  bytes of entries that stay; the newest one always does
-- ARGV[2]  the last entry that may go, or '+'
-- returns  how many bytes stay

local ENTRY_BYTES = 64 -- what an entry takes besides its fields, about

local function size_of(entry)
    local size = ENTRY_BYTES
    for _, part in ipairs(entry[2]) do
        size = size + #part
    end
    return size
end

local function trim(key, most_bytes, last)
    local kept, size = {}, 0 -- newest first
    if last ~= '+' then
        for _, entry in ipairs(redis.call('XREVRANGE', key, '+', '(' .. last)) do
            kept[#kept + 1], size = entry, size + size_of(entry)
        end
    end
    local gone = nil
    while not gone do
        local page = redis.call('XREVRANGE', key, last, '-', 'COUNT', 50)
        for _, entry in ipairs(page) do
            if #kept > 0 and size + size_of(entry) > most_bytes then
                gone = entry[1]
                break
            end
            kept[#kept + 1], size = entry, size + size_of(entry)
        end
        if #page == 0 then
            return size
        end
        last = '(' .. page[#page][1]
    end
    local ttl_ms = redis.call('PTTL', key)
    redis.call('DEL', key) -- first: a script that has deleted something may write even to a Redis that is full
    local ts = '0'
    for n = 1, #kept[#kept][2], 2 do
        ts = kept[#kept][2][n] == 'ts' and kept[#kept][2][n + 1] or ts
    end
    redis.call('XADD', key, gone, 'type', 'gap', 'ts', ts, 'step', 'jobd.gap', 'data', '{"reason":"trimmed"}')
    for n = #kept, 1, -1 do
        redis.call('XADD', key, kept[n][1], unpack(kept[n][2]))
    end
    if ttl_ms > 0 then
        redis.call('PEXPIRE', key, ttl_ms)
    end
    return size
end

if #KEYS == 1 then
    return trim(KEYS[1], tonumber(ARGV[1]), ARGV[2])
end

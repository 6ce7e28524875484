-- Removes consumers of jobd's own that have nothing in hand and have not been heard of for long: each start of jobd makes
-- one. A live one that had nothing to read for so long is made again by its next read.
--
-- KEYS[1]  a job stream
-- ARGV[1]  the group, ARGV[2] the prefix of jobd's own consumers, ARGV[3] for how many ms they must have been silent
-- returns  how many

local stream, group, prefix, silent_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local count = 0
local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, group)
for _, info in ipairs(consumers.err and {} or consumers) do
    local fields = {}
    for n = 1, #info, 2 do
        fields[info[n]] = info[n + 1]
    end
    local is_own = string.sub(fields['name'], 1, #prefix) == prefix
    if is_own and fields['pending'] == 0 and fields['idle'] > silent_ms then
        redis.call('XGROUP', 'DELCONSUMER', stream, group, fields['name'])
        count = count + 1
    end
end
return count

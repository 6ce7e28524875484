-- Removes consumers of jobd's own that have nothing in hand and have not been heard of for long: each start of jobd makes
-- one. A live one that had nothing to read for so long is made again by its next read.
--
-- KEYS[1]  a job stream
-- ARGV[1]  for how many ms they must have been silent
-- returns  how many

local stream, silent_ms = KEYS[1], tonumber(ARGV[1])
local count = 0
local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
for _, info in ipairs(consumers.err and {} or consumers) do
    local fields = as_table(info)
    if is_own(fields['name']) and fields['pending'] == 0 and fields['idle'] > silent_ms then
        redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, fields['name'])
        count = count + 1
    end
end
return count

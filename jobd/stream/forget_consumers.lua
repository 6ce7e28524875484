-- Removes jobd's own consumers that have no pending messages and have been idle for long: each start of jobd makes one.
-- A live consumer that is removed is made again by its next read.
--
-- KEYS[1]  a job stream
-- ARGV[1]  idle time in ms from which on a consumer is removed
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

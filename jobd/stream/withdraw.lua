-- Takes the messages of a stream back that nobody has read yet, so that its jobs can be offered again later.
--
-- KEYS[1]  a job stream
-- ARGV[1]  the group
-- returns  how many

local last = nil
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local fields = {}
    for n = 1, #info, 2 do
        fields[info[n]] = info[n + 1]
    end
    if fields['name'] == ARGV[1] then
        last = fields['last-delivered-id']
    end
end
if not last then
    return 0
end

local unread = redis.call('XRANGE', KEYS[1], '(' .. last, '+')
for _, entry in ipairs(unread) do
    redis.call('XDEL', KEYS[1], entry[1])
    for n = 1, #entry[2], 2 do
        if entry[2][n] == 'job_id' then
            redis.call('HDEL', 'job:' .. entry[2][n + 1], 'jobd_offered')
        end
    end
end
return #unread

-- Writes which job each idempotency key stands for.
--
-- KEYS     idempotency:{key}, any number of them
-- ARGV     for each key, in the same order: the id of its job, and for how many seconds the key is kept

for n, key in ipairs(KEYS) do
    redis.call('SET', key, ARGV[2 * n - 1], 'EX', ARGV[2 * n])
end

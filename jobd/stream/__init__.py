"""All that knows Redis: the copy of what Postgres has committed, for clients and raw workers that speak only Redis.

keys               every name in Redis
connection         the client, and what a server must be
channel            publish and subscribe
wake, work         waking the relay of another node, and those who take jobs there
beside             two things at a time
message            the message of a job in a stream
scripts            the Lua scripts with their prelude
changes, page      what Postgres has committed, in the words of the Redis contract
project            the scripts that write it, and their calls
mirror             what Redis holds, in which epoch, and how it is filled again
window             which jobs are offered in the streams
relay              carries outbox rows to Redis and keeps the streams topped up
modes              which queues are served through their stream, and how that changes
memory             what goes first when Redis is full
consumers          who reads a stream
raw_workers        workers that speak only Redis: their claims, events and reports
raw_report         what a raw worker wrote, checked
idempotency_keys   a copy of idempotency keys
"""

"""All that knows Redis: the copy of what Postgres has committed, for clients and raw workers that speak only Redis.

keys               every name in Redis
connection         the client, and what a server must be
channel, wake      publish and subscribe; waking the relay of another node
message            the message of a job in a stream
scripts            the Lua scripts with their prelude
project            what Postgres has committed, as project.lua writes it
relay              carries outbox rows to Redis and keeps a window of messages in each stream
memory             what goes first when Redis is full
consumers          who reads a stream
raw_workers        workers that speak only Redis: their claims, events and reports
raw_report         what a raw worker wrote, checked
idempotency_keys   a copy of idempotency keys
"""

"""A worker written from the Redis contract alone: plain redis-py, nothing of jobd.

python raw_worker.py REDIS_URL CONSUMER [seconds of work per job]

SIGTERM: finish the job in hand, if any, and leave.
"""

import json
import signal
import sys
import time

import redis

STREAM, GROUP = "jobs:stream", "workers"


def now_ms():
    return int(time.time() * 1000)


def main(url, consumer, work_s):
    r = redis.Redis.from_url(url, decode_responses=True)
    asked_to_leave = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_leave.append(True))
    while not asked_to_leave:
        answer = r.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=1, block=500)
        for _, messages in answer or []:
            for message_id, fields in messages:
                handle(r, message_id, fields, work_s)


def handle(r, message_id, fields, work_s):
    job_id = fields["job_id"]
    key, events = f"job:{job_id}", f"job:{job_id}:events"
    ttl_s = int(r.hget(key, "ttl_s") or 600)
    r.rpush("test:runs", job_id)  # of no contract: so that a test can count what was really run

    def emit(kind, step, data):
        r.xadd(events, {"type": kind, "ts": str(now_ms()), "step": step, "data": json.dumps(data)})
        r.expire(key, ttl_s)
        r.expire(events, ttl_s)

    r.hset(key, mapping={"status": "running", "updated_ts": now_ms()})
    emit("running", "worker.start", {})
    try:
        payload = json.loads(fields["payload"])
    except ValueError:
        payload = {"_raw": fields["payload"]}
    deadline = time.monotonic() + work_s
    while time.monotonic() < deadline:
        time.sleep(min(0.2, work_s))
        emit("progress", "worker.work", {"left_s": deadline - time.monotonic()})
    if payload.get("fail"):
        r.hset(key, mapping={"status": "error", "updated_ts": now_ms(), "error": json.dumps({"code": "asked_to"})})
        emit("error", "worker.error", {"code": "asked_to"})
    else:
        r.hset(key, mapping={"status": "done", "updated_ts": now_ms(), "result": json.dumps({"echo": payload})})
        emit("done", "worker.done", {})
    r.xack(STREAM, GROUP, message_id)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)

"""A worker written from the worker contract alone: plain http.client, nothing of jobd.

python http_worker.py URL WORKER_ID [seconds of work per job]
"""

import http.client
import json
import sys
import threading
import time
import traceback
from urllib.parse import urlsplit

STREAMS = ["jobs:stream:urgent", "jobs:stream"]


def main(url, worker_id, work_s):
    while True:
        job = call(url, "claim", {"worker_id": worker_id, "streams": STREAMS, "max_wait_ms": 5000})
        if job["claimed"]:
            run(url, worker_id, job, work_s)


def call(url, verb, body):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/internal/worker/{verb}", json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{verb}: {response.status} {answer}")
    return answer


def run(url, worker_id, job, work_s):
    lease = {"worker_id": worker_id, "job_id": job["job_id"], "lease_token": job["lease_token"]}
    proof = {**lease, "attempt_id": job["attempt_id"], "stream": job["stream"], "message_id": job["message_id"]}
    finished, lost = threading.Event(), threading.Event()

    def heartbeat():
        while not finished.wait(job["heartbeat_interval_seconds"]):
            if not call(url, "heartbeat", lease)["ok"]:
                lost.set()
                return

    beating = threading.Thread(target=heartbeat)
    beating.start()
    try:
        report = ("complete", {**proof, "result": work(job["payload"], work_s)})
    except Exception as e:
        error = {"code": type(e).__name__, "message": str(e), "stack": traceback.format_exc(), "retryable": False}
        report = ("fail", {**proof, "error": error})
    finished.set()
    beating.join()
    if not lost.is_set():
        call(url, *report)


def work(payload, work_s):
    time.sleep(work_s)
    if payload.get("fail"):
        raise ValueError("asked to")
    return {"echo": payload}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)

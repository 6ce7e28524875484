"""A command that tells, and then does what its payload says: return, fail, wait or crash."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

payload = json.load(sys.stdin)
os.write(2, b"begun\n")
if payload["do"] == "wait":
    time.sleep(60)
if payload["do"] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if payload["do"] == "fail":
    sys.exit(75)
os.write(1, json.dumps({"ok": True}).encode())

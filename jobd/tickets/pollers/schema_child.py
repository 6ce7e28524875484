"""Evaluates one schema over one output, `{"schema": ..., "output": ...}` on stdin, and exits with 0 if it fits.

A process of its own, because a schema can be written that takes for ever; a process can be killed.
"""

from __future__ import annotations

import sys

import msgspec

from jobd.tickets.gates import passes_schema
from jobd.wire.tickets import SchemaGate


def main() -> int:
    request = msgspec.json.decode(sys.stdin.buffer.read())
    result = passes_schema(SchemaGate(schema=request["schema"]), request["output"])
    if result.result == "PASS":
        return 0
    sys.stderr.write(" ".join(result.reason.split()))
    return 1


if __name__ == "__main__":
    sys.exit(main())

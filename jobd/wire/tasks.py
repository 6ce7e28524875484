"""The tasks that a jobd knows, as `/v1/tasks` answers: what a client has to know to submit a job, and nothing that only
the operator may know (programs, environments, addresses, keys).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TaskObject(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: How its jobs are run; `external`: by HTTP or raw Redis workers only.
    run: Literal["python", "command", "openai", "mock", "external"]
    #: Where its jobs wait unless the job names another queue.
    queue: str
    #: How long an attempt may take unless the job says otherwise.
    timeout_s: float
    #: How many attempts a job has unless it says otherwise.
    max_attempts: int
    #: JSON Schema (2020-12) of the payload. null: any object goes, or no slot of this node runs the task.
    payload_schema: dict[str, Any] | None
    #: Whether none of its jobs is started.
    paused: bool = False


class Tasks(msgspec.Struct, frozen=True):
    #: By name.
    tasks: list[TaskObject]

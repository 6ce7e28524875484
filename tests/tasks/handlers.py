"""What users might write, for the tests of the runners; `do` in the payload says what it does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd import TaskFailed, task

if TYPE_CHECKING:
    from jobd import Context

NOT_A_FUNCTION = 3
#: Lets go of handlers that wait for it.
released = threading.Event()


class Size(msgspec.Struct):
    width: int
    height: int = 1


def emit_events(ctx: Context) -> None:
    ctx.log("begun")
    for word in ("a", "b", "c"):
        ctx.token(word)
    ctx.progress(0.5, "half")


async def act(payload: dict[str, Any], ctx: Context) -> Any:
    emit_events(ctx)
    if payload["do"] == "wait":
        await anyio.sleep(60)
    if payload["do"] == "cancel itself":
        raise asyncio.CancelledError
    if payload["do"] == "raise in a group":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_refuse)
    return finish(payload, ctx)


async def _refuse() -> None:
    raise TaskFailed("refused", "by a child", retryable=False)


def act_in_thread(payload: dict[str, Any], ctx: Context) -> Any:
    emit_events(ctx)
    while payload["do"] == "wait" and not ctx.cancelled:
        time.sleep(0.01)
    if payload["do"] == "linger":
        released.wait(30)
        ctx.log("never told")
    return finish(payload, ctx)


def finish(payload: dict[str, Any], ctx: Context) -> Any:
    what = payload["do"]
    if what == "snooze" and ctx.attempt == 1:
        ctx.snooze(payload["seconds"])
    if what == "fail":
        raise TaskFailed("too_bad", "nothing to be done", retryable=payload.get("retryable", True))
    if what == "raise":
        raise ValueError("postgresql://me:secret@db/x \0 is odd")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        sys.exit(3)
    if what == "return something odd":
        return object()
    if what == "return nul":
        return {"text": "\0"}
    if what == "return much":
        return {"text": "x" * payload["bytes"]}
    return {"attempt": ctx.attempt, "of": ctx.max_attempts, "key": ctx.idempotency_key}


async def block(payload: dict[str, Any], ctx: Context) -> Any:
    """The sin: it does not await."""
    time.sleep(payload["seconds"])  # noqa: ASYNC251
    return {"blocked": payload["seconds"]}


async def area(payload: Size, ctx: Context) -> int:
    return payload.width * payload.height


def area_in_thread(payload: Size, ctx: Context) -> int:
    return payload.width * payload.height


def takes_one(payload: dict[str, Any]) -> None:
    pass


@task
def shout(payload: dict[str, Any], ctx: Context) -> str:
    return str(payload["text"]).upper()


@task(name="whisper", timeout_s=5, max_attempts=1)
async def quietly(payload: dict[str, Any], ctx: Context) -> str:
    return str(payload["text"]).lower()


async def told(payload: dict[str, Any], ctx: Context) -> Any:
    """Its inputs, by name."""
    return {name: [part.status, part.result, str(part.id)] for name, part in ctx.inputs.items()}

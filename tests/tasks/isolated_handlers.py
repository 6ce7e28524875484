"""Handlers for processes of their own; `do` in the payload says what they do."""

# ruff: noqa: T201  # what becomes of prints is what is tested
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd import Context

#: What a warm process keeps.
calls = 0
hoard: list[bytes] = []
chattering = threading.Event()


class Area(msgspec.Struct):
    width: int
    height: int = 1


def act(payload: dict[str, Any], ctx: Context) -> Any:
    global calls
    calls += 1
    answer = ACTS[payload["do"]](payload, ctx)
    return {"pid": os.getpid(), "calls": calls} if answer is None else answer


async def wait(payload: dict[str, Any], ctx: Context) -> Any:
    ctx.log("ready")
    await anyio.sleep(payload["seconds"])
    return os.getpid()


def stay(payload: dict[str, Any], ctx: Context) -> None:
    """Say who it is, and do not heed anything."""
    Path(payload["file"]).write_text(str(os.getpid()))
    time.sleep(600)


def area(payload: Area, ctx: Context) -> int:
    return payload.width * payload.height


def hold_gil(payload: dict[str, Any], ctx: Context) -> None:
    """Sleep in C without letting go of the interpreter's lock."""
    ctx.log("ready")
    ctypes.PyDLL(None).sleep(payload["seconds"])


def about(payload: dict[str, Any], ctx: Context) -> Any:
    ctx.progress(0.25, "begun")
    ctx.token("Hel")
    ctx.event("found", {"page": 3}, "search")
    return {
        "job_id": str(ctx.job_id),
        "task": ctx.task,
        "attempt": ctx.attempt,
        "max_attempts": ctx.max_attempts,
        "key": ctx.idempotency_key,
        "cancelled": ctx.cancelled,
        "has_time": 0 < ctx.left_s <= 30 and ctx.deadline > time.monotonic(),
        "odd": payload.get("odd"),
    }


def trace(payload: dict[str, Any], ctx: Context) -> Any:
    return [ctx.traceparent, ctx.tracestate]


def print_lines(payload: dict[str, Any], ctx: Context) -> None:
    print("plain")
    print("complaint", file=sys.stderr)
    os.write(1, b'\x00\x00\x00\x05{"type":"done"}\n')  # looks like what jobd and this process say to each other
    subprocess.run(["/bin/echo", "from a program"], check=True)
    print("no end of line", end="")


def flood(payload: dict[str, Any], ctx: Context) -> None:
    for n in range(100_000):
        print("x" * 100, n)


def chatter(payload: dict[str, Any], ctx: Context) -> None:
    """Leaves a thread behind that prints more than a pipe holds."""

    def speak() -> None:
        for _ in range(3000):
            print("y" * 100)
        chattering.set()

    threading.Thread(target=speak, daemon=True).start()


def chattered(payload: dict[str, Any], ctx: Context) -> Any:
    return chattering.wait(20)


def speak_late(payload: dict[str, Any], ctx: Context) -> None:
    """A thread that goes on telling when its job is over."""

    def speak() -> None:
        while True:
            ctx.log("late")
            time.sleep(0.001)

    threading.Thread(target=speak, daemon=True).start()


def obey(payload: dict[str, Any], ctx: Context) -> None:
    ctx.log("ready")
    while not ctx.cancelled:
        time.sleep(0.005)


def be_deaf(payload: dict[str, Any], ctx: Context) -> None:
    """With a program beside it that is deaf too."""
    program = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True)
    ctx.log(f"ready {program.pid}")
    while True:
        time.sleep(1)


def refuse(payload: dict[str, Any], ctx: Context) -> None:
    ctx.event("done", {})


def grow(payload: dict[str, Any], ctx: Context) -> None:
    hoard.append(b"x" * (payload["mb"] << 20))


def echo(payload: dict[str, Any], ctx: Context) -> Any:
    return payload["text"]


def close_streams(payload: dict[str, Any], ctx: Context) -> None:
    os.close(1)
    os.close(2)


def babble(payload: dict[str, Any], ctx: Context) -> None:
    """Write into whatever is open, jobd's own pipe included."""
    for fd in range(3, 256):
        try:
            os.write(fd, b"\xff" * 8)
        except OSError:
            continue
    time.sleep(30)


def exit_at_once(payload: dict[str, Any], ctx: Context) -> None:
    print("out of luck", file=sys.stderr, flush=True)
    os._exit(payload["code"])


ACTS: dict[str, Callable[[dict[str, Any], Context], Any]] = {
    "nothing": lambda payload, ctx: None,
    "hold gil": hold_gil,
    "about": about,
    "print": print_lines,
    "flood": flood,
    "chatter": chatter,
    "chattered": chattered,
    "speak late": speak_late,
    "obey": obey,
    "be deaf": be_deaf,
    "refuse": refuse,
    "grow": grow,
    "echo": echo,
    "close streams": close_streams,
    "babble": babble,
    "exit": exit_at_once,
    "segfault": lambda payload, ctx: ctypes.string_at(0),
    "kill": lambda payload, ctx: os.kill(os.getpid(), payload["signal"]),
    "abort": lambda payload, ctx: os.abort(),
    "ignore": lambda payload, ctx: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
}

"""An agent: it asks a model for one step at a time, carries it out in a folder of its own, and ends with a summary."""

from __future__ import annotations

import json
import os
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from jobd import Context, TaskFailed, task

#: Most steps of one attempt.
MOST_STEPS = 20
#: Seconds for one answer of the model.
ANSWER_S = 120
TOOLS = """You carry out a task in steps. Answer each time with one JSON object and nothing else:
{"tool": "write", "name": "FILE", "text": "..."}
{"tool": "read", "name": "FILE"}
{"tool": "finish", "summary": "..."}"""


class Order(msgspec.Struct):
    goal: str
    criteria: str = ""


@task(timeout_s=900, max_attempts=2)
def agent(order: Order, ctx: Context) -> dict[str, Any]:
    """Runs in a thread, so it may block; the result is what the gates of the ticket judge."""
    workspace = Path(os.environ.get("WORKSPACE", "workspace"), str(ctx.job_id))
    workspace.mkdir(parents=True, exist_ok=True)
    messages = [
        {"role": "system", "content": TOOLS},
        {"role": "user", "content": f"{order.goal}\n\nIt is accepted if: {order.criteria or 'it is done'}"},
    ]
    for number in range(1, MOST_STEPS + 1):
        if ctx.cancelled:
            raise TaskFailed("canceled", "stopped between two steps")
        answer = ask(messages)
        step = read_step(answer)
        ctx.progress(number / MOST_STEPS, step["tool"])
        if step["tool"] == "finish":
            files = sorted(path.name for path in workspace.iterdir())
            return {"summary": str(step.get("summary", "")), "files": files, "steps": number, "folder": str(workspace)}
        seen = carry_out(step, workspace)
        ctx.log(f"{step['tool']} {step.get('name', '')}: {seen[:100]}")
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": seen}]
    raise TaskFailed("too_many_steps", f"not finished after {MOST_STEPS} steps")


def ask(messages: list[dict[str, str]]) -> str:
    """One answer of a server that speaks the OpenAI protocol."""
    server = urlsplit(os.environ.get("MODEL_URL", "http://127.0.0.1:8080/v1"))
    body = json.dumps({"model": os.environ.get("MODEL", "default"), "messages": messages})
    with closing(HTTPConnection(server.netloc, timeout=ANSWER_S)) as connection:
        connection.request("POST", f"{server.path}/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise TaskFailed("model", f"the model server answered {answer.status}")
        text: str = json.load(answer)["choices"][0]["message"]["content"]
        return text


def read_step(answer: str) -> dict[str, Any]:
    try:
        step = json.loads(answer)
    except ValueError:
        step = None
    if not isinstance(step, dict) or step.get("tool") not in ("write", "read", "finish"):
        raise TaskFailed("no_step", f"the model answered with no step: {answer[:200]}")
    return step


def carry_out(step: dict[str, Any], workspace: Path) -> str:
    """What the model is told about its step. A name with a folder in it is refused: the workspace is all there is."""
    name = str(step.get("name", ""))
    if not name or name != Path(name).name:
        return f"refused: {name!r} is not the name of a file"
    path = workspace / name
    if step["tool"] == "write":
        path.write_text(str(step.get("text", "")))
        return f"written: {path.stat().st_size} bytes"
    return path.read_text() if path.is_file() else f"there is no {name}"

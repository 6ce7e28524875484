"""What a newcomer does first, as processes: serve, submit, and see it run."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

from tests.support.daemon import environment, run_jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

#: More than what a job is waiting for.
SLOW = {"seconds": 600, "tokens": 0}


def test_first_job_runs_at_once_and_its_tokens_are_seen(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start(prepared=False).until_ready()

    followed = run_jobd(
        *("submit", "chat", "--payload", '{"text":"hi"}', "--follow", "--data-dir", str(daemon.data_dir))
    )
    waited = run_jobd(*("submit", "embed", "--payload", '{"seconds":0}', "--wait", "--data-dir", str(daemon.data_dir)))

    assert followed.returncode == 0
    lines = followed.stdout.splitlines()
    assert lines[0] == 'You sent "hi" to the task chat.'
    assert '[tasks.chat] run = "openai"' in lines[-1]
    assert "progress" in followed.stderr
    assert waited.returncode == 0
    assert json.loads(waited.stdout)["mock"] is True


def test_stop_hands_back_what_runs_and_the_next_start_runs_it_again(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd(JOBD_DRAIN_S="0.5").start().until_ready()
    job_id = Api(daemon.address)("POST", "/v1/jobs", {"task": "chat", "payload": SLOW, "max_attempts": 1}).json[
        "job_id"
    ]
    wait_until(lambda: daemon.get(f"/v1/jobs/{job_id}")[1]["status"] == "running", daemon.log, 10.0)

    assert daemon.stop() == 0
    daemon.start().until_ready()

    wait_until(lambda: daemon.get(f"/v1/jobs/{job_id}")[1]["status"] == "running", daemon.log, 10.0)
    attempts = daemon.get(f"/v1/jobs/{job_id}")[1]["attempts"]
    assert [attempt.get("outcome") for attempt in attempts] == ["released", None]
    cancelled = Api(daemon.address)("POST", f"/v1/jobs/{job_id}/cancel")
    assert cancelled.status in (200, 202)
    wait_until(lambda: daemon.get(f"/v1/jobs/{job_id}")[1]["status"] == "canceled", daemon.log, 20)


def test_function_that_says_task_is_run(folder: Path, jobd: Callable[..., Jobd]) -> None:
    (folder / "my_tasks.py").write_text(
        "from jobd import task\n@task\ndef double(payload, ctx):\n    ctx.progress(1)\n    return 2 * payload['n']\n"
    )
    daemon = jobd(JOBD_TASKS_FROM='["my_tasks"]', PYTHONPATH=f"{environment({})['PYTHONPATH']}:{folder}")
    daemon.start().until_ready()

    done = run_jobd("submit", "double", "--payload", '{"n":21}', "--wait", "--data-dir", str(daemon.data_dir))

    assert (done.returncode, done.stdout) == (0, "42\n")


def test_wrong_handler_refuses_the_start_in_one_line(folder: Path) -> None:
    (folder / "jobd.toml").write_text('[tasks.x]\nrun = "python"\nhandler = "no_such_module:f"\n')

    refused = run_jobd("serve", "--config", str(folder / "jobd.toml"), "--data-dir", str(folder / "data"))

    assert refused.returncode == 78
    assert refused.stderr == (
        'jobd: tasks.x.handler = "no_such_module:f": cannot import no_such_module (ModuleNotFoundError: No module named'
        " 'no_such_module'); it is looked for in the working directory / and among the packages of"
        f" {sys.executable}\n"
    )


def test_handler_that_never_returns_does_not_keep_jobd_from_ending(folder: Path, jobd: Callable[..., Jobd]) -> None:
    (folder / "hangs.py").write_text("import time\ndef f(payload, ctx):\n    ctx.log('here')\n    time.sleep(600)\n")
    (folder / "jobd.toml").write_text('drain_s = 0.5\n[tasks.hang]\nrun = "python"\nhandler = "hangs:f"\n')
    daemon = jobd(None, "--config", str(folder / "jobd.toml"), PYTHONPATH=f"{environment({})['PYTHONPATH']}:{folder}")
    daemon.start().until_ready()
    job_id = Api(daemon.address)("POST", "/v1/jobs", {"task": "hang", "payload": {}}).json["job_id"]
    wait_until(lambda: daemon.get(f"/v1/jobs/{job_id}")[1]["status"] == "running", daemon.log, 10.0)

    daemon.signal(signal.SIGTERM)

    assert daemon.wait() == 0, daemon.log()


def test_the_job_of_a_killed_jobd_runs_again_as_soon_as_it_is_back(jobd: Callable[..., Jobd]) -> None:
    """Its lease would last for another minute, but who holds the data directory knows that its holder is dead."""
    daemon = jobd().start().until_ready()
    body = {"task": "chat", "payload": {"seconds": 600, "tokens": 1}}
    job_id = Api(daemon.address)("POST", "/v1/jobs", body).json["job_id"]

    def attempts() -> list[str | None]:
        job = Api(daemon.address)("GET", f"/v1/jobs/{job_id}").json
        return [attempt["outcome"] for attempt in job["attempts"]]

    wait_until(lambda: attempts() == [None], daemon.log, 10)
    daemon.kill()
    daemon.start().until_ready()

    wait_until(lambda: attempts() == ["interrupted", None], daemon.log, 15)

"""A jobd that a test starts: whatever becomes of the test, nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobd.errors import ServerFailed
from jobd.testing import start_server
from jobd.testing.template import OWN, Template, digest
from tests.support.daemon import TOP, is_alive
from tests.support.prepared import KEPT
from tests.support.wait import wait_until

#: Starts a jobd, says where it is, and is killed.
KILLED = """
import sys, time
from pathlib import Path
from jobd.testing import start_server
server = start_server(templates=Path(sys.argv[1]))
print(server.data_dir, flush=True)
time.sleep(600)
"""


SHOP = """
[queues.default]
slots = 4
[tasks.where]
run = "command"
argv = ["sh", "-c", "echo $SHOP"]
env = ["SHOP"]
"""


def test_stopped_server_leaves_nothing() -> None:
    with start_server(templates=KEPT) as server:
        assert server.run("chat", {"seconds": 0, "tokens": 1}).status == "done"
        postmaster = int((server.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
        assert is_alive(postmaster)

    server.stop()

    assert not server.data_dir.parent.exists()
    assert not is_alive(postmaster)


def test_settings_win_over_the_file_and_variables_reach_tasks() -> None:
    with start_server(
        SHOP, settings={"queues.default.slots": 1}, variables={"SHOP": '"corner"'}, templates=KEPT
    ) as server:
        job = server.run("where")

        assert [queue.slots for queue in server.client.queues()] == [1]
        assert job.result == "corner", (job, server.log())


def test_server_that_does_not_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("jobd.testing.server._has_room", lambda place: False)
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    with pytest.raises(ServerFailed, match=r"no jobd for a test: .*queues\.default\.slots"):
        start_server("[queues.default]\nslots = -1\n", templates=KEPT)

    assert list(folder.iterdir()) == []


def test_folder_to_import_from_that_is_not_there_is_named(folder: Path) -> None:
    with start_server(templates=KEPT) as other:
        with pytest.raises(ServerFailed, match=r"no jobd for a test: FileNotFoundError: .*gone"):
            start_server(root=folder / "gone", templates=KEPT)

        assert other.client.stats() is not None


def test_templates_that_cannot_be_kept_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("jobd.testing.server._has_room", lambda place: False)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    in_the_way = folder / "file"
    in_the_way.touch()

    with pytest.raises(ServerFailed, match=r"its data directory cannot be prepared: .*file"):
        start_server(templates=in_the_way / "templates")

    assert list(folder.iterdir()) == [in_the_way]
    with start_server(templates=KEPT) as server:  # the process that forks goes on
        assert server.url.startswith("http://127.0.0.1:")


def test_server_ends_with_tests_that_are_killed() -> None:
    variables = {**os.environ, "PYTHONPATH": str(TOP)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(KEPT)], stdout=subprocess.PIPE, env=variables, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        data_dir = Path(process.stdout.readline().strip())
    postmaster = int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])

    process.send_signal(signal.SIGKILL)
    process.wait()

    wait_until(lambda: not data_dir.parent.exists(), "its folder is left", 60)
    assert not is_alive(postmaster)


#: Starts a jobd that never becomes ready: its task is imported for ever.
STUCK = """
import sys
from pathlib import Path
from jobd.testing import start_server
start_server('tasks_from = ["stuck"]', root=Path(sys.argv[2]), templates=Path(sys.argv[1]))
"""


def test_server_that_does_not_become_ready_ends_with_tests_that_are_killed(folder: Path) -> None:
    (folder / "stuck.py").write_text(
        "import os, time\nfrom pathlib import Path\nPath('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(TOP)}
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(KEPT), str(folder)], env=variables)
    pid = int(wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "not started", 60))

    process.kill()
    process.wait()

    wait_until(lambda: not is_alive(pid), "it is left", 60)


def test_template_is_made_once_and_has_nothing_of_its_own(folder: Path) -> None:
    Template(KEPT).copy_to(folder / "one")
    kept = KEPT / digest()
    made_at = (kept / "postgres" / "PG_VERSION").stat().st_mtime_ns

    Template(KEPT).copy_to(folder / "two")

    assert (kept / "postgres" / "PG_VERSION").stat().st_mtime_ns == made_at
    assert (folder / "two" / "postgres" / "PG_VERSION").read_text() == "18\n"
    assert not any((folder / "two" / name).exists() for name in OWN)

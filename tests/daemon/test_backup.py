"""Backups of a jobd at work, put back elsewhere: nothing that was acknowledged is lost, and nothing old is believed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from jobd.backup.archive import opened
from jobd.backup.make import Backup
from jobd.backup.output import new_file
from jobd.config.model import Config
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.lifecycle.prune import LEADER_KEY
from jobd.servers.postgres import PROGRAM
from jobd.store.postgres import Database
from tests.support.daemon import Jobd, environment
from tests.support.forms import send_file
from tests.support.wait import wait_until
from tests.support.workerless import CONFIG, WorkerlessDaemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(180)

LARGE = {"text": "é" * 60_000, "numbers": list(range(1000))}
KEY = {"Idempotency-Key": "once"}


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobd", *map(str, arguments)],
        cwd="/",
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=90,
    )


def succeed(*arguments: str | Path) -> Any:
    """What a command with --json says."""
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class BackgroundSubmits:
    """Submits jobs, one after the other, until told to stop."""

    def __init__(self, workerless: WorkerlessDaemon) -> None:
        self.acknowledged: list[str] = []
        self._workerless = workerless
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.acknowledged.append(self._workerless.submit(queue="gpu"))

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, lambda: f"only {len(self.acknowledged)} submits", 60.0)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)


class Worlds:
    """A jobd, a backup of it that was taken under load, and what became of the backup."""

    def __init__(self, old: WorkerlessDaemon, folder: Path) -> None:
        self.old = old
        self.folder = folder
        self.file = folder / "b.tar"
        self.large = self._done(old, LARGE)
        self.small = self._done(old, {"n": 1})
        self.sent: Any = send_file(old.api, b"of a client", filename="client.jsonl").json
        self.keyed: str = self.submit_with_key(old)
        self.held = old.running(queue="slow", max_attempts=1)
        self.canceled = old.submit()
        old.api("POST", f"/v1/jobs/{self.canceled}/cancel")
        self.before, self.made = self._back_up_under_load(old)
        self.restored = succeed("restore", self.file, "--data-dir", folder / "new")

    @staticmethod
    def _done(old: WorkerlessDaemon, result: object) -> str:
        held = old.running(queue="slow")
        assert old.complete(held, result) == {"ok": True, "ack": True}
        return str(held["job_id"])

    @staticmethod
    def submit_with_key(workerless: WorkerlessDaemon) -> Any:
        answer = workerless.api("POST", "/v1/jobs", {"task": "chat", "payload": {"n": 2}}, KEY)
        assert answer.status in (200, 202), answer
        return answer.json["job_id"]

    def _back_up_under_load(self, old: WorkerlessDaemon) -> tuple[list[str], Any]:
        load = BackgroundSubmits(old)
        load.wait_for(50)
        before = list(load.acknowledged)
        made = succeed("backup", self.file, "--data-dir", old.daemon.data_dir)
        load.wait_for(len(load.acknowledged) + 5)
        load.end()
        return before, made


@contextlib.contextmanager
def depot_in(folder: Path, name: str) -> Iterator[WorkerlessDaemon]:
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / name, "--config", str(folder / "jobd.toml")).start()
    try:
        wait_until(lambda: daemon.readiness()[0] == 200, daemon.log, 60.0)
        with start_blocking_portal() as portal:
            database = Database(daemon.addresses["DATABASE_URL"], 3)
            with portal.wrap_async_context_manager(database.opened()):
                yield WorkerlessDaemon(daemon, portal, database)
    finally:
        daemon.clean_up()


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="jt-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def worlds(top: Path) -> Iterator[Worlds]:
    with depot_in(top, "old") as old:
        yield Worlds(old, top)


@pytest.fixture(scope="module")
def new(worlds: Worlds) -> Iterator[WorkerlessDaemon]:
    """The old one still runs beside it, as it may when a board is copied."""
    with depot_in(worlds.folder, "new") as workerless:
        yield workerless


# What is there again


def test_every_job_acknowledged_before_the_backup_is_there(worlds: Worlds, new: WorkerlessDaemon) -> None:
    there = {str(job_id) for (job_id,) in new.rows("SELECT id FROM jobs")}

    assert set(worlds.before) <= there
    assert {worlds.large, worlds.small, worlds.keyed, worlds.held["job_id"], worlds.canceled} <= there
    assert len(there) == sum(worlds.made["contents"]["jobs"].values())


def test_restored_counts_are_those_of_the_jobs(worlds: Worlds, new: WorkerlessDaemon) -> None:
    counted = new.rows("SELECT sum(queued), sum(running), sum(done), sum(canceled) FROM queue_counts")
    found = new.rows(
        "SELECT count(*) FILTER (WHERE status = 'queued'), count(*) FILTER (WHERE status = 'running'),"
        " count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status = 'canceled') FROM jobs"
    )

    assert counted == found


def test_results_can_be_read_from_their_rows_and_files(worlds: Worlds, new: WorkerlessDaemon) -> None:
    assert new.api("GET", f"/v1/jobs/{worlds.large}/result").json == LARGE
    assert new.read(worlds.small)["result"] == {"n": 1}
    assert worlds.made["contents"]["result_files"] == 2
    assert worlds.restored["results_missing"] == []
    (file,) = new.daemon.data_dir.glob("results/??/*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_files_of_clients_can_be_read(worlds: Worlds, new: WorkerlessDaemon) -> None:
    file_id = worlds.sent["id"]

    assert new.api("GET", f"/v1/files/{file_id}").json == worlds.sent
    assert new.api("GET", f"/v1/files/{file_id}/content").body == b"of a client"
    (file,) = new.daemon.data_dir.glob("files/??/*.data")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_restored_jobs_reach_workers_through_a_new_redis(worlds: Worlds, new: WorkerlessDaemon) -> None:
    claimed = new.claim("jobs:stream:gpu")

    assert claimed["job_id"] in worlds.before
    held = {"worker_id": "w-1", **{name: claimed[name] for name in ("job_id", "attempt_id", "lease_token")}}
    assert new.complete({**held, "stream": claimed["stream"], "message_id": claimed["message_id"]}, {})["ok"]


def test_same_key_gets_the_same_job_after_a_restore(worlds: Worlds, new: WorkerlessDaemon) -> None:
    assert worlds.submit_with_key(new) == worlds.keyed


def test_job_that_was_running_waits_again_and_its_old_holder_changes_nothing(
    worlds: Worlds, new: WorkerlessDaemon
) -> None:
    job_id = worlds.held["job_id"]
    assert worlds.restored["handed_back"] == 1
    assert new.read(job_id)["status"] == "queued"
    before = new.state_of(job_id)

    assert new.beat(worlds.held)["ok"] is False
    assert new.complete(worlds.held, {"from": "another world"})["ok"] is False
    assert new.fail(worlds.held, retryable=False)["ok"] is False

    assert new.state_of(job_id) == before
    again = new.claim("jobs:stream:slow")  # it may have one attempt, and was not charged for the one that was cut off
    assert again["job_id"] == job_id
    assert new.complete({"worker_id": "w-1", **{k: again[k] for k in worlds.held if k in again}}, {"n": 3})["ok"]
    assert new.read(job_id)["result"] == {"n": 3}


def test_restored_installation_has_a_name_of_its_own(worlds: Worlds, new: WorkerlessDaemon) -> None:
    assert new.rows("SELECT id FROM installation") != worlds.old.rows("SELECT id FROM installation")
    assert new.rows("SELECT action FROM audit ORDER BY id DESC LIMIT 1") == [("backup.restore",)]


# While it is taken


class Prying:
    """A place for a backup to go to, which looks at each result file whether jobs could be pruned just then."""

    def __init__(self, workerless: WorkerlessDaemon) -> None:
        self._workerless = workerless
        self.could_prune: list[bool] = []

    def write(self, data: bytes) -> int:
        if b"results/" in data[:512]:
            self.could_prune.append(can_prune(self._workerless))
        return len(data)

    def tell(self) -> int:
        return 0


def can_prune(workerless: WorkerlessDaemon) -> bool:
    ((could,),) = workerless.rows(
        "SELECT CASE WHEN pg_try_advisory_lock($1) THEN pg_advisory_unlock($1) ELSE false END", LEADER_KEY
    )
    return bool(could)


async def test_no_job_is_pruned_while_its_result_file_is_to_be_copied(worlds: Worlds) -> None:
    sink = Prying(worlds.old)
    data_dir = DataDir(worlds.folder / "old", server_account())

    await Backup(data_dir, Config()).write(sink, with_results=True)  # type: ignore[arg-type]  # all of it that is used

    assert sink.could_prune == [False]
    wait_until(lambda: can_prune(worlds.old), "nothing can be pruned after the backup", 30.0)


async def test_long_dump_is_cut_into_pieces_that_make_a_whole(
    worlds: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.backup.make.PIECE_BYTES", 4096)
    monkeypatch.setattr("jobd.backup.tools.READ_BYTES", 1000)
    with new_file(tmp_path / "b.tar") as sink:
        await Backup(DataDir(worlds.folder / "old", server_account()), Config()).write(sink, with_results=False)

    with opened(tmp_path / "b.tar") as archive:
        dump = b"".join(archive.database())
        pieces = [member for member in archive.manifest.members if member.name.startswith("database/")]

    assert len(pieces) > 5
    pg_restore = PROGRAM.installed().with_name("pg_restore")
    listed = await anyio.run_process([pg_restore, "--list"], input=dump)
    assert b"TABLE DATA jobd jobs " in listed.stdout


def test_backup_goes_on_without_a_result_file_that_is_lost_and_says_so(worlds: Worlds) -> None:
    (file,) = worlds.old.daemon.data_dir.glob("results/??/*.json")
    aside = file.rename(worlds.folder / "aside")
    try:
        done = command("backup", worlds.folder / "lost.tar", "--data-dir", worlds.folder / "old")
    finally:
        aside.rename(file)

    assert done.returncode == 0, done.stderr
    assert "1 result files are missing" in done.stderr
    found = succeed("restore", worlds.folder / "lost.tar", "--check")
    assert found["contents"]["results_missing"] == [str(file.relative_to(worlds.folder / "old"))]


# What is refused


def test_backup_does_not_write_over_a_file_unasked(worlds: Worlds) -> None:
    before = worlds.file.read_bytes()

    done = command("backup", worlds.file, "--data-dir", worlds.folder / "old")

    assert (done.returncode, worlds.file.read_bytes()) == (73, before)
    assert "--force" in done.stderr


def test_backup_goes_to_a_pipe_whole(worlds: Worlds) -> None:
    piped = worlds.folder / "piped.tar"
    with piped.open("wb") as out:
        argv = [sys.executable, "-m", "jobd", "backup", "-", "--data-dir", str(worlds.folder / "old")]
        done = subprocess.run(argv, cwd="/", env=environment({}), stdout=out, stderr=subprocess.PIPE, timeout=90)
    assert done.returncode == 0, done.stderr

    assert succeed("restore", piped, "--check")["contents"]["result_files"] == 2


REFUSED: dict[str, tuple[Callable[[Worlds], list[str | Path]], int, str]] = {
    "backup of nothing": (
        lambda w: ["backup", w.folder / "x.tar", "--data-dir", w.folder / "none"],
        73,
        "no jobd in it",
    ),
    "restore of nothing": (lambda w: ["restore", w.folder / "none.tar", "--data-dir", w.folder / "x"], 65, "not there"),
    "damaged": (lambda w: ["restore", _damaged(w), "--data-dir", w.folder / "x"], 65, "damaged"),
    "running": (lambda w: ["restore", w.file, "--data-dir", w.folder / "old"], 75, "--data-dir"),
    "not empty": (lambda w: ["restore", w.file, "--data-dir", _with_a_file(w)], 73, "not empty (precious.txt)"),
    "a file": (lambda w: ["restore", w.file, "--data-dir", w.file], 73, "not a directory"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_command_says_why_and_changes_nothing(worlds: Worlds, what: str) -> None:
    make, code, word = REFUSED[what]
    arguments = make(worlds)
    before = sorted(worlds.folder.iterdir())

    done = command(*arguments)

    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert word in done.stderr
    assert sorted(worlds.folder.iterdir()) == before


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_configured_postgres_is_left_to_its_own_tools(worlds: Worlds, verb: str) -> None:
    config = worlds.folder / "own.toml"
    config.write_text('[postgres]\nurl = "postgresql://me@db.example/jobd"\n')

    done = command(verb, worlds.folder / "x.tar", "--config", config)

    assert done.returncode == 78
    assert "pg_dump" in done.stderr


def _damaged(worlds: Worlds) -> Path:
    data, path = bytearray(worlds.file.read_bytes()), worlds.folder / "damaged.tar"
    data[2000] ^= 1
    path.write_bytes(data)
    return path


def _with_a_file(worlds: Worlds) -> Path:
    path = worlds.folder / "full"
    path.mkdir(exist_ok=True)
    (path / "precious.txt").write_text("keep me")
    return path


# Restores that are killed

#: Runs `jobd restore` and kills it, its server left behind, in the place of the named function's nth call.
KILLED = """
import importlib, os, signal, sys
module, name, nth, *arguments = sys.argv[1:]
module = importlib.import_module(module)
real, left = getattr(module, name), int(nth)

def deadly(*args, **named):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **named)

setattr(module, name, deadly)
from jobd.cli.main import main
main(arguments)
"""

POINTS = [
    pytest.param("jobd.backup.load", "write_to", 1, id="before the rows", marks=pytest.mark.slow),
    pytest.param("jobd.backup.restore", "_write_results", 1, id="before the files", marks=pytest.mark.slow),
    pytest.param("jobd.backup.staging", "take_over", 1, id="before the moves", marks=pytest.mark.slow),
    pytest.param("jobd.backup.staging", "_move", 2, id="after the first move", marks=pytest.mark.slow),
    pytest.param("jobd.backup.staging", "_move", 3, id="before the last move"),
]


@pytest.fixture
def target(folder: Path) -> Iterator[Path]:
    yield folder / "data"
    Jobd(folder / "data" / "restoring").clean_up()
    Jobd(folder / "data").clean_up()


def kill_restore(file: Path, target: Path, module: str, name: str, nth: int = 1) -> None:
    argv = [sys.executable, "-c", KILLED, module, name, str(nth), "restore", str(file), "--data-dir", str(target)]
    done = subprocess.run(argv, cwd="/", env=environment({}), capture_output=True, text=True, timeout=90)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(("module", "name", "nth"), POINTS)
def test_killed_restore_is_not_taken_for_whole(worlds: Worlds, target: Path, module: str, name: str, nth: int) -> None:
    kill_restore(worlds.file, target, module, name, nth)

    done = command("serve", "--data-dir", target, "--port", "0")

    assert done.returncode == 73, done.stderr
    assert "run jobd restore again" in done.stderr
    assert not (target / "postgres").exists()


def test_killed_restore_can_be_run_again(worlds: Worlds, target: Path) -> None:
    """Its server is still running, and the result files are where they belong already."""
    kill_restore(worlds.file, target, "jobd.backup.load", "audit")
    for name in ("results", "files"):
        shutil.copytree(worlds.folder / "old" / name, target / name)
    assert command("serve", "--data-dir", target, "--port", "0").returncode == 73

    again = succeed("restore", worlds.file, "--data-dir", target)

    assert again["contents"] == worlds.made["contents"]
    assert sorted(os.listdir(target)) == ["files", "jobd.lock", "postgres", "results", "run"]


def test_restore_killed_after_its_last_move_has_happened(worlds: Worlds, target: Path) -> None:
    kill_restore(worlds.file, target, "jobd.backup.staging", "_remove")
    assert (target / "restoring").exists()

    made = succeed("backup", target.parent / "again.tar", "--data-dir", target)  # of a jobd that does not run

    assert made["contents"]["jobs"]["done"] == worlds.made["contents"]["jobs"]["done"]
    assert made["contents"]["result_files"] == 2
    assert not (target / "restoring").exists()

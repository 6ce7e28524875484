"""A jobd that finds the data of an older one keeps a backup and migrates; of a newer one it keeps its hands off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal

from jobd.backup.archive import opened
from jobd.backup.keep import Keeper
from jobd.backup.offline import bring_up_to_date, connected
from jobd.config.model import Config
from jobd.errors import DiskFull
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.store import migrate
from tests.support.daemon import Jobd, environment
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.store.migrate import Migration

pytestmark = pytest.mark.timeout(180)

KNOWN = migrate.known_migrations()
JOB = "01a1e3de-a05c-7000-a683-9e401723bb2b"
REF = f"results/ab/{JOB}-0123456789abcdef0123456789abcdef.json"
#: A job that an older jobd has finished.
OLD_JOB = f"""
INSERT INTO jobd.jobs (id, task, queue, payload, status, run_after, enqueue_id, version, attempt_no, attempt_count,
    max_attempts, timeout_s, ttl_s, result_ref, created_at, updated_at, finished_at)
VALUES ('{JOB}', 'chat', 'default', '{{}}', 'done', now(), 1, 3, 1, 1, 3, 60, 3600, '{REF}', now(), now(), now())
"""


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "jobd", *map(str, arguments)]
    return subprocess.run(argv, cwd="/", env=environment({}), capture_output=True, text=True, timeout=90)


def check(data_dir: Path) -> tuple[int, Any]:
    done = command("upgrade-check", "--json", "--data-dir", data_dir)
    return done.returncode, json.loads(done.stdout)


def config_of(data_dir: Path) -> Config:
    return Config(data_dir=str(data_dir))


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """The data of a jobd that lacked the newest migration."""
    top = Path(tempfile.mkdtemp(prefix="jt-"))
    top.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal:
        patch.setattr(migrate, "known_migrations", lambda: KNOWN[:-1])
        portal.call(_make, top / "data")
    yield top / "data"
    shutil.rmtree(top)


async def _make(data_dir: Path) -> None:
    assert await bring_up_to_date(config_of(data_dir), only_check=False) == KNOWN[:-1]
    async with connected(config_of(data_dir)) as connection:
        await connection.execute(OLD_JOB)
    (data_dir / REF).parent.mkdir(parents=True, mode=0o700)
    (data_dir / REF).write_text('{"kept": true}')


@pytest.fixture
def older(template: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-a", template, folder / "data"], check=True)
    return folder / "data"


def test_first_start_makes_no_backup(template: Path) -> None:
    assert not (template / "backups").exists()


def test_upgrade_check_tells_what_would_happen_and_does_nothing(older: Path) -> None:
    code, found = check(older)

    newest = KNOWN[-1]
    assert (code, found["verdict"], found["schema"], found["knows"]) == (0, "migrate", len(KNOWN) - 1, len(KNOWN))
    assert found["pending"] == [f"{newest.number:04d} {newest.name}"]
    assert 0 < found["backup_bytes"] < found["free_bytes"]
    assert not (older / "backups").exists()
    assert check(older)[1]["schema"] == len(KNOWN) - 1


def test_serve_keeps_a_backup_then_migrates(older: Path) -> None:
    daemon = Jobd(older).start()
    try:
        wait_until(lambda: daemon.readiness()[0] == 200, daemon.log, 60.0)
        (kept,) = (older / "backups").iterdir()

        assert daemon.get(f"/v1/jobs/{JOB}/result") == (200, {"kept": True})
        assert f"kept a backup: {kept}" in daemon.log()
        assert kept.stat().st_mode & 0o777 == 0o600
        with opened(kept) as archive:
            assert (archive.head.schema, archive.head.holds) == (len(KNOWN) - 1, "database")
        assert check(older)[1]["verdict"] == "current"
        daemon.stop()
        # It lies in the data directory that has its result files, and is brought up to date on the way.
        restored = command("restore", kept, "--data-dir", older.parent / "new", "--json")
        assert restored.returncode == 0, restored.stderr
        assert (older.parent / "new" / REF).read_text() == '{"kept": true}'
        assert len(json.loads(restored.stdout)["migrated"]) == 1
        assert json.loads(restored.stdout)["results_missing"] == []
    finally:
        daemon.clean_up()


async def test_migration_without_room_for_a_backup_is_refused(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(config_of(older)) as connection:
        monkeypatch.setattr(DataDir, "free_bytes", lambda self: 10 << 20)
        keeper = Keeper(DataDir(older, server_account()), config_of(older))
        with pytest.raises(DiskFull, match="jobd migrate --no-backup"):
            await migrate.migrate(connection, keeper.keep)

        assert await migrate.pending_migrations(connection) == KNOWN[-1:]
        assert not (older / "backups").exists()


async def test_migration_tried_again_keeps_one_backup(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = KNOWN[-1]
    broken: Migration = type(newest)(newest.number, newest.name, "SELECT 1/0")
    keeper = Keeper(DataDir(older, server_account()), config_of(older))
    async with connected(config_of(older)) as connection:
        monkeypatch.setattr(migrate, "known_migrations", lambda: [*KNOWN[:-1], broken])
        for _ in range(2):
            with pytest.raises(Exception, match="division by zero"):
                await migrate.migrate(connection, keeper.keep)

    assert len(os.listdir(older / "backups")) == 1


def test_migrate_can_go_without_a_backup(older: Path) -> None:
    done = command("migrate", "--no-backup", "--data-dir", older)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("applied:")
    assert not (older / "backups").exists()


async def test_data_of_a_newer_jobd_is_refused_and_left_alone(older: Path) -> None:
    async with connected(config_of(older)) as connection:
        await connection.execute("INSERT INTO jobd.schema_migrations (number, name) VALUES (9999, 'tomorrow')")

    done = command("serve", "--port", "0", "--data-dir", older)
    code, found = check(older)

    assert done.returncode == 65
    assert "9999" in done.stderr
    assert (code, found["verdict"]) == (1, "refused")
    assert "newer jobd" in found["why"]
    assert not (older / "backups").exists()


def test_upgrade_check_of_a_new_data_dir_makes_none(folder: Path) -> None:
    code, found = check(folder / "data")

    assert (code, found["verdict"]) == (0, "first start")
    assert not (folder / "data").exists()


def test_upgrade_check_of_another_postgres_is_refused(folder: Path) -> None:
    (folder / "data" / "postgres").mkdir(parents=True)
    (folder / "data").chmod(0o700)
    (folder / "data" / "jobd.lock").touch()
    (folder / "data" / "postgres" / "PG_VERSION").write_text("17\n")

    done = command("upgrade-check", "--data-dir", folder / "data")

    assert done.returncode == 1
    assert "made by Postgres 17" in done.stdout

"""jobd with the distribution's Postgres and Redis as its own servers: served, looked at, backed up and restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobd.servers.postgres import MAJOR
from tests.packaging.serving import run_first_job
from tests.support.daemon import Jobd, run_jobd
from tests.support.prepared import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Debian keeps each major version in a folder of its own, off the PATH.
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
REDIS = shutil.which("valkey-server") or shutil.which("redis-server")

needs_postgres = pytest.mark.skipif(
    not POSTGRES, reason="NOT CHECKED: no Postgres here (Debian: apt install postgresql)"
)
needs_redis = pytest.mark.skipif(not REDIS, reason="NOT CHECKED: no Redis here (Debian: apt install redis-server)")


@pytest.fixture
def variables() -> dict[str, str]:
    given = {"JOBD_POSTGRES_PROGRAM": str(POSTGRES[-1])} if POSTGRES else {}
    return {**given, **({"JOBD_REDIS_PROGRAM": REDIS} if REDIS else {})}


@pytest.fixture
def daemon(folder: Path, variables: dict[str, str]) -> Iterator[Jobd]:
    daemon = Jobd(folder / "data", **variables)
    yield daemon
    daemon.clean_up()


@needs_postgres
@needs_redis
def test_servers_of_the_distribution_carry_jobs_backups_and_a_restore(
    daemon: Jobd, variables: dict[str, str], folder: Path
) -> None:
    daemon.start(prepared=False).until_ready()
    program = Path(f"/proc/{daemon.server_pid('postgres')}/exe").readlink()

    status = run_first_job(daemon.addresses["JOBD_URL"])
    doctor = run_jobd("doctor", "--json", "--data-dir", str(daemon.data_dir), **variables)
    backup = run_jobd("backup", str(folder / "b.tar"), "--data-dir", str(daemon.data_dir), **variables)
    stopped = daemon.stop()
    restored = run_jobd("restore", str(folder / "b.tar"), "--data-dir", str(folder / "new"), **variables)
    Jobd(folder / "new").clean_up()

    findings = {finding["check"]: finding for finding in json.loads(doctor.stdout)["checks"]}
    assert (status, stopped, program) == ("done", 0, POSTGRES[-1].resolve())
    assert doctor.returncode == 0, doctor.stdout
    assert findings["postgres program"]["detail"].endswith(f", {POSTGRES[-1]}")
    assert findings["valkey program"]["detail"].endswith(f", {REDIS}")
    assert findings["cluster"]["detail"] == f"Postgres {POSTGRES[-1].parts[-3]}"
    assert backup.returncode == 0, backup.stderr
    assert restored.returncode == 0, restored.stderr


@pytest.mark.skipif(
    not POSTGRES or POSTGRES[-1].parts[-3] == str(MAJOR),
    reason="NOT CHECKED: no Postgres of another major version here",
)
def test_cluster_of_jobds_own_postgres_is_not_given_to_another_major(folder: Path, variables: dict[str, str]) -> None:
    prepare(folder / "own")

    done = run_jobd("migrate", "--data-dir", str(folder / "own"), **variables)

    assert done.returncode == 65, done.stderr
    assert f"was made by Postgres {MAJOR} and this jobd runs {POSTGRES[-1].parts[-3]}; back it up" in done.stderr


@pytest.mark.parametrize(
    ("variable", "path", "code", "complaint"),
    [
        ("JOBD_POSTGRES_PROGRAM", "/nowhere/postgres", 72, "postgres.program = /nowhere/postgres is no file; set "),
        ("JOBD_POSTGRES_PROGRAM", "/bin/sh", 72, "postgres.program = /bin/sh "),
        ("JOBD_POSTGRES_PROGRAM", "postgres", 78, "an absolute path"),
    ],
)
def test_start_with_a_program_that_is_none_is_refused_in_one_line(
    folder: Path, variable: str, path: str, code: int, complaint: str
) -> None:
    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0", **{variable: path})

    assert done.returncode == code, done.stderr
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (folder / "data" / "postgres").exists()


@needs_redis
def test_doctor_names_a_redis_program_that_is_none(folder: Path) -> None:
    done = run_jobd("doctor", "--json", "--data-dir", str(folder / "data"), JOBD_REDIS_PROGRAM="/bin/sh")

    (finding,) = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "valkey program"]
    assert done.returncode == 1
    assert finding["verdict"] == "BAD"
    assert finding["remedy"].startswith("set redis.program to ")

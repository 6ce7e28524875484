"""A server's program that the configuration names: what is refused, by what it says of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobd.config.model import Config, Postgres, Redis, broken_rules
from jobd.errors import ServerMissing, ServerRefused, StartRefused, WrongVersion
from jobd.servers import postgres, valkey
from jobd.servers.program import GivenProgram


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


POSTGRES = [
    ("echo 'postgres (PostgreSQL) 13.9'", ServerRefused, "is Postgres 13; 14 or newer is needed"),
    (
        "echo 'Redis server v=7.0.15 sha=0'",
        ServerMissing,
        "is no Postgres, it says 'Redis server v=7.0.15 sha=0'; set ",
    ),
    ("exit 3", ServerMissing, "does not run: "),
    ("printf '\\377'", ServerMissing, "does not run: "),
    ("true", ServerMissing, "is no Postgres, it says ''; set postgres.program to"),
]
REDIS = [
    ("echo 'Redis server v=6.2.14 sha=0'", ServerRefused, "is Redis 6.2; 7.0 or newer is needed"),
    ("echo 'Valkey server v=7.1.0 sha=0'", ServerRefused, "is Valkey 7.1; 7.2 or newer is needed"),
    ("echo 'postgres (PostgreSQL) 18.1'", ServerMissing, "is no Valkey and no Redis, it says 'postgres"),
    ("exit 3", ServerMissing, "does not run: "),
]


@pytest.mark.parametrize(("text", "kind", "complaint"), POSTGRES)
def test_unfit_postgres_is_refused_with_option_and_remedy(
    tmp_path: Path, text: str, kind: type[StartRefused], complaint: str
) -> None:
    config = Config(postgres=Postgres(program=script(tmp_path, text)))

    with pytest.raises(kind) as raised:
        postgres.major_of(config)

    assert str(raised.value).startswith(f"postgres.program = {tmp_path}/program ")
    assert complaint in str(raised.value)


@pytest.mark.parametrize(("text", "kind", "complaint"), REDIS)
def test_unfit_redis_is_refused_with_option_and_remedy(
    tmp_path: Path, text: str, kind: type[StartRefused], complaint: str
) -> None:
    config = Config(redis=Redis(program=script(tmp_path, text)))

    with pytest.raises(kind) as raised:
        valkey.check_version(valkey.program_of(config))

    assert str(raised.value).startswith(f"redis.program = {tmp_path}/program ")
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    "said", ["Redis server v=7.0.15 sha=0", "Valkey server v=8.1.4 sha=0", "Redis server v=8.10.1"]
)
def test_fit_versions_are_taken(tmp_path: Path, said: str) -> None:
    valkey.check_version(GivenProgram("redis.program", script(tmp_path, f"echo '{said}'")))


@pytest.mark.parametrize("said", ["14.20", "15.18 (Debian 15.18-0+deb12u1)", "18.1", "19beta1"])
def test_major_version_is_read_from_what_postgres_says(tmp_path: Path, said: str) -> None:
    config = Config(postgres=Postgres(program=script(tmp_path, f"echo 'postgres (PostgreSQL) {said}'")))

    assert postgres.major_of(config) == int(said[:2])


@pytest.mark.parametrize(("mode", "complaint"), [(None, "is no file"), (0o644, "is not executable; chmod +x it")])
def test_missing_program_is_refused(tmp_path: Path, mode: int | None, complaint: str) -> None:
    path = str(tmp_path / "nothing") if mode is None else script(tmp_path, "", mode)

    with pytest.raises(ServerMissing, match=complaint.replace("+", r"\+")):
        GivenProgram("postgres.program", path).installed()


def test_program_without_its_tools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match=r"/initdb is missing or cannot run; install all programs of that Postgres"):
        postgres.tool_beside(Path(script(tmp_path, "")), "initdb")


def test_cluster_of_another_major_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("18\n")

    postgres.check_major(tmp_path)
    with pytest.raises(WrongVersion, match=r"was made by Postgres 18 and this jobd runs 17; back it up"):
        postgres.check_major(tmp_path, 17)


@pytest.mark.parametrize(
    "config",
    [
        Config(postgres=Postgres(url="postgres://h/d", program="/bin/postgres")),
        Config(redis=Redis(url="redis://h", program="/bin/redis-server")),
    ],
    ids=["postgres", "redis"],
)
def test_program_beside_a_url_is_refused(config: Config) -> None:
    (broken,) = broken_rules(config)

    assert "leave one of them empty" in broken.message


def test_what_comes_with_jobd_is_not_asked_for_its_version() -> None:
    assert postgres.major_of(Config()) == postgres.MAJOR
    assert os.path.basename(postgres.program_of(Config()).installed()) == "postgres"
    valkey.check_version(valkey.program_of(Config()))

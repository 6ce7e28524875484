"""The commands beside `serve`: what they print for people and for programs, and their exit codes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd


def examine(data_dir: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = run_jobd("doctor", "--json", "--data-dir", str(data_dir), *arguments)
    return done.returncode, {check["check"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_finds_nothing_wrong_with_a_running_jobd(shared: Jobd) -> None:
    code, checks = examine(shared.data_dir)

    assert code == 0, checks
    assert {check["verdict"] for check in checks.values()} <= {"OK", "WARN"}
    assert {"python", "data directory", "disk", "postgres", "redis", "gateway"} <= set(checks)
    assert checks["postgres program"]["detail"] == "postgres (PostgreSQL) 18.6"


def test_doctor_of_a_new_data_dir_changes_nothing(folder: Path) -> None:
    code, checks = examine(folder / "data", "--config", str(_config(folder, "")))

    assert code in (0, 1)
    assert checks["data directory"]["detail"].endswith("to be made")
    assert not (folder / "data").exists()


def test_doctor_names_what_is_wrong_and_the_remedy(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, checks = examine(folder / "data", "--config", str(_config(folder, f"[server]\nport = {port}\n")))

    assert code == 1
    assert checks["address"]["verdict"] == "BAD"
    assert "--port" in checks["address"]["remedy"]


def test_doctor_for_people_is_one_line_a_check_without_colour(shared: Jobd) -> None:
    done = run_jobd("doctor", "--data-dir", str(shared.data_dir))

    assert "OK    configuration" in done.stdout
    assert "\x1b" not in done.stdout


def test_doctor_with_a_bad_configuration_says_so(folder: Path) -> None:
    code, checks = examine(folder / "data", "--config", str(_config(folder, "nonsense = 1\n")))

    assert code == 1
    assert checks["configuration"]["verdict"] == "BAD"


def test_config_show_tells_value_and_origin(folder: Path) -> None:
    file = _config(folder, "[server]\nport = 8080\n")

    done = run_jobd("config", "show", "--origin", "--config", str(file), JOBD_LOG_LEVEL="debug")

    assert f"server.port = 8080  # file {file}\n" in done.stdout
    assert 'log.level = "debug"  # env JOBD_LOG_LEVEL\n' in done.stdout
    assert 'server.host = "127.0.0.1"  # default\n' in done.stdout


def test_config_show_as_json_keeps_types(folder: Path) -> None:
    done = run_jobd("config", "show", "--json", "--config", str(_config(folder, "")), JOBD_SERVER_PORT="0")

    server = json.loads(done.stdout)["config"]["server"]
    assert (server["host"], server["port"]) == ("127.0.0.1", 0)
    assert (server["insecure"], server["allowed_hosts"]) == (False, [])


def test_config_show_masks_passwords(folder: Path) -> None:
    url = "postgresql://jobd:canary@db/jobd"

    for arguments in (("show",), ("show", "--json"), ("show", "--origin")):
        done = run_jobd("config", *arguments, "--config", str(_config(folder, "")), JOBD_POSTGRES_URL=url)
        assert done.returncode == 0
        assert "canary" not in done.stdout + done.stderr


@pytest.mark.parametrize(("text", "code"), [("", 0), ("[server]\nport = 1\n", 0), ("[server]\nport = -1\n", 78)])
def test_config_check(folder: Path, text: str, code: int) -> None:
    done = run_jobd("config", "check", "--config", str(_config(folder, text)))

    assert done.returncode == code


def test_migrate_of_a_stopped_data_dir_starts_postgres_for_it(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    daemon.stop()

    check = run_jobd("migrate", "--check", "--data-dir", str(daemon.data_dir))

    assert (check.returncode, check.stdout) == (0, "the schema is up to date\n")
    assert not daemon.processes()


def test_migrate_check_of_a_new_database_names_what_is_pending(folder: Path, jobd: Callable[..., Jobd]) -> None:
    daemon = jobd()

    check = run_jobd("migrate", "--check", "--data-dir", str(daemon.data_dir))
    applied = run_jobd("migrate", "--data-dir", str(daemon.data_dir))

    assert check.returncode == 1
    assert check.stdout.startswith("pending: 0001 ")
    assert applied.returncode == 0
    assert applied.stdout.startswith("applied: 0001 ")
    assert not daemon.processes()


def test_version_names_the_servers() -> None:
    done = run_jobd("version")

    assert done.returncode == 0
    assert "Postgres 18" in done.stdout
    assert "Valkey 9" in done.stdout


@pytest.mark.parametrize("command", ["serve", "env", "config", "migrate", "doctor", "version"])
def test_every_command_has_help(command: str) -> None:
    done = run_jobd(command, "--help")

    assert done.returncode == 0
    assert "Usage: jobd" in done.stdout


def test_help_lists_examples_and_exit_codes() -> None:
    done = run_jobd("--help")

    assert "jobd serve --port 8080" in done.stdout
    assert "75   another jobd runs on the data directory" in done.stdout


def _config(folder: Path, text: str) -> Path:
    file = folder / "jobd.toml"
    file.write_text(text)
    return file

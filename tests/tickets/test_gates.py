from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

import pytest

from jobd.config.model import GateCommand
from jobd.tickets.gates import at_pointer, is_cheap, passes_schema
from jobd.tickets.pollers import gate_process as command
from jobd.tickets.pollers.gate_process import NotAsked, run_gate_command, run_schema
from jobd.wire.tickets import SchemaGate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pointer", "found"),
    [("", {"a": {"~/": [1, 2]}}), ("/a/~0~1/1", 2), ("/a/~0~1", [1, 2])],
)
def test_a_pointer_leads_to_its_place(pointer: str, found: Any) -> None:
    assert at_pointer({"a": {"~/": [1, 2]}}, pointer) == found


@pytest.mark.parametrize("pointer", ["/b", "/a/0", "/l/2", "/l/-1", "/l/01", "/l/x", "/n/0"])
def test_a_pointer_to_nothing_is_told(pointer: str) -> None:
    with pytest.raises(LookupError):
        at_pointer({"a": {}, "l": [1, 2], "n": 1}, pointer)


def test_a_schema_says_where_the_output_does_not_fit() -> None:
    gate = SchemaGate(schema={"properties": {"a": {"items": {"type": "string"}}}})

    result = passes_schema(gate, {"a": ["x", 3]})

    assert result.result == "FAIL"
    assert "/a/1" in result.reason


async def test_a_pattern_that_would_backtrack_for_ever_does_not() -> None:
    gate = SchemaGate(schema={"pattern": "^(a+)+$"})

    assert passes_schema(gate, "a" * 40 + "b").result == "FAIL"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("exit 0", None),
        ("exec cat > /dev/null", None),
        ('test "$(cat)" = \'{"n":1}\'', None),
        ("exit 3", "exit code 3"),
        ("echo seen; echo 'no cats' >&2; exit 1", "exit code 1: "),
        ("kill -9 $$", "killed by SIGKILL"),
    ],
)
async def test_a_command_passes_an_output_by_its_exit_code(folder: Path, script: str, fault: str | None) -> None:
    said = await run_gate_command(GateCommand(argv=("/bin/sh", "-c", script)), b'{"n":1}', folder / "gates")

    if fault is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(fault)
    assert list((folder / "gates").iterdir()) == []


async def test_a_command_that_takes_too_long_is_ended(folder: Path) -> None:
    said = await run_gate_command(GateCommand(argv=("sleep", "600"), timeout_s=0.2), b"1", folder / "gates")

    assert said == "it took longer than 0.2 s"


async def test_a_command_that_is_not_there_is_told(folder: Path) -> None:
    said = await run_gate_command(GateCommand(argv=("/no/such/program",)), b"1", folder / "gates")

    assert said is not None
    assert said.startswith("cannot start /no/such/program: No such file")


async def test_want_of_descriptors_is_no_verdict(folder: Path) -> None:
    (folder / "gates").mkdir()
    lowest_free = os.open(folder, os.O_RDONLY)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said: list[object] = []
    for spare in range(8):  # wherever in between it meets the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, hard))
        try:
            said.append(await run_gate_command(GateCommand(argv=("true",)), b"1", folder / "gates"))
        except NotAsked as error:
            said.append(str(error).partition(": ")[2])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert set(said) <= {None, "Too many open files"}
    assert said[0] == "Too many open files"
    assert list((folder / "gates").iterdir()) == []


async def test_a_command_sees_no_secret_of_the_daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:canary@/x")

    said = await run_gate_command(
        GateCommand(argv=("/bin/sh", "-c", "env | grep canary && exit 1; exit 0")), b"1", folder / "gates"
    )

    assert said is None


# -- schemas in a process of their own ---------------------------------------------------------------------------------


def trap(depth: int) -> dict[str, Any]:
    """Twice as long with each step."""
    steps: dict[str, Any] = {"s0": {"type": "integer"}}
    for n in range(1, depth + 1):
        steps[f"s{n}"] = {"allOf": [{"$ref": f"#/$defs/s{n - 1}"}] * 2}
    return {"$defs": steps, "$ref": f"#/$defs/s{depth}"}


@pytest.mark.parametrize(
    ("schema", "output_bytes", "cheap"),
    [
        ({"type": "object"}, 1000, True),
        ({"type": "object"}, 100_000_000, False),
        ({"properties": {"a": {"$ref": "#"}}}, 1, False),
        ({"$dynamicRef": "#a"}, 1, False),
        ({"$recursiveRef": "#"}, 1, False),
        (True, 1000, True),
    ],
    ids=str,
)
def test_a_schema_that_could_take_long_is_known_as_one(schema: Any, output_bytes: int, cheap: bool) -> None:
    assert is_cheap(SchemaGate(schema=schema), output_bytes) == cheap


async def test_a_schema_in_a_process_of_its_own_says_the_same(folder: Path) -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}

    fits = await run_schema(schema, b'{"a": 1}', folder / "gates")
    not_so = await run_schema(schema, b'{"a": "x"}', folder / "gates")

    assert fits is None
    assert not_so == passes_schema(SchemaGate(schema=schema), {"a": "x"}).reason


async def test_a_schema_that_would_take_years_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SCHEMA_S", 0.5)

    said = await run_schema(trap(60), b"1", folder / "gates")

    assert said == "it took longer than 0.5 s"

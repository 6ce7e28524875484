"""`run = "command"`: what programs are given, what counts as a result, and what each way of failing is called."""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

from jobd.config.model import Config, Task, broken_rules
from jobd.tasks.command.oom import count_in, counting_file
from jobd.tasks.command.output import LOG_LINES_PER_S, EventEmitter, LogLines, ResultOutput, last_document
from jobd.tasks.command.runner import CommandRunner
from jobd.tasks.runner import TaskFailed
from tests.support.wait import wait_until_async
from tests.tasks.commands import JOB_ID, Before, Notes, command, room_for_descriptors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

SECRET = "hunter2-canary"
METACHARACTERS = "$(touch /tmp/x) `id` ; | & > < * ? ~ ! # \\ \" ' -rf -- \n\r\t %s {} \x7f ü 火 🔥"


@pytest.fixture(autouse=True)
async def _nothing_stays(folder: Path) -> AsyncIterator[None]:
    """Whatever a test does: no process, no zombie, no descriptor, no file of it is left."""
    before = Before()
    yield
    assert before.added == ({}, 0)
    assert left_in(folder) == []


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("attempts/*"))


async def run(folder: Path, task: Task, payload: Any = None, notes: Notes | None = None) -> Any:
    return await CommandRunner(task, folder).run(payload or {}, (notes or Notes()).context)


async def failure(folder: Path, task: Task, notes: Notes | None = None) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        await run(folder, task, notes=notes)
    return caught.value


class Ends(NamedTuple):
    """A row of the catalogue: the program, and how the attempt ends."""

    row: str
    argv: tuple[str, ...]
    code: str
    retryable: bool = True
    #: Part of the message.
    message: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


FAILURES = [
    Ends("X1 silent", ("stdout", ""), "no_result"),
    Ends("X1 blank", ("stdout", " \n\n "), "no_result"),
    Ends("X1 only events", ("stdout", '{"progress": 1}'), "no_result", message="its 1 lines there are events"),
    Ends("X2 words", ("stdout", "all done"), "bad_result"),
    Ends("X2 words after a result", ("stdout", '{"a": 1}\nall done\n'), "bad_result"),
    Ends("X2 half", ("stdout", '{"a": 1, "b": [2'), "bad_result"),
    Ends("X2 whole then half", ("stdout", '{"a": 1}\n{"b": tr'), "bad_result"),
    Ends("X2 half of a pretty one", ("stdout", '{\n  "a": [\n    1\n  ]\n'), "bad_result"),
    Ends("X2 two in one line", ("stdout", '{"a": 1} {"b": 2}'), "bad_result"),
    Ends("X2 no JSON number", ("stdout", "NaN"), "bad_result"),
    Ends("X2 half a file", ("result_file", '{"a": '), "bad_result"),
    Ends("X2 two in the file", ("result_file", "{}\n{}"), "bad_result"),
    Ends("X2 empty file", ("result_file", ""), "bad_result"),
    Ends("X2 link to elsewhere", ("result_link", "/etc/hostname"), "no_result"),
    Ends("X2 fifo for a file", ("result_fifo",), "no_result"),
    Ends("X3 success that failed", ("stdout", '{"a": 1}', "3"), "exited", message="exit code 3"),
    Ends("X3 says why", ("stderr", "first\nno such model\n", "1"), "exited", message="exit code 1: no such model"),
    Ends("X4 SIGSEGV", ("kill_self", "SIGSEGV"), "killed", message="killed by SIGSEGV: about to die"),
    Ends("X4 SIGKILL", ("kill_self", "SIGKILL"), "killed", message="killed by SIGKILL"),
    Ends("X6 large", ("large_result", "2", "0"), "result_too_large", False, "max_output_mb, which is 1"),
    Ends("X6 large and pretty", ("large_result", "3", "1"), "result_too_large", False),
    Ends("X6 setting", ("stdout", '"' + "x" * 2000 + '"'), "result_too_large", False, "", {"max_output_mb": 0.001}),
    Ends("X6 file", ("result_file", '"' + "x" * 2000 + '"'), "result_too_large", False, "", {"max_output_mb": 0.001}),
    Ends("X15 memory", ("use_memory", "900"), "exited", message="MemoryError", settings={"memory_mb": 512}),
    Ends("X15 files", ("open_files", "100000"), "exited", message="Too many open files"),
    Ends("X15 disk", ("write_file", str(1 << 20)), "exited", message="File too large"),
    Ends("X15 forks", ("fork_bomb",), "exited", message="Resource temporarily", settings={"max_processes": 20}),
]


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.row)
async def test_program_that_fails_is_told_apart(row: Ends, folder: Path) -> None:
    why = await failure(folder, command("act.py", *row.argv, **row.settings))

    assert (why.code, why.retryable) == (row.code, row.retryable), why.message
    assert row.message in why.message


@pytest.mark.parametrize(
    ("row", "argv", "result"),
    [
        ("a line", ("stdout", '{"a": 1}\n'), {"a": 1}),
        ("no newline", ("stdout", '{"a": 1}'), {"a": 1}),
        ("any value", ("stdout", "null"), None),
        ("the last of two lines", ("stdout", '{"a": 1}\n[2]\n'), [2]),
        ("after words", ("stdout", "loading…\n} {\n[1, 2]"), [1, 2]),
        ("pretty", ("stdout", 'words\n{\n  "a": [\n    {}\n  ]\n}\n'), {"a": [{}]}),
        ("events between", ("stdout", '{"progress": 0}\n{"a": 1}\n{"event": "x"}\n'), {"a": 1}),
        ("file", ("result_file", '{\n"a": 1}\n'), {"a": 1}),
        ("file before stdout", ("result_file", '{"a": 1}', '{"b": 2}'), {"a": 1}),
        ("X10 stdin closed", ("close_stdin",), {"closed": True}),
        ("X10 stdin not read", ("never_read_stdin",), {"read": 0}),
        ("X10 output first", ("answer_before_reading",), {"read": 200_002}),
        ("X14 descriptors", ("descriptors",), [0, 1, 2]),
    ],
)
async def test_program_that_ends_well_gives_its_result(
    row: str, argv: tuple[str, ...], result: Any, folder: Path
) -> None:
    assert await run(folder, command("act.py", *argv), "x" * 200_000) == result


async def test_failed_program_leaves_its_result_as_a_note(folder: Path) -> None:
    notes = Notes()

    await failure(folder, command("act.py", "stdout", '{"a": 1}', "3"), notes)

    assert notes.lines == ['not taken as a result, for its exit code 3: {"a": 1}']


async def test_kill_for_want_of_memory_is_called_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr("jobd.tasks.command.runner.oom_kills", lambda: next(counts))

    why = await failure(folder, command("act.py", "kill_self", "SIGKILL"))

    assert (why.code, why.retryable) == ("oom", True)


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/system.slice/jobd.service\n", "system.slice/jobd.service/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/\n9:memory:/a\n", "memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
async def test_kills_for_want_of_memory_are_read_from_either_kind_of_cgroup(
    cgroup: str, file: str, text: str, folder: Path
) -> None:
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_text(text)

    found = counting_file(cgroup, folder)

    assert found == path
    assert count_in(text) == 2


async def test_stack_of_a_failure_is_the_end_of_stderr(folder: Path) -> None:
    why = await failure(folder, command("act.py", "stderr", "one\ntwo\n", "1"))

    assert why.stack == "one\ntwo"


@pytest.mark.parametrize(
    ("argv", "settings", "message"),
    [
        (("/no/such/program",), {}, "cannot start /no/such/program: No such file or directory"),
        (("no-such-program",), {}, "cannot start no-such-program: No such file or directory"),
        (("/etc/passwd",), {}, "cannot start /etc/passwd: Permission denied"),
        (("/tmp",), {}, "cannot start /tmp: Permission denied"),
        (("/bin/true",), {"cwd": "/no/such/folder"}, "cannot start /no/such/folder: No such file or directory"),
    ],
)
async def test_program_that_cannot_start_is_not_tried_again(
    argv: tuple[str, ...], settings: dict[str, Any], message: str, folder: Path
) -> None:
    why = await failure(folder, Task(run="command", argv=argv, **settings))

    assert (why.code, why.message, why.retryable) == ("exec_failed", message, False)


async def test_text_without_program_header_is_given_to_no_shell(folder: Path) -> None:
    script = folder / "script"
    script.write_text("echo '{}'")
    script.chmod(0o755)

    why = await failure(folder, Task(run="command", argv=(str(script),)))

    assert (why.code, why.retryable) == ("exec_failed", False)


@pytest.mark.parametrize("room", range(14))
async def test_want_of_descriptors_is_worth_another_attempt(room: int, folder: Path) -> None:
    runner = CommandRunner(command("act.py", "stdout", "{}"), folder)

    with room_for_descriptors(room):
        try:
            result = await runner.run({}, Notes().context)
        except TaskFailed as why:
            result = (why.code, why.retryable)

    assert result == {} or result == ("exec_failed", True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"argv": ("bin/tool",)},
            'tasks.t.argv must begin with an absolute path, or a name to find in PATH (got "bin/',
        ),
        ({"argv": ("./tool",)}, "tasks.t.argv must begin with an absolute path"),
        ({"cwd": "here"}, 'tasks.t.cwd must be an absolute path (got "here")'),
        ({"env": ("DATABASE_URL",)}, "tasks.t.env must not pass on DATABASE_URL, which is jobd's own"),
        ({"env": ("OK", "JOBD_POSTGRES_URL")}, "tasks.t.env must not pass on JOBD_POSTGRES_URL"),
        ({"run": "mock", "argv": (), "env": ("A",)}, 'tasks.t.env is only for run = "command"'),
        ({"run": "mock", "argv": (), "kill_after_s": 1}, 'tasks.t.kill_after_s is only for run = "command"'),
        ({"run": "mock", "argv": (), "memory_mb": 5}, 'tasks.t.memory_mb is only for run = "command"'),
    ],
)
async def test_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    task = Task(**{"run": "command", "argv": ("/bin/true",), **settings})

    (broken,) = broken_rules(Config(tasks={"t": task}))

    assert broken.message.startswith(message)


async def test_payload_and_arguments_arrive_byte_for_byte(folder: Path) -> None:
    payload = {"text": METACHARACTERS, METACHARACTERS: ["--flag", "-", "\u0000"]}
    arguments = ("-rf", "$HOME", "`id`", "a b", "*", "", "\n;")

    echoed = await run(folder, command("act.py", "echo", *arguments), payload)

    assert json.loads(echoed["stdin"]) == payload
    assert echoed["argv"] == list(arguments)


async def test_environment_holds_nothing_but_what_is_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "JOBD_POSTGRES_URL", "JOBD_TOKEN", "OPENAI_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, SECRET)
    for name in ("MODEL_HOME", "LC_ALL", "TZ", "LANG"):
        monkeypatch.setenv(name, "C")

    seen = await run(folder, command("act.py", "environment", env=("MODEL_HOME", "NOT_SET")))

    assert SECRET not in str(seen)
    assert {name: seen.pop(name) for name in ("JOBD_JOB_ID", "JOBD_TASK", "JOBD_ATTEMPT", "MODEL_HOME")} == {
        "JOBD_JOB_ID": str(JOB_ID),
        "JOBD_TASK": "t",
        "JOBD_ATTEMPT": "2",
        "MODEL_HOME": "C",
    }
    assert 0 < float(seen.pop("JOBD_DEADLINE_S")) <= 30
    assert seen.pop("JOBD_ATTEMPT_ID").isdecimal()
    assert seen.pop("JOBD_RESULT_FILE").startswith(seen.pop("TMPDIR") + "/")
    assert {name for name in seen if not name.startswith("LC_")} <= {"PATH", "HOME", "LANG", "TZ"}


async def test_program_runs_in_a_private_folder_and_its_own_session(folder: Path) -> None:
    seen = await run(folder, command("act.py", "surroundings"))

    assert seen == {"cwd": seen["tmpdir"], "own_session": True, "tmpdir": seen["tmpdir"], "mode": 0o700}
    assert Path(seen["tmpdir"]).parent == folder / "attempts"
    assert stat.S_IMODE((folder / "attempts").stat().st_mode) == 0o700


async def test_program_starts_where_it_is_told(folder: Path) -> None:
    seen = await run(folder, command("act.py", "surroundings", cwd="/"))

    assert seen["cwd"] == "/"


async def test_private_folder_is_removed_with_what_resists(folder: Path) -> None:
    assert await run(folder, command("act.py", "locked_folder")) == {}


async def test_limits_are_set(folder: Path) -> None:
    seen = await run(folder, command("act.py", "limits", memory_mb=1000, max_processes=50))

    assert (seen["CORE"], seen["AS"], seen["FSIZE"]) == (0, 1000 << 20, 16 << 30)
    assert 50 < seen["NPROC"] < 100_000
    assert seen["NOFILE"] <= 1024


async def test_lines_are_told_while_the_program_runs(folder: Path) -> None:
    notes = Notes()
    runner = CommandRunner(command("act.py", "step_by_step", str(folder)), folder)

    async with anyio.create_task_group() as running:
        running.start_soon(runner.run, {}, notes.context)
        for n in range(3):
            await wait_until_async(lambda n=n: len(notes.events) == 2 * (n + 1))  # type: ignore[misc]  # as mypy infers it
            (folder / f"go{n}").touch()

    assert [event for event in notes.events if event[0] == "progress"] == [
        ("progress", f"step {n}", {"progress": n / 2}) for n in range(3)
    ]
    assert notes.lines == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"event": "token", "text": "Hel"}', ("token", "", {"text": "Hel"})),
        (' { "event": "my.kind", "step": "s", "n": [1]}', ("my.kind", "s", {"n": [1]})),
        ('{"progress": 0.25}', ("progress", "", {"progress": 0.25})),
        ('{"event": "progress", "progress": 1, "step": "end"}', ("progress", "end", {"progress": 1})),
        ('{"event": "log", "line": "x"}', ("log", "", {"line": "x"})),
    ],
)
async def test_event_lines_are_told_as_they_are_meant(line: str, expected: Any, folder: Path) -> None:
    notes = Notes()

    await run(folder, command("act.py", "stdout", f"{line}\n{{}}"), notes=notes)

    assert notes.events == [expected]


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "done"}',
        '{"event": "No Name"}',
        '{"event": 7}',
        '{"event": "x", "step": 1}',
        '{"progress": "half"}',
        '{"progress": 7}',
        '{"event": "x"',
        '{"event": "x", "data": "' + "y" * 20_000 + '"}',
    ],
)
async def test_event_that_cannot_be_told_is_logged_instead(line: str, folder: Path) -> None:
    notes = Notes()

    await run(folder, command("act.py", "stdout", f"{line}\n{{}}"), notes=notes)

    assert notes.lines == [f"not an event: {(line + chr(10))[:200]}".replace("\n", "\\x0a")]
    assert notes.events[0][2]["level"] == "warning"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain\n", ["plain"]),
        (b"no newline", ["no newline"]),
        (b"\x1b[31mred\x1b[0m\n", ["\\x1b[31mred\\x1b[0m"]),
        (b"\xff\xfe bad\n", ["�� bad"]),
        (b"nul \x00 bell \x07\n", ["nul \\x00 bell \\x07"]),
        (b"tab\tstays\r\n", ["tab\tstays"]),
        (b" 10%\r 50%\r100%\n", ["100%"]),
        (b"\xc2\x9b31m\n", ["\\x9b31m"]),
        (b"\n \n\na\n", ["a"]),
        (b"x" * 5000 + b"\nnext\n", ["x" * 4096 + "…", "next"]),
    ],
)
async def test_log_lines_are_made_harmless(raw: bytes, shown: list[str], folder: Path) -> None:
    notes = Notes()

    await run(folder, command("act.py", "raw_stderr", raw.hex()), notes=notes)

    assert notes.lines == shown


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 64, 4096, 1 << 20])
async def test_output_reads_the_same_however_it_is_cut(cut: int) -> None:
    notes, text = Notes(), b'{"progress": 0}\nwords\n{"event": "x", "n": 1}\n{\n "a": 1\n}\n'
    emitter = EventEmitter(notes.context, clock=lambda: 0.0)
    results, lines = ResultOutput(emitter, 1000), LogLines(emitter)

    for at in range(0, len(text), cut):
        results.feed(text[at : at + cut])
        lines.feed(text[at : at + cut])
    results.close()

    assert last_document(results.text()) == {"a": 1}
    assert [kind for kind, _, _ in notes.events if kind != "log"] == ["progress", "x"]
    assert notes.lines == ['{"progress": 0}', "words", '{"event": "x", "n": 1}', "{", ' "a": 1', "}"]


async def test_flood_of_lines_is_counted_and_the_count_is_told() -> None:
    notes, now = Notes(), [0.0]
    emitter = EventEmitter(notes.context, clock=lambda: now[0])
    lines = LogLines(emitter)

    lines.feed(b"line\n" * 1000)
    now[0] = 1.0
    lines.feed(b"quiet again\n")

    assert notes.lines[:LOG_LINES_PER_S] == ["line"] * LOG_LINES_PER_S
    assert notes.lines[LOG_LINES_PER_S:] == ["900 lines not shown: too many a second", "quiet again"]


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


@pytest.mark.parametrize("descriptor", ["1", "2"])
@pytest.mark.parametrize("line", ["", "y", "some words in a line", '{"event": "token", "text": "x"}'])
async def test_endless_output_is_drained_in_bounded_memory(descriptor: str, line: str, folder: Path) -> None:
    notes, peak = Notes(), [0.0]
    task = command("act.py", "flood", descriptor, "200" if not line.startswith("{") else "20", line)
    await run(folder, command("act.py", "stdout", "{}"))
    before = resident_mb()

    async def watch() -> None:
        while True:
            peak[0] = max(peak[0], resident_mb())
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        assert await run(folder, task, notes=notes) == {"flooded": True}
        watching.cancel_scope.cancel()

    assert peak[0] - before < 20
    assert sum(len(line) for line in notes.lines) < 1 << 20


async def test_many_commands_run_at_once_without_mixing(folder: Path) -> None:
    runner, results = CommandRunner(command("act.py", "echo"), folder), dict[int, Any]()

    async def one(n: int) -> None:
        results[n] = json.loads((await runner.run({"n": n}, Notes().context))["stdin"])

    async with anyio.create_task_group() as running:
        for n in range(20):
            running.start_soon(one, n)

    assert results == {n: {"n": n} for n in range(20)}


async def test_name_is_found_in_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    argv = (os.path.basename(sys.executable), "-c", "print('{}')")

    assert await run(folder, Task(run="command", argv=argv)) == {}

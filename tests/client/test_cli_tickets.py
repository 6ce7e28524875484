"""`jobd ticket`: what it prints to a pipe and on a terminal, and its exit codes. Nobody works on tickets here."""

from __future__ import annotations

import getpass
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from jobd.cli.main import main
from jobd.cli.ticket.show import trail_rows
from jobd.client import Client, Trail
from tests.support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

    Call = Callable[..., tuple[int, list[str], str]]

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"


@pytest.fixture
def url(daemon: Jobd) -> str:
    return daemon.addresses["JOBD_URL"]


@pytest.fixture
def call(url: str, capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs `jobd ticket` in this process; exit code, lines of standard output, and standard error."""

    def run(*arguments: str) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as end:
            main(["ticket", *arguments, "--url", url])
        out, err = capfd.readouterr()
        return int(end.value.code or 0), out.splitlines(), err

    return run


def new(call: Call, *more: str) -> str:
    code, lines, err = call("new", "embed", "--title", "Count the cats", "--by", "ann", *more)
    assert (code, err) == (0, "")
    return lines[0]


def shown(call: Call, ticket_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("show", ticket_id, "--json")[1][0])
    return found


def test_new_says_all_that_a_ticket_can(call: Call, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    blocker = new(call)

    ticket_id = new(
        call,
        *("--criterion", "it counts", "--criterion", "it is quick", "--payload", '{"n": 1}', "--set", "text=hello"),
        *("--gate", "sign_off", "--gate", f"schema=@{schema}", "--gate", "minimum=/a:b:0.5"),
        *("--gate", '{"type": "minimum", "pointer": "", "value": 1}'),
        *("--blocked-on", blocker, "--budget", "1.5", "--max-runs", "3", "--repo-ref", "r", "--base-branch", "main"),
    )

    ticket = shown(call, ticket_id)
    assert (ticket["status"], ticket["created_by"], ticket["payload"]) == ("NEW", "ann", {"n": 1, "text": "hello"})
    assert ticket["acceptance_criteria"] == ["it counts", "it is quick"]
    assert ticket["gates"] == [
        {"type": "sign_off"},
        {"type": "schema", "schema": {"type": "object"}},
        {"type": "minimum", "pointer": "/a:b", "value": 0.5},
        {"type": "minimum", "pointer": "", "value": 1.0},
    ]
    assert (ticket["blocked_on"], ticket["budget_ms"], ticket["max_runs"]) == ([blocker], 1500, 3)
    assert (ticket["repo_ref"], ticket["base_branch"]) == ("r", "main")


def test_the_name_is_that_of_the_login_unless_it_is_said(call: Call) -> None:
    _, (ticket_id,), _ = call("new", "embed", "--title", "Count")
    call("approve", ticket_id)

    ticket = shown(call, ticket_id)
    assert ticket["created_by"] == ticket["approved_by"] == getpass.getuser()


def test_edit_changes_what_it_names(call: Call) -> None:
    ticket_id = new(call, "--payload", '{"n": 1, "m": 2}')

    code, lines, _ = call("edit", ticket_id, "--title", "Count the dogs", "--set", "n:=5")

    ticket = shown(call, ticket_id)
    assert (code, ticket["title"], ticket["payload"]) == (0, "Count the dogs", {"n": 5, "m": 2})
    assert "title       Count the dogs" in lines
    assert call("edit", ticket_id)[0] == 2


def test_decisions_are_told_and_kept(call: Call) -> None:
    first, second = new(call), new(call)

    assert call("reject", first, second, "--by", "bob", "--why", "no") == (
        *(0, [f"{first}\tBLOCKED", f"{second}\tBLOCKED"], ""),
    )
    assert call("unblock", first, "--by", "bob")[1] == [f"{first}\tNEW"]
    assert json.loads(call("approve", first, "--by", "carol", "--json")[1][0])["status"] == "TODO"
    code, lines, _ = call("trail", first)

    assert code == 0
    assert [line.split("\t")[1:] for line in lines] == [
        ["written", "by ann: Count the cats"],
        ["decision", "REJECT by bob, BLOCKED: no"],
        ["decision", "UNBLOCK by bob, NEW"],
        ["decision", "APPROVE by carol, TODO"],
    ]
    assert json.loads(call("trail", first, "--json")[1][0])["ticket"]["status"] == "TODO"


@pytest.mark.parametrize("word", ["unblock", "reopen", "sign-off"])
def test_what_cannot_be_decided_is_refused_for_each_and_the_rest_goes_on(call: Call, word: str) -> None:
    first, second = new(call), new(call)

    code, lines, err = call(word, first, second, "--by", "bob")

    assert (code, lines) == (5, [])
    assert err.count(f"jobd: {word} of ticket") == 2
    assert first in err and second in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("new", "embed"),
        ("new", "embed", "--title", "x", "--gate", "prayer"),
        ("new", "embed", "--title", "x", "--gate", "minimum=/a"),
        ("new", "embed", "--title", "x", "--gate", "schema=@/nowhere"),
        ("new", "embed", "--title", "x", "--gate", "{"),
        ("new", "embed", "--title", "x", "--payload", "[]"),
        ("new", "embed", "--title", "x", "--max-runs", "0"),
        ("list", "--status", "OPEN"),
        ("approve",),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(call: Call, arguments: tuple[str, ...]) -> None:
    code, lines, err = call(*arguments)

    assert (code, lines) == (2, [])
    assert "Error" in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("new", "fly", "--title", "x"), "unknown_task"),
        (("new", "embed", "--title", " "), "invalid"),
        (("new", "embed", "--title", "x", "--gate", "command=lint"), "unknown_gate"),
        (("show", NOBODY), "unknown_ticket"),
        (("watch", NOBODY), "unknown_ticket"),
        (("trail", "x"), "unknown_ticket"),
    ],
)
def test_what_jobd_refuses_ends_with_its_code(call: Call, arguments: tuple[str, ...], code: str) -> None:
    exit_code, lines, err = call(*arguments)

    assert (exit_code, lines) == (5, [])
    assert f"({code})" in err


def test_list_has_filters_and_lines_for_programs(call: Call) -> None:
    person = f"eve-{uuid.uuid4()}"
    made = [new(call, "--by", person) for _ in range(3)]
    call("reject", made[1])

    _, lines, _ = call("list", "--created-by", person)
    _, of_json, _ = call("list", "--created-by", person, "--status", "BLOCKED", "--json")

    assert [line.split("\t")[0] for line in lines] == made[::-1]
    assert [line.split("\t")[1] for line in lines] == ["NEW", "BLOCKED", "NEW"]
    assert [json.loads(line)["ticket_id"] for line in of_json] == made[1:2]


def test_list_is_a_table_on_a_terminal(call: Call, url: str) -> None:
    person = f"eve-{uuid.uuid4()}"
    new(call, "--by", person)

    with terminal("ticket", "list", "--created-by", person, "--url", url, columns=160, COLUMNS="160") as screen:
        code = screen.end()
        screen.wait_for("TICKET", "STATUS", "WRITTEN BY", "NEW", "Count the cats")

    assert code == 0


def test_watch_follows_until_the_ticket_rests(call: Call) -> None:
    ticket_id = new(call)
    call("reject", ticket_id, "--by", "bob")
    call("unblock", ticket_id, "--by", "bob")
    call("reject", ticket_id, "--by", "bob", "--why", "no cats")

    code, lines, err = call("watch", ticket_id)
    _, of_json, _ = call("watch", ticket_id, "--json")

    assert (code, lines) == (1, [f"ticket {ticket_id} is BLOCKED ({shown(call, ticket_id)['blocked_reason']})"])
    assert [line.split("  ", 1)[1].split(" ")[0] for line in err.splitlines()] == ["created", "NEW", "BLOCKED", "NEW"]
    assert [json.loads(line).get("id") for line in of_json] == ["1", "2", "3", "4", None]


def test_what_a_ticket_says_cannot_steer_the_terminal(call: Call) -> None:
    ticket_id = new(call, "--criterion", "\x1b[2J\x07red")

    assert "criteria    - [2Jred" in call("show", ticket_id)[1]


def test_a_whole_trail_is_told_in_order(url: str) -> None:
    with Client(url) as client:
        ticket = client.create_ticket("Count", "embed", {}, created_by="ann")
    at = [f"2999-01-01T00:00:{second:02}Z" for second in range(10)]
    trail = Trail(
        ticket=ticket,
        decisions=[{"kind": "APPROVE", "decided_by": "bob", "why": "", "to_status": "TODO", "decided_at": at[0]}],
        events=[{"type": "TICKET_READY", "reason": "SCHEDULED", "created_at": at[1], "processed_at": at[2]}],
        context_snapshots=[{"snapshot_id": "s", "payload": {"n": 1}, "created_at": at[3]}],
        workorders=[{"work_order_id": "w", "diazotroph_type": "embed", "job_id": "j", "created_at": at[4]}],
        output_bundles=[
            {"outcome": "DONE", "output": {"n": 2}, "output_ref": None, "error": None, "created_at": at[5]},
            {"outcome": "DONE", "output": None, "output_ref": "results/j", "error": None, "created_at": at[6]},
            {"outcome": "ERROR", "output": None, "output_ref": None, "error": {"message": "m"}, "created_at": at[7]},
        ],
        run_records=[{"gate_result": "FAIL", "ticket_status": "BLOCKED", "gate_reason": "m", "created_at": at[8]}],
        pause_states=[{"reason": "GATE_FAILED", "prioritized_actions": ["look", "leave"], "created_at": at[9]}],
    )

    assert [row[1:] for row in trail_rows(trail)] == [
        ("written", "by ann: Count"),
        ("decision", "APPROVE by bob, TODO"),
        ("event", "TICKET_READY"),
        ("event", "TICKET_READY SCHEDULED"),
        ("snapshot", 's, payload {"n":1}'),
        ("work order", "w, task embed, job j"),
        ("output", 'DONE {"n":2}'),
        ("output", "DONE in results/j"),
        ("output", "ERROR m"),
        ("gates", "FAIL, BLOCKED: m"),
        ("pause", "GATE_FAILED; next: look; or leave"),
    ]


def test_tab_offers_tickets_that_the_decision_applies_to(
    call: Call, url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting, blocked = new(call), new(call)
    call("reject", blocked, "--by", "bob")
    monkeypatch.setenv("JOBD_URL", url)
    monkeypatch.setenv("_JOBD_COMPLETE", "bash_complete")

    def offered(verb: str) -> set[str]:
        monkeypatch.setenv("COMP_WORDS", f"jobd ticket {verb} ")
        monkeypatch.setenv("COMP_CWORD", "3")
        with pytest.raises(SystemExit):
            main([])
        return {line.rpartition(",")[2] for line in capfd.readouterr().out.splitlines()}

    approvable, blocked_ones = offered("approve"), offered("unblock")
    assert waiting in approvable and blocked not in approvable
    assert blocked in blocked_ones and waiting not in blocked_ones

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jobd.tickets.render import commit_sha, filled, filled_bytes, places, prompt_text

WORDS = places(ticket_id=UUID(int=1), todo_no=2, title="T", criteria=["a", "b"], repo_ref=None, base_branch="main")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{title}}", "T"),
        ("<{{ title }}|{{title}}>", "<T|T>"),
        ("{{acceptance_criteria}}", "- a\n- b"),
        ("{{branch_name}}", "ticket/00000000-0000-0000-0000-000000000001/2"),
        ("{{repo_ref}}{{base_branch}}", "main"),
        ("{{other}} {title} {{Title}}", "{{other}} {title} {{Title}}"),
        ({"{{title}}": ["{{title}}", 1, None, {"a": "{{title}}"}]}, {"{{title}}": ["T", 1, None, {"a": "T"}]}),
    ],
    ids=str,
)
def test_places_in_strings_are_filled_in_and_all_else_is_left(template: Any, expected: Any) -> None:
    assert filled(template, WORDS) == expected


def test_what_is_filled_in_is_not_looked_through_again() -> None:
    words = {**WORDS, "title": "{{prompt}}"}

    assert filled("{{title}}", words) == "{{prompt}}"


def test_the_prompt_says_what_is_wanted_and_how_it_is_judged() -> None:
    assert prompt_text("T", "", None, None) == "T"
    assert prompt_text("T", ["a"], "r", "b") == "T\n\nAcceptance criteria:\n- a\n\nRepository: r\n\nBase branch: b"


def test_a_repository_that_is_a_commit_is_known_as_one() -> None:
    assert commit_sha("0123456789abcdef" * 2 + "01234567") is not None
    assert commit_sha("main") is None
    assert commit_sha(None) is None


def test_the_size_counts_every_place() -> None:
    assert filled_bytes('{"a": "{{title}}{{title}}"}', {"title": "é" * 10}) == 27 + 40

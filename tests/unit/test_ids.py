from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from uuid import RFC_4122

from jobd.store.ids import new_id, new_ids

if TYPE_CHECKING:
    import pytest


def test_ids_are_of_version_7_and_grow() -> None:
    made = [new_id(), *new_ids(5000), new_id(), *new_ids(0), new_id()]

    assert made == sorted(set(made))
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}


def test_ids_differ_in_their_random_half() -> None:
    """Two processes may make the same number within a millisecond."""
    made = [*(new_id() for _ in range(1000)), *new_ids(1000)]

    assert len({one.int & (1 << 62) - 1 for one in made}) == 2000


def test_ids_grow_though_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 0)

    assert before < new_id() < new_ids(1)[0]


def test_child_process_has_random_halves_of_its_own() -> None:
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_id().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        theirs = pipe.read()

    assert theirs[8:] != new_id().bytes[8:]

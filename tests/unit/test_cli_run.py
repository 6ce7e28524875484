"""How commands run what is asynchronous."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from jobd.cli.running import SWITCH_INTERVAL_S, run_async

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_threads_that_compute_give_way_to_the_loop_soon() -> None:
    assert run_async(to_thread.run_sync, sys.getswitchinterval) == pytest.approx(SWITCH_INTERVAL_S)


async def _is_interrupted() -> None:
    raise KeyboardInterrupt


async def _is_cancelled() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep(1)


def test_an_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_async(_is_interrupted)


def test_what_is_cancelled_within_ends_quietly() -> None:
    assert run_async(_is_cancelled) is None

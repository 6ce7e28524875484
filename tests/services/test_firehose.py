"""The firehose: each change once and in the order of its job, at once if this node made it, with or without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.follow import firehose as firehose_module
from jobd.follow.firehose import Firehose, Note
from jobd.lifecycle.notices import ChangeKind, Changes, Notice
from jobd.store.ids import new_id
from tests.support import servers
from tests.support.node import Node, tailing
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from jobd.follow.firehose import Listener
    from jobd.follow.jobs import Tailer

NOW_MS = 1_700_000_000_000
AS_IT_IS = ChangeKind(lambda notice: notice.job_id, lambda notice, _: notice)


class HeardNotes:
    """What a listener was given, but for gaps."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.notes: list[Note] = []
        self.gaps = 0

    async def take(self, timeout_s: float = 0.0) -> list[str]:
        for note in await self._listener.next(timeout_s):
            if note.type == "gap":
                self.gaps += 1
            else:
                self.notes.append(note)
        return self.shown()

    def shown(self, job_id: UUID | None = None) -> list[str]:
        return [f"{note.type} {note.attempt}" for note in self.notes if job_id is None or note.job_id == job_id]

    async def until(self, number: int) -> list[str]:
        with anyio.fail_after(30):
            while len(self.notes) < number:
                await self.take(10)
        return self.shown()


# -- on a node -----------------------------------------------------------------------------------------------------


async def quiet(node: Node, tailer: Tailer) -> None:
    """The channel is heard, and has brought everything."""
    await wait_until_async(lambda: tailer._hears)
    await wait_until_async(node.outbox_is_empty)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_each_change_comes_once_and_in_order(node: Node, elsewhere: bool) -> None:
    async with tailing(node, elsewhere=elsewhere) as tailer:
        with tailer.listening() as listener:
            notes_heard = HeardNotes(listener)
            await quiet(node, tailer)
            job = await node.enqueue(task="embed", max_attempts=2)
            await node.failed(await node.claim(job))
            await node.database.execute("UPDATE jobs SET run_after = now(), due_at = NULL, order_at = now()")
            await node.done(await node.claim(job, 2))
            other = await node.enqueue()
            await node.engine.cancel([other.id])
            await notes_heard.until(7)
            await quiet(node, tailer)
            last = await node.enqueue()  # what comes by the channel after this would come after this
            await notes_heard.until(8)
            await quiet(node, tailer)
            await node.engine.cancel([last.id])
            await notes_heard.until(9)

    assert notes_heard.shown(job.id) == ["queued 0", "running 1", "queued 1", "running 2", "done 2"]
    assert notes_heard.shown(other.id) == notes_heard.shown(last.id) == ["queued 0", "canceled 0"]
    assert {(note.task, note.queue) for note in notes_heard.notes if note.job_id == job.id} == {("embed", "default")}
    assert notes_heard.gaps <= 2  # it was deaf at first


async def test_changes_of_this_node_come_while_redis_is_away(node: Node, folder: Path) -> None:
    async with tailing(node) as tailer:
        with tailer.listening() as listener:
            notes_heard = HeardNotes(listener)
            await wait_until_async(lambda: tailer._hears)
            servers.kill_valkey(folder)
            await wait_until_async(lambda: not tailer._hears)
            job = await node.enqueue()
            await node.done(await node.claim(job))

            assert await notes_heard.until(3) == ["queued 0", "running 1", "done 1"]


# -- by itself -----------------------------------------------------------------------------------------------------


class Listening:
    """A firehose with one listener."""

    def __init__(self) -> None:
        self.firehose = Firehose(lambda: NOW_MS)
        self._listening = self.firehose.listening()
        self.notes_heard = HeardNotes(self._listening.__enter__())
        self.job_id, self.attempt_ids = new_id(), [new_id() for _ in range(4)]

    def committed(self, kind: str, attempt: int | None = None, *, is_end: bool = False, task: str = "") -> None:
        known = None if is_end else attempt
        attempt_id = self.attempt_ids[attempt] if attempt else None
        notice = Notice(self.job_id, kind, known, None if known is None else 0, None, task, "default", attempt_id)
        self.firehose.committed(Changes(AS_IT_IS, [notice], [notice]))

    def heard(self, kind: str, attempt: int) -> None:
        self.firehose.heard([Note(self.job_id, kind, attempt, NOW_MS + 1, "chat", "default")])


async def test_change_that_the_channel_brings_first_is_not_passed_on_again() -> None:
    own = Listening()
    own.heard("queued", 0)
    own.committed("queued", 0, task="chat")
    own.committed("running", 1)
    own.heard("running", 1)
    own.heard("running", 1)  # the relay repeats what it may not have said
    own.committed("done", 1, is_end=True)
    own.heard("done", 1)

    assert await own.notes_heard.take() == ["queued 0", "running 1", "done 1"]
    assert own.firehose._last == {}


async def test_change_after_one_of_another_node_waits_for_the_channel() -> None:
    own = Listening()
    own.committed("queued", 0, task="chat")
    own.committed("running", 2)  # the first attempt was elsewhere, and the channel has not said so yet
    assert await own.notes_heard.take() == ["queued 0"]

    own.heard("queued", 0)
    own.heard("running", 1)
    own.heard("queued", 1)
    own.committed("done", 2, is_end=True)
    own.heard("running", 2)
    own.heard("done", 2)
    assert await own.notes_heard.take() == ["queued 0", "running 1", "queued 1", "running 2", "done 2"]


async def test_change_of_which_not_enough_is_known_is_left_to_the_channel() -> None:
    own = Listening()
    own.committed("queued", 0)  # a dead letter that runs again: its task is not at hand
    own.committed("running", 1)
    own.committed("events", 1)
    own.committed("cancel_requested")
    own.committed("canceled", 1, is_end=True)
    assert await own.notes_heard.take() == []

    for kind, attempt in [("queued", 0), ("running", 1), ("events", 1), ("cancel_requested", 1), ("canceled", 1)]:
        own.heard(kind, attempt)
    assert await own.notes_heard.take() == ["queued 0", "running 1", "cancel_requested 1", "canceled 1"]


async def test_time_of_a_change_is_that_of_the_database() -> None:
    own = Listening()
    own.committed("queued", 0, task="chat")
    await own.notes_heard.take()

    assert [note.ts for note in own.notes_heard.notes] == [NOW_MS]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firehose_module, "REMEMBERED", 10)
    own = Listening()
    for _ in range(50):
        own.job_id = new_id()
        own.committed("queued", 0, task="chat")

    assert len(own.firehose._passed_on) == len(own.firehose._last) == 10


async def test_nothing_is_made_of_commits_while_nobody_listens() -> None:
    own = Listening()
    own._listening.__exit__(None, None, None)

    def fails(*_: object) -> Notice:
        raise AssertionError("a notice was made")

    own.firehose.committed(Changes(ChangeKind(fails, fails), [1], [1]))  # type: ignore[arg-type]  # it is not called
    assert own.firehose._passed_on == {}

from __future__ import annotations

import traceback
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from jobd.engine.batch import MAX_RESENDS, Batcher, BatcherFull, Closed, NotApplied, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

BAD = -1


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class BadItem(Exception):
    pass


class ConnectionLost(Exception):
    pass


class ServerGone(Exception):
    pass


class FaultyServer:
    """What a flush talks to: it doubles numbers, refuses BAD with all that came along, and fails as it is told."""

    def __init__(self) -> None:
        self.flushes: list[list[int]] = []
        self.applied: list[int] = []
        self.faults: list[str] = []
        self.open = anyio.Event()
        self.open.set()
        self.entered = anyio.Event()

    def hold(self) -> None:
        self.open = anyio.Event()

    async def flush(self, items: Sequence[int]) -> list[int | Exception]:
        self.flushes.append(list(items))
        self.entered.set()
        await self.open.wait()
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "gone":
            raise ServerGone
        if fault == "lost before commit":
            raise ConnectionLost
        if BAD in items:
            raise BadItem
        self.applied += items
        if fault == "lost after commit":
            raise ConnectionLost
        return [2 * item for item in items]

    async def read_back(self, items: Sequence[int]) -> list[int | NotApplied]:
        await checkpoint()
        if self.faults and self.faults[0] == "unreadable":
            raise ServerGone(self.faults.pop(0))
        return [2 * item if item in self.applied else NotApplied() for item in items]


def make_batcher(
    server: FaultyServer, *, max_batch: int = 100, max_queue: int = 1000, **changes: Any
) -> Batcher[int, int]:
    callbacks: dict[str, Any] = {
        "flush": server.flush,
        "is_item_error": lambda error: isinstance(error, BadItem),
        "is_unknown_outcome": lambda error: isinstance(error, ConnectionLost),
        "read_back": server.read_back,
    }
    return Batcher(max_batch=max_batch, max_queue=max_queue, **(callbacks | changes))


@asynccontextmanager
async def running(batcher: Batcher[int, int]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        yield
        batcher.close()


class Callers:
    """Callers side by side, and what each of them got."""

    def __init__(self, batcher: Batcher[int, int]) -> None:
        self.batcher = batcher
        self.got: dict[int, int | BaseException] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}

    async def call(self, item: int, submit: Callable[[int], Awaitable[int]] | None = None) -> None:
        with anyio.CancelScope() as self.scopes[item]:
            try:
                self.got[item] = await (submit or self.batcher.submit)(item)
            except Exception as error:
                self.got[item] = error

    async def all(self, *items: int) -> None:
        async with anyio.create_task_group() as tasks:
            for item in items:
                tasks.start_soon(self.call, item)


async def settle() -> None:
    """Lets every task that can go on do so."""
    for _ in range(20):
        await checkpoint()


# Gathering


async def test_item_handed_to_an_idle_batcher_is_flushed_alone_and_at_once() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)

    async with running(batcher):
        answer = await batcher.submit(21)

    assert answer == 42
    assert server.flushes == [[21]]


async def test_items_that_gather_during_a_flush_go_together_in_the_next() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3, 4)
        await settle()
        server.open.set()

    assert server.flushes == [[1], [2, 3, 4]]
    assert callers.got == {1: 2, 2: 4, 3: 6, 4: 8}


async def test_flush_takes_no_more_than_the_limit_and_keeps_the_order() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=3)
    callers = Callers(batcher)

    async with running(batcher):
        await callers.all(1, 2, 3, 4, 5, 6, 7)

    assert server.flushes == [[1, 2, 3], [4, 5, 6], [7]]


async def test_items_handed_in_before_the_start_wait_for_it() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1, 2)
        await settle()
        async with running(batcher):
            await settle()

    assert server.flushes == [[1, 2]]


# One bad item


async def test_item_refused_alone_by_the_flush_fails_alone() -> None:
    async def flush(items: Sequence[int]) -> list[int | Exception]:
        return [BadItem() if item == BAD else item for item in items]

    batcher: Batcher[int, int] = Batcher(flush, max_batch=10, max_queue=10)
    callers = Callers(batcher)

    async with running(batcher):
        await callers.all(1, BAD, 2)

    assert isinstance(callers.got.pop(BAD), BadItem)
    assert callers.got == {1: 1, 2: 2}


@pytest.mark.parametrize("place", range(7))
async def test_poison_item_is_found_by_halving_and_fails_alone(place: int) -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    items = [1, 2, 3, 4, 5, 6]
    items.insert(place, BAD)

    async with running(batcher):
        answers = await batcher.submit_many(items)

    assert isinstance(answers.pop(place), BadItem)
    assert answers == [2, 4, 6, 8, 10, 12]
    assert server.applied == [1, 2, 3, 4, 5, 6]


async def test_halving_takes_few_flushes() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=500)

    async with running(batcher):
        await batcher.submit_many([*range(321), BAD, *range(321, 499)])

    assert len(server.flushes) <= 1 + 2 * 9


# Errors


async def test_any_other_error_goes_to_every_caller_and_the_batcher_goes_on() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.faults = ["gone"]

    async with running(batcher):
        await callers.all(1, 2, 3)
        later = await batcher.submit(4)

    assert [type(error) for error in callers.got.values()] == [ServerGone] * 3
    assert later == 8


async def test_error_shared_by_many_callers_keeps_a_short_traceback() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.faults = ["gone"]

    async with running(batcher):
        await callers.all(*range(100))

    error = callers.got[99]
    assert isinstance(error, ServerGone)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "flush"
    assert len(frames) < 10


async def test_flush_that_answers_too_few_leaves_the_outcome_unknown() -> None:
    async def flush(items: Sequence[int]) -> list[int | Exception]:
        return list(items[1:])

    batcher: Batcher[int, int] = Batcher(flush, max_batch=10, max_queue=10)

    async with running(batcher):
        answers = await batcher.submit_many([1, 2])

    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 2


# Unknown outcomes


async def test_commit_whose_answer_was_lost_is_read_back_and_not_sent_again() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.faults = ["lost after commit"]

    async with running(batcher):
        answers = await batcher.submit_many([1, 2])

    assert answers == [2, 4]
    assert server.flushes == [[1, 2]]


async def test_commit_that_never_happened_is_sent_again() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.faults = ["lost before commit"]

    async with running(batcher):
        answers = await batcher.submit_many([1, 2])

    assert answers == [2, 4]
    assert server.applied == [1, 2]


async def test_only_what_was_not_applied_is_sent_again() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.applied = [2]
    server.faults = ["lost before commit"]

    async with running(batcher):
        answers = await batcher.submit_many([1, 2, 3])

    assert answers == [2, 4, 6]
    assert server.flushes == [[1, 2, 3], [1, 3]]


async def test_batch_that_always_breaks_the_connection_is_given_up() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.faults = ["lost before commit"] * (MAX_RESENDS + 1)

    async with running(batcher):
        answers = await batcher.submit_many([1, 2])

    assert [type(answer) for answer in answers] == [ConnectionLost] * 2
    assert server.applied == []
    assert len(server.flushes) == MAX_RESENDS + 1


async def test_outcome_stays_unknown_when_it_cannot_be_read_back() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.faults = ["lost after commit", "unreadable"]

    async with running(batcher):
        with pytest.raises(OutcomeUnknown) as raised:
            await batcher.submit(1)

    assert isinstance(raised.value.__cause__, ServerGone)


async def test_outcome_stays_unknown_without_a_way_to_read_back() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, read_back=None)
    server.faults = ["lost after commit"]

    async with running(batcher):
        with pytest.raises(OutcomeUnknown):
            await batcher.submit(1)


async def test_poison_item_and_a_lost_connection_in_one_batch_are_both_resolved() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    server.faults = ["", "lost after commit", "lost before commit"]

    async with running(batcher):
        answers = await batcher.submit_many([1, 2, BAD, 4])

    assert isinstance(answers.pop(2), BadItem)
    assert answers == [2, 4, 8]
    assert server.applied == [1, 2, 4]


# Cancelled callers


async def test_caller_cancelled_before_the_flush_withdraws_its_item() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3, 4)
        await settle()
        callers.scopes[3].cancel()
        await settle()
        server.open.set()

    assert server.flushes == [[1], [2, 4]]
    assert callers.got == {1: 2, 2: 4, 4: 8}


async def test_caller_cancelled_during_the_flush_changes_nothing_for_the_rest() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1, 2, 3)
        await server.entered.wait()
        callers.scopes[2].cancel()
        await settle()
        server.open.set()

    assert server.applied == [1, 2, 3]
    assert callers.got == {1: 2, 3: 6}


async def test_batch_of_which_every_caller_left_is_not_sent() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3)
        await settle()
        callers.scopes[2].cancel()
        callers.scopes[3].cancel()
        await settle()
        server.open.set()
        await settle()
        assert await batcher.submit(4) == 8

    assert server.flushes == [[1], [4]]


async def test_caller_already_cancelled_when_it_hands_in_withdraws_too() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await batcher.submit(2)
        server.open.set()

    assert server.flushes == [[1]]


# The bound


async def test_full_queue_refuses_who_will_not_wait() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_queue=2)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3)
        await settle()
        with pytest.raises(BatcherFull):
            await batcher.submit_or_refuse(4)
        server.open.set()
        await settle()
        assert await batcher.submit_or_refuse(5) == 10

    assert server.applied == [1, 2, 3, 5]


async def test_full_queue_lets_callers_wait_first_come_first_served() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=2, max_queue=2)
    callers = Callers(batcher)

    async with running(batcher):
        await callers.all(*range(20))

    assert server.applied == list(range(20))
    assert callers.got == {item: 2 * item for item in range(20)}


async def test_newcomer_does_not_overtake_those_who_wait_for_room() -> None:
    server = FaultyServer()
    refused: list[int] = []

    async def flush(items: Sequence[int]) -> list[int | Exception]:
        if list(items) == [2]:  # its place is free, and nobody else has run since
            with pytest.raises(BatcherFull):
                await batcher.submit_or_refuse(4)
            refused.append(4)
        return await server.flush(items)

    batcher = make_batcher(server, max_queue=1, flush=flush)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3)
        await settle()
        server.open.set()

    assert refused == [4]
    assert server.applied == [1, 2, 3]


async def test_caller_cancelled_while_it_waits_for_room_lets_the_next_one_in() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_queue=1)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3, 4)
        await settle()
        callers.scopes[3].cancel()
        await settle()
        server.open.set()

    assert server.applied == [1, 2, 4]


async def test_withdrawn_item_makes_room() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_queue=1)
    callers = Callers(batcher)
    server.hold()

    async with running(batcher), anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3)
        await settle()
        callers.scopes[2].cancel()
        await settle()
        with pytest.raises(BatcherFull):
            await batcher.submit_or_refuse(4)
        server.open.set()

    assert server.applied == [1, 3]


# Many at once


async def test_many_items_are_answered_in_their_order() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=3, max_queue=4)

    async with running(batcher):
        answers = await batcher.submit_many(range(20))

    assert answers == [2 * item for item in range(20)]
    assert server.applied == list(range(20))


async def test_no_items_need_no_flush() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)

    async with running(batcher):
        assert await batcher.submit_many([]) == []

    assert server.flushes == []


async def test_cancelled_caller_of_many_withdraws_those_not_yet_taken() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=2, max_queue=4)
    server.hold()

    async with running(batcher):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batcher.submit_many, range(10))
            await server.entered.wait()
            await settle()
            tasks.cancel_scope.cancel()
        server.open.set()
        await settle()

    assert server.flushes == [[0, 1]]


# The end


async def test_close_drains_the_queue_and_refuses_newcomers() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=2, max_queue=4)
    callers = Callers(batcher)
    server.hold()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3, 4, 5, 6)
        await settle()
        batcher.close()
        with pytest.raises(Closed):
            await batcher.submit(7)
        server.open.set()

    assert isinstance(callers.got.pop(6), Closed)
    assert callers.got == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10}


async def test_close_of_many_answers_closed_for_those_that_were_not_sent() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_batch=2, max_queue=2)
    answers: list[int | Exception] = []
    server.hold()

    async def submit() -> None:
        answers.extend(await batcher.submit_many([1, 2, 3]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submit)
        await settle()
        batcher.close()
        server.open.set()
        await batcher.run()

    assert answers[:2] == [2, 4]
    assert isinstance(answers[2], Closed)


async def test_cancelled_run_finishes_the_flush_in_flight_and_closes_on_the_rest() -> None:
    server = FaultyServer()
    batcher = make_batcher(server)
    callers = Callers(batcher)
    server.hold()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        async with anyio.create_task_group() as services:
            services.start_soon(batcher.run)
            await server.entered.wait()
            tasks.start_soon(callers.all, 2, 3)
            await settle()
            services.cancel_scope.cancel()
            server.open.set()

    assert callers.got[1] == 2
    assert [type(callers.got[item]) for item in (2, 3)] == [Closed] * 2
    assert server.applied == [1]


async def test_run_and_callers_may_be_cancelled_together() -> None:
    server = FaultyServer()
    batcher = make_batcher(server, max_queue=2)
    callers = Callers(batcher)
    server.hold()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        tasks.start_soon(callers.all, 1)
        await server.entered.wait()
        tasks.start_soon(callers.all, 2, 3, 4)
        await settle()
        tasks.cancel_scope.cancel()
        server.open.set()

    assert server.applied == [1]
    with pytest.raises(Closed):
        await batcher.submit(5)


async def test_broken_callback_leaves_nobody_waiting() -> None:
    def broken(error: Exception) -> bool:
        raise ValueError

    server = FaultyServer()
    batcher = make_batcher(server, is_unknown_outcome=broken)
    callers = Callers(batcher)
    server.faults = ["gone"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(callers.all, 1)
        with pytest.raises(ValueError):
            await batcher.run()

    assert isinstance(callers.got[1], OutcomeUnknown)


# All of it together


@pytest.mark.parametrize("seed", range(20))
async def test_under_faults_and_cancellation_every_answer_is_true(seed: int) -> None:
    random = Random(seed)
    server = FaultyServer()
    faults = ["", "", "", "", "gone", "lost before commit", "lost after commit"]

    async def flush_slowly(items: Sequence[int]) -> list[int | Exception]:
        for _ in range(random.randrange(5)):
            await checkpoint()
        server.faults = [random.choice(faults)]
        return await server.flush([BAD if item % 17 == 0 else item for item in items])

    batcher = make_batcher(server, max_batch=8, max_queue=20, flush=flush_slowly)
    callers = Callers(batcher)
    async with running(batcher), anyio.create_task_group() as tasks:
        for item in range(1, 200):
            submit = batcher.submit_or_refuse if random.random() < 0.3 else batcher.submit
            tasks.start_soon(callers.call, item, submit)
            for _ in range(random.randrange(3)):
                await checkpoint()
            if random.random() < 0.2 and item in callers.scopes:
                callers.scopes[random.choice(list(callers.scopes))].cancel()

    assert len(server.applied) == len(set(server.applied)), "applied twice"
    for item in range(1, 200):
        got = callers.got.get(item)
        if isinstance(got, int):
            assert item in server.applied
        if isinstance(got, BadItem | BatcherFull | ServerGone | ConnectionLost):
            assert item not in server.applied
    kinds = {type(got) for got in callers.got.values()}
    assert {int, BadItem, ServerGone} <= kinds

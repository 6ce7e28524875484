"""What holders tell is kept and numbered; the history of a job is the same from whatever cursor it is read on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.job.history import START, Cursor, Event, HandlerEvent, events_after, newest
from jobd.job.model import LeaseLost
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import Ask, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.events import (
    ALL_PLACES_BYTES,
    CHUNK_EVENTS,
    CHUNKS,
    LOOK_BYTES,
    EventBatch,
    HistoryPlace,
    Kept,
    Limit,
    OutOfStep,
    append_events,
    last_places,
    read_history,
)
from jobd.lifecycle.fail import fail
from jobd.lifecycle.outbox import other_changes, turn_page
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.stream.changes import change_of, events_of
from tests.support.factories import (
    POLICY,
    TTL_S,
    at,
    claim_one,
    completion,
    failure,
    held,
    make_queued,
    make_running,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database


def telling(claimed: ClaimedJob, *tokens: str) -> EventBatch:
    events = [HandlerEvent("token", 1, "model", msgspec.Raw(msgspec.json.encode({"t": token}))) for token in tokens]
    return EventBatch(job_id=claimed.job_id, lease_token=claimed.lease_token, events=events)


async def history_of(db: Database, job_id: UUID, after: Cursor = START) -> list[Event]:
    (record,) = await read_history(db, [HistoryPlace(job_id, after)])
    assert record is not None
    return events_after(record, after)


async def shown(db: Database, job_id: UUID, after: Cursor = START) -> list[str]:
    return [f"{event.cursor} {event.type}" for event in await history_of(db, job_id, after)]


async def reap_all(db: Database, seconds: float) -> None:
    await reap(db, most=100, policy=POLICY, grace_s=0.0, now=at(seconds))


async def test_events_are_numbered_on_within_their_attempt(db: Database) -> None:
    claimed = await make_running(db)

    first = await append_events(db, [telling(claimed, "a", "b"), telling(claimed, "c")])
    second = await append_events(db, [telling(claimed, "d")])

    assert first == [Kept(Cursor(1, 3)), Kept(Cursor(1, 3))]
    assert second == [Kept(Cursor(1, 4))]
    assert await db.pool.fetchval("SELECT count(*) FROM event_log") == 2


async def test_events_with_a_foreign_token_are_refused_alone(db: Database) -> None:
    mine, other = await make_running(db), await make_running(db)
    forged = EventBatch(job_id=other.job_id, lease_token=mine.lease_token, events=telling(mine, "x").events)

    answers = await append_events(db, [telling(mine, "a"), forged])

    assert answers == [Kept(Cursor(1, 1)), LeaseLost()]
    assert "token" not in " ".join(await shown(db, other.job_id))


async def test_the_same_telling_sent_twice_is_kept_once(db: Database) -> None:
    claimed = await make_running(db)
    first = msgspec.structs.replace(telling(claimed, "a", "b"), emitted_n=0)
    second = msgspec.structs.replace(telling(claimed, "c"), emitted_n=2)

    await append_events(db, [first])
    await cancel(db, [claimed.job_id])  # an event of the attempt that its holder did not tell
    answers = await append_events(db, [first, second])
    again = await append_events(db, [second])

    assert answers == [Kept(Cursor(1, 3)), Kept(Cursor(1, 4))]
    assert again == [Kept(Cursor(1, 4))]
    assert await shown(db, claimed.job_id) == [
        *("0-1 queued", "1-0 running", "1-1 token", "1-2 token", "1-3 cancel_requested", "1-4 token"),
    ]


async def test_a_telling_that_skips_some_is_refused_with_the_count(db: Database) -> None:
    claimed = await make_running(db)

    answers = await append_events(db, [msgspec.structs.replace(telling(claimed, "c"), emitted_n=2)])

    assert answers == [OutOfStep(0)]


async def test_nothing_is_told_after_the_end(db: Database) -> None:
    claimed = await make_running(db)
    await complete(db, [completion(claimed)])

    assert await append_events(db, [telling(claimed, "late")]) == [LeaseLost()]

    assert await shown(db, claimed.job_id) == ["0-1 queued", "1-0 running", "1-1 done"]


async def test_history_of_a_job_that_failed_fell_silent_and_was_done(db: Database) -> None:
    first = await make_running(db)
    await append_events(db, [telling(first, "a", "b")])
    await fail(db, [failure(first)], policy=POLICY, now=at(1))
    second = await claim_one(db, first.job_id, 2, now=at(100))
    await append_events(db, [telling(second, "c")])
    await reap_all(db, 100 + TTL_S + 1)
    third = await claim_one(db, first.job_id, 3, now=at(1000))
    await complete(db, [completion(third)])

    assert await shown(db, first.job_id) == [
        *("0-1 queued", "1-0 running", "1-1 token", "1-2 token", "1-3 queued"),
        *("2-0 running", "2-1 token", "2-2 gap", "2-3 queued"),
        *("3-0 running", "3-1 done"),
    ]


async def test_a_lease_that_is_taken_over_leaves_a_gap(db: Database) -> None:
    first = await make_running(db)
    asked = Ask(job_id=first.job_id, enqueue_id=1, owner_id="worker-2")

    await claim(db, [asked], ttl_s=TTL_S, now=at(TTL_S + 1))

    assert await shown(db, first.job_id) == ["0-1 queued", "1-0 running", "1-1 gap", "1-2 queued", "2-0 running"]


async def canceled_before_it_began(db: Database) -> UUID:
    job_id = await make_queued(db)
    await cancel(db, [job_id])
    return job_id


async def canceled_while_running(db: Database) -> UUID:
    claimed = await make_running(db)
    await append_events(db, [telling(claimed, "a")])
    await cancel(db, [claimed.job_id])
    await cancel(db, [claimed.job_id])  # asked for twice, told once
    await append_events(db, [telling(claimed, "b")])
    await fail(db, [failure(claimed)], policy=POLICY)
    return claimed.job_id


async def canceled_while_it_waited_again(db: Database) -> UUID:
    claimed = await make_running(db)
    await release(db, [held(claimed)])
    await cancel(db, [claimed.job_id])
    return claimed.job_id


async def canceled_by_a_silent_holder(db: Database) -> UUID:
    claimed = await make_running(db)
    await cancel(db, [claimed.job_id])
    await reap_all(db, TTL_S + 1)
    return claimed.job_id


CANCELED: dict[Any, list[str]] = {
    canceled_before_it_began: ["0-1 queued", "0-2 canceled"],
    canceled_while_running: [
        *("0-1 queued", "1-0 running", "1-1 token", "1-2 cancel_requested", "1-3 token", "1-4 canceled"),
    ],
    canceled_while_it_waited_again: ["0-1 queued", "1-0 running", "1-1 queued", "1-2 canceled"],
    canceled_by_a_silent_holder: ["0-1 queued", "1-0 running", "1-1 cancel_requested", "1-2 gap", "1-3 canceled"],
}


@pytest.mark.parametrize("how", CANCELED, ids=lambda how: how.__name__)
async def test_history_of_a_canceled_job(db: Database, how: Any) -> None:
    job_id = await how(db)

    assert await shown(db, job_id) == CANCELED[how]


async def test_history_of_a_dead_letter_ends_with_its_error(db: Database) -> None:
    claimed = await make_running(db, max_attempts=1)
    await fail(db, [failure(claimed)], policy=POLICY)

    *_, last = await history_of(db, claimed.job_id)

    assert (str(last.cursor), last.type) == ("1-1", "error")
    assert msgspec.json.decode(last.data) == {"attempt": 1, "error": {"code": "boom"}}


async def test_any_cursor_continues_where_it_stands(db: Database) -> None:
    claimed = await make_running(db)
    await append_events(db, [telling(claimed, *"abcdefgh")])
    await append_events(db, [telling(claimed, *"ij")])
    await complete(db, [completion(claimed)])
    whole = await history_of(db, claimed.job_id)

    for n, event in enumerate(whole):
        assert await history_of(db, claimed.job_id, event.cursor) == whole[n + 1 :]


async def test_the_newest_event_is_known_from_any_cursor(db: Database) -> None:
    claimed = await make_running(db)
    await append_events(db, [telling(claimed, "a", "b")])
    opened = await read_history(db, [HistoryPlace(claimed.job_id, Cursor(1, n)) for n in range(3)])
    await complete(db, [completion(claimed)])
    ended = await read_history(db, [HistoryPlace(claimed.job_id, Cursor(1, n)) for n in range(4)])

    assert {newest(record) for record in opened if record} == {Cursor(1, 2)}
    assert {newest(record) for record in ended if record} == {Cursor(1, 3)}


async def test_a_long_history_comes_in_pieces_that_fit(db: Database) -> None:
    claimed = await make_running(db)
    for _ in range(CHUNKS + 3):
        await append_events(db, [telling(claimed, "a", "b")])
    await complete(db, [completion(claimed)])

    cursor, read = START, []
    while some := await history_of(db, claimed.job_id, cursor):
        cursor = some[-1].cursor
        read += [str(event.cursor) for event in some]

    assert read == ["0-1", *(f"1-{n}" for n in range(2 * (CHUNKS + 3) + 2))]


async def test_no_chunk_is_longer_than_a_reader_looks_back(db: Database) -> None:
    claimed = await make_running(db)

    answers = await append_events(db, [telling(claimed, *["x"] * 150), telling(claimed, *["y"] * 150)])

    assert answers == [Kept(Cursor(1, 150)), Kept(Cursor(1, 300))]
    assert await db.pool.fetchval("SELECT max(last_n - first_n + 1) FROM event_log") <= CHUNK_EVENTS


async def test_what_is_told_at_once_is_what_the_history_says_later(db: Database) -> None:
    """The relay tells events as they are committed; who comes later must find the same under the same cursors."""
    ids = [await how(db) for how in CANCELED]
    first = await make_running(db, max_attempts=2)
    await append_events(db, [telling(first, "a")])
    await fail(db, [failure(first)], policy=POLICY, now=at(1))
    await promote_due(db, now=at(100))
    second = Ask(job_id=first.job_id, enqueue_id=2, owner_id="worker-1")
    await claim(db, [second], ttl_s=TTL_S, now=at(100))
    await claim(db, [second], ttl_s=TTL_S, now=at(100 + TTL_S + 1))
    taken = await make_running(db)
    again = Ask(job_id=taken.job_id, enqueue_id=1, owner_id="worker-2")
    await claim(db, [again], ttl_s=TTL_S, now=at(TTL_S + 1))

    changes = [change_of(job) for job in (await turn_page(db, most_changes=1000)).jobs]
    told = {change.job_id: change.events for change in changes if change is not None}

    for job_id in [*ids, first.job_id, taken.job_id]:
        later = [(*event.cursor, event.type, event.step) for event in await history_of(db, job_id)]
        assert [(attempt, n, kind, step) for attempt, n, kind, _, step, _ in told[str(job_id)]] == later


def size_of(events: list[Event]) -> int:
    return sum(len(bytes(event.data)) for event in events)


async def test_look_brings_a_bounded_number_of_bytes_and_the_next_ones_the_rest(db: Database) -> None:
    claimed = await make_running(db)
    for _ in range(12):
        await append_events(db, [telling(claimed, *["x" * 16_000] * 20)])
    await complete(db, [completion(claimed)])

    read: list[list[Event]] = []
    while not read or read[-1][-1].type != "done":
        read.append(await history_of(db, claimed.job_id, read[-1][-1].cursor if read else START))

    assert max(map(size_of, read)) <= LOOK_BYTES + 20 * 16_010
    assert [event.cursor for events in read for event in events][1:] == [Cursor(1, n) for n in range(12 * 20 + 2)]


async def test_many_places_share_what_one_look_may_bring(db: Database) -> None:
    claimed = await make_running(db)
    for _ in range(4):
        await append_events(db, [telling(claimed, *["x" * 16_000] * 10)])

    records = await read_history(db, [HistoryPlace(claimed.job_id, START)] * 64)

    size = sum(size_of(events_after(record, START)) for record in records if record is not None)
    assert size <= 2 * ALL_PLACES_BYTES
    assert all(record is not None and record.is_cut for record in records)


async def test_chunk_from_before_sizes_were_kept_counts_too(db: Database) -> None:
    claimed = await make_running(db)
    for n in range(20):
        await append_events(db, [telling(claimed, *[f"{n}-{m} {hash((n, m)):x}" * 800 for m in range(10)])])
    await db.pool.execute("UPDATE event_log SET size = NULL")

    (record,) = await read_history(db, [HistoryPlace(claimed.job_id, START)])

    assert record is not None
    assert 1 <= len(record.chunks) <= 20


async def test_last_places_leave_out_the_beginning_of_what_is_too_long(db: Database) -> None:
    short, long, silent, many = [await make_running(db) for _ in range(4)]
    await append_events(db, [telling(short, "a", "b")])
    for _ in range(5):
        await append_events(db, [telling(long, "x" * 400, "y" * 400)])
    for _ in range(CHUNKS + 3):
        await append_events(db, [telling(many, "x")])

    places = await last_places(db, [job.job_id for job in (short, long, silent)], most_bytes=2_000)
    (by_number,) = await last_places(db, [many.job_id], most_bytes=100_000)
    (at_most,) = await last_places(db, [long.job_id], most_bytes=1)
    (all_of_it,) = await last_places(db, [long.job_id], most_bytes=100_000)

    assert places == [START, Cursor(1, 6), START]
    assert by_number == Cursor(1, 3)
    assert at_most == Cursor(1, 8)
    assert all_of_it == START


DISK_IS_LOW = Limit(is_disk_low=True)


def lines(claimed: ClaimedJob, number: int, kind: str = "log", emitted_n: int | None = None) -> EventBatch:
    events = [HandlerEvent(kind, 1, "", msgspec.Raw(msgspec.json.encode({"text": "x" * 100}))) for _ in range(number)]
    return EventBatch(job_id=claimed.job_id, lease_token=claimed.lease_token, events=events, emitted_n=emitted_n)


async def told_types(db: Database, job_id: UUID) -> list[str]:
    """The types of what is kept; of a `dropped` event also what it says."""
    return [
        event.type if event.type != "dropped" else f"dropped {msgspec.json.decode(bytes(event.data))}"
        for event in await history_of(db, job_id)
    ]


async def test_job_that_has_told_too_much_keeps_no_more_and_says_how_many(db: Database) -> None:
    claimed, other = await make_running(db), await make_running(db)
    limit = Limit(job_bytes=1_000)

    told = 0
    for number in (10, 7, 5, 3):
        (answer,) = await append_events(db, [lines(claimed, number, "progress", told)], limit=limit)
        told += number
        assert isinstance(answer, Kept)
    await append_events(db, [lines(other, 2)], limit=limit)
    again = await append_events(db, [lines(claimed, 3, emitted_n=told - 3)], limit=limit)
    await complete(db, [completion(claimed)])

    dropped = {"count": 15, "reason": "job_events_mb"}
    assert await told_types(db, claimed.job_id) == [
        "queued",
        "running",
        *["progress"] * 10,
        f"dropped {dropped}",
        "done",
    ]
    assert await told_types(db, other.job_id) == ["queued", "running", "log", "log"]
    assert again == [Kept(Cursor(1, 11))]
    assert await db.pool.fetchval("SELECT count(*) FROM event_log WHERE job_id = $1", claimed.job_id) == 2


async def test_what_earlier_attempts_told_counts_too(db: Database) -> None:
    first = await make_running(db)
    await append_events(db, [lines(first, 10)])
    await release(db, [held(first)])
    second = await claim_one(db, first.job_id, 2)
    limit = Limit(job_bytes=1_000)

    await append_events(db, [lines(second, 1)], limit=limit)  # of the first nobody has counted yet
    await append_events(db, [lines(second, 4)], limit=limit)

    assert (await told_types(db, first.job_id))[-2:] == ["log", "dropped {'count': 4, 'reason': 'job_events_mb'}"]


async def test_log_and_tokens_are_dropped_and_counted_while_the_disk_is_low(db: Database) -> None:
    claimed = await make_running(db)

    await append_events(db, [lines(claimed, 2)])
    await append_events(db, [lines(claimed, 5), lines(claimed, 1, "progress")], limit=DISK_IS_LOW)
    for _ in range(3):
        await append_events(db, [lines(claimed, 4, "token")], limit=DISK_IS_LOW)
    await append_events(db, [lines(claimed, 1)])
    await append_events(db, [lines(claimed, 6)], limit=DISK_IS_LOW)
    await complete(db, [completion(claimed)])

    assert await told_types(db, claimed.job_id) == [
        *("queued", "running", "log", "log", "progress"),
        "dropped {'count': 17, 'reason': 'min_free_mb'}",
        "log",
        "dropped {'count': 6, 'reason': 'min_free_mb'}",
        "done",
    ]
    assert [event.cursor for event in await history_of(db, claimed.job_id)][1:] == [Cursor(1, n) for n in range(8)]


async def test_dropping_goes_on_after_a_cancel_was_asked_for(db: Database) -> None:
    claimed = await make_running(db)

    await append_events(db, [lines(claimed, 3)], limit=DISK_IS_LOW)
    await cancel(db, [claimed.job_id], now=at(1))
    for _ in range(2):
        await append_events(db, [lines(claimed, 2)], limit=DISK_IS_LOW)

    assert await told_types(db, claimed.job_id) == [
        *("queued", "running", "dropped {'count': 3, 'reason': 'min_free_mb'}"),
        *("cancel_requested", "dropped {'count': 4, 'reason': 'min_free_mb'}"),
    ]


async def test_redis_is_told_of_what_was_dropped_once(db: Database) -> None:
    claimed = await make_running(db)
    for _ in range(3):
        await append_events(db, [lines(claimed, 2)], limit=DISK_IS_LOW)

    (job,) = (await turn_page(db, most_changes=100)).jobs
    told = [one for one in other_changes(job) if one.event == "events"]

    assert [[event.type for event in events_of(one, None)] for one in told] == [["dropped"]]

"""What a job went through since the relay last looked is one write, and the same whatever the pages were."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.config.model import Config, Queue, RelayConfig
from jobd.job.history import HandlerEvent
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.events import EventBatch, append_events
from jobd.lifecycle.fail import fail
from jobd.lifecycle.outbox import TURN_OUTBOX_PAGE
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.store.ids import new_id
from jobd.stream.relay import Relay
from jobd.supervise.wakeup import Wakeup
from tests.support import servers
from tests.support.claims import take_first
from tests.support.factories import POLICY, completion, failure, held, new_job
from tests.support.node import Node, new_database, tailing
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.enqueue import NewJob

TTL_S = 60.0
WINDOW = 5


class Bench:
    """A relay that looks only when it is told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.db = node.database
        self.relay = Relay(node.database, node.transport, Wakeup(), lambda: node.config)

    async def publish(self) -> None:
        while await self.relay.run_once(self.db):
            pass

    async def enqueue(self, **values: Any) -> NewJob:
        job = new_job(**{"payload": '{"text": "hello"}', **values})
        await enqueue(self.db, [job], max_queued=1000)
        return job

    async def take(self, job: NewJob, enqueue_id: int = 1) -> ClaimedJob:
        ask = Ask(job_id=job.id, enqueue_id=enqueue_id, owner_id=f"test-{new_id()}")
        (claimed,) = await claim(self.db, [ask], ttl_s=TTL_S)
        assert isinstance(claimed, ClaimedJob)
        return claimed

    async def done(self, claimed: ClaimedJob, result: str | None = '{"ok": true}') -> None:
        await complete(self.db, [completion(claimed, result=result)])

    async def found(self, job: NewJob) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
        return await self.node.hash_of(job.id), await self.node.events_of(job.id)

    async def types(self, job: NewJob) -> list[str]:
        return [fields["type"] for _, fields in await self.node.events_of(job.id)]


@pytest.fixture(params=["stream", "direct"])
async def bench(shared_postgres: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Nothing else looks into the outbox."""
    url = await new_database(shared_postgres)
    config = Config(
        relay=RelayConfig(stream_window=WINDOW), queues={"default": Queue(), "bare": Queue(slots=0, mirror=False)}
    )
    with servers.valkey(folder) as redis_url:
        node = Node(url, redis_url, config, deliver=request.param)
        async with node.redis, node.database.opened(), node.transport.opened():
            bench = Bench(node)
            await bench.relay._begin(bench.db)
            await bench.relay._change_modes(bench.db)
            assert bench.relay.modes.is_direct("default") == (request.param == "direct")
            yield bench


class Asked:
    """The statements that the relay runs."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        fetch = bench.db.fetch

        async def counted(query: str, /, *args: object) -> Any:
            self.texts.append(query.partition("\n")[0])
            return await fetch(query, *args)

        monkeypatch.setattr(bench.db, "fetch", counted)


async def calls(bench: Bench) -> dict[str, int]:
    stats = await bench.node.redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


# -- how much it costs -------------------------------------------------------------------------------------------------


async def test_short_job_costs_two_statements_and_one_write_of_each_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish()
    bench.relay._due_at = float("inf")
    await bench.db.execute("SELECT 1")
    (claimed,) = [await bench.take(await bench.enqueue())]
    await bench.done(claimed)
    asked = Asked(bench, monkeypatch)
    await bench.node.redis.config_resetstat()

    await bench.relay.run_once(bench.db)

    said = await calls(bench)
    assert asked.texts == [TURN_OUTBOX_PAGE.partition("\n")[0]] * 2  # a page is read, and deleted
    assert [said.get(name, 0) for name in ("evalsha", "hmget", "hset", "expire", "xadd")] == [1, 1, 1, 2, 3]
    assert await bench.node.outbox_is_empty()


async def test_jobs_beyond_the_window_are_told_whole_without_asking_for_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await bench.enqueue() for _ in range(4 * WINDOW)]
    await bench.publish()
    hidden = [job for job in jobs if not await bench.node.hash_of(job.id)]
    claimed = [await bench.take(job) for job in hidden]
    asked = Asked(bench, monkeypatch)
    await bench.publish()
    while_running = [(await bench.node.hash_of(job.id))["status"] for job in hidden]
    for one in claimed[:-1]:
        await bench.done(one)

    await bench.publish()

    assert len(hidden) >= 2 * WINDOW
    assert while_running == ["running"] * len(hidden)
    assert not [text for text in asked.texts if "read_jobs" in text or "read_history" in text]
    for job in hidden[:-1]:
        found, events = await bench.found(job)
        assert (found["status"], found["payload"], found["result"]) == ("done", '{"text": "hello"}', '{"ok": true}')
        assert [(event_id, fields["type"]) for event_id, fields in events] == [
            ("0-1", "queued"),
            ("1-0", "running"),
            ("1-1", "done"),
        ]


async def test_large_payload_of_a_job_that_redis_lacks_is_told_all_the_same(bench: Bench) -> None:
    payload = msgspec.json.encode({"text": " ".join(str(n) for n in range(5000))}).decode()
    jobs = [await bench.enqueue(payload=payload) for _ in range(3 * WINDOW)]
    await bench.publish()
    assert not await bench.node.hash_of(jobs[-1].id)
    await bench.done(await bench.take(jobs[-1]))

    await bench.publish()

    found, _ = await bench.found(jobs[-1])
    assert msgspec.json.decode(found["payload"]) == msgspec.json.decode(payload)
    assert await bench.types(jobs[-1]) == ["queued", "running", "done"]


async def test_row_that_was_taken_back_by_a_crash_is_published_again_and_changes_nothing(bench: Bench) -> None:
    job = await bench.enqueue()
    await bench.done(await bench.take(job))
    await bench.db.execute("CREATE TABLE copied AS SELECT * FROM outbox")
    await bench.publish()
    before = await bench.found(job)

    await bench.db.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM copied")
    await bench.publish()

    assert await bench.found(job) == before
    assert await bench.node.outbox_is_empty()


# -- the same whatever the pages ---------------------------------------------------------------------------------------


async def live(bench: Bench) -> dict[str, NewJob]:
    """Jobs that have gone through all kinds of things, some of them only begun."""
    names = "expired released queued running done retried failed canceled cancel_requested chatty chatty_running"
    jobs = {name: await bench.enqueue(max_attempts=3) for name in names.split()}
    jobs["delayed"] = await bench.enqueue(delay_s=3600)
    jobs["large"] = await bench.enqueue(payload=msgspec.json.encode({"text": list(range(3000))}).decode())
    await bench.take(jobs["expired"])
    await reap(bench.db, now=datetime.now(timezone.utc) + timedelta(hours=1), policy=POLICY)
    await release(bench.db, [held(await bench.take(jobs["released"]))])
    await bench.take(jobs["running"])
    await bench.done(await bench.take(jobs["done"]))
    await bench.done(await bench.take(jobs["large"]), None)
    await fail(bench.db, [failure(await bench.take(jobs["retried"]))], policy=POLICY)
    await bench.db.execute("UPDATE jobs SET due_at = NULL, order_at = now() WHERE due_at < now() + interval '1 hour'")
    await bench.done(await bench.take(jobs["retried"], 2))
    await fail(bench.db, [failure(await bench.take(jobs["failed"]), retryable=False)], policy=POLICY)
    await cancel(bench.db, [jobs["canceled"].id])
    await bench.take(jobs["cancel_requested"])
    await cancel(bench.db, [jobs["cancel_requested"].id])
    for name in ("chatty", "chatty_running"):
        claimed = await bench.take(jobs[name])
        for _ in range(2):
            events = [HandlerEvent("log", n, "step", msgspec.Raw(b'{"n": 1}')) for n in range(3)]
            await append_events(
                bench.db, [EventBatch(job_id=claimed.job_id, lease_token=claimed.lease_token, events=events)]
            )
        if name == "chatty":
            await bench.done(claimed)
    await take_first(bench.db, ["default"], owner_id="w", most=1, ttl_s=TTL_S)
    return jobs


async def keys_in_redis(bench: Bench) -> dict[str, object]:
    """All that clients may read there, by key."""
    found: dict[str, object] = {}
    async for key in bench.node.redis.scan_iter("job:*"):
        if key.endswith(":events"):
            found[key] = await bench.node.redis.xrange(key)
        else:
            fields = await bench.node.redis.hgetall(key)
            found[key] = {name: text for name, text in fields.items() if not name.startswith("jobd_")}
    return found


async def test_page_of_many_commits_leaves_the_same_as_one_commit_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node.config = msgspec.structs.replace(bench.node.config, relay=RelayConfig(stream_window=100))
    jobs = await live(bench)
    await bench.db.execute("CREATE TABLE copied AS SELECT * FROM outbox")
    await bench.publish()
    at_once = await keys_in_redis(bench)

    await bench.node.redis.flushall()
    await bench.relay.mirror.raise_epoch(bench.db)
    await bench.relay._forget(bench.db)
    await bench.relay.mirror.prepare(["default"], bench.relay.modes.fences())
    await bench.db.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM copied")
    monkeypatch.setattr("jobd.lifecycle.outbox.MOST_ROWS", 1)
    await bench.publish()
    one_by_one = await keys_in_redis(bench)

    assert at_once.keys() == one_by_one.keys()
    assert {key for key in at_once if not key.endswith(":events")} == {f"job:{job.id}" for job in jobs.values()}
    for key, found in at_once.items():
        assert one_by_one[key] == found, key


# -- a queue without a mirror ------------------------------------------------------------------------------------------


async def test_jobs_of_a_queue_without_a_mirror_leave_nothing_in_redis(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.done(await bench.take(await bench.enqueue(queue="bare")))
    await fail(bench.db, [failure(await bench.take(await bench.enqueue(queue="bare")), retryable=False)], policy=POLICY)
    await bench.take(await bench.enqueue(queue="bare"))
    await bench.enqueue(queue="bare")

    await bench.publish()
    await bench.relay._start_anew(bench.db)

    assert await bench.node.outbox_is_empty()
    assert [key async for key in bench.node.redis.scan_iter("job:*")] == []
    assert await bench.node.redis.xlen("jobs:stream:bare") == 0
    assert await bench.node.redis.exists("jobs:dlq") == 0


async def test_followers_hear_of_jobs_of_a_queue_without_a_mirror(bench: Bench) -> None:
    async def is_heard() -> bool:
        return bool((await bench.node.redis.pubsub_numsub("jobd:told"))[0][1])

    async with tailing(bench.node) as tailer:
        with tailer.listening() as listener:
            await wait_until_async(is_heard)
            await listener.next(0.0)
            job = await bench.enqueue(queue="bare")
            await bench.done(await bench.take(job))

            await bench.publish()

            notes = await listener.next(30.0)
    assert [(note.job_id, note.type, note.queue) for note in notes] == [
        (job.id, kind, "bare") for kind in ("queued", "running", "done")
    ]


# -- lag --------------------------------------------------------------------------------------------------------------


async def test_relay_knows_how_long_the_oldest_change_waits(bench: Bench) -> None:
    await bench.enqueue()
    await bench.db.execute("UPDATE outbox SET at = at - interval '100 seconds'")
    await bench.relay._gather(bench.db)
    while_waiting = bench.relay.lag_s()

    await bench.publish()

    assert while_waiting is not None
    assert while_waiting >= 100
    assert bench.relay.lag_s() == 0.0
    assert Relay(bench.db, bench.node.transport, Wakeup(), lambda: bench.node.config).lag_s() is None  # it stands by

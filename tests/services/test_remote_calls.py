"""What a worker makes of jobd's answers, and of what answers in its place."""

from __future__ import annotations

import contextlib
import json
import ssl
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from jobd.cli.worker import trusting
from jobd.client import ClientError
from jobd.config.model import Config, Leases
from jobd.errors import ServerRefused, TokenRefused, root_cause
from jobd.job.history import Cursor, HandlerEvent
from jobd.job.model import Completed, Conflicting, LeaseLost, Superseded
from jobd.leases.jobs import JobLeases
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.events import EventBatch, Kept, OutOfStep
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.lease import LeaseProof
from jobd.supervise.service import Handle
from jobd.tasks.runner import TaskFailed
from jobd.worker.claims import CLAIM_BYTES, RemoteClaims
from jobd.worker.engine import CALL_BYTES, RemoteEngine
from jobd.worker.renewal_line import HttpLine
from jobd.worker.session import WorkerSession
from tests.client.test_client_faults import Puppet, ScriptedAnswer, problem
from tests.support.certificates import make_certificate
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from anyio.abc import TaskStatus

    from jobd.lifecycle.claim import ClaimedJob

NOW = "2030-01-01T00:00:00Z"


def ids() -> dict[str, Any]:
    return {name: uuid.uuid4() for name in ("job_id", "attempt_id", "lease_token")}


def telling(*data: str) -> EventBatch:
    events = [HandlerEvent("token", 1, "", msgspec.Raw(json.dumps({"text": text}).encode())) for text in data]
    return EventBatch(job_id=uuid.uuid4(), lease_token=uuid.uuid4(), events=events, emitted_n=0)


def bodies(puppet: Puppet) -> list[Any]:
    return [json.loads(heard.body) for heard in puppet.heard]


class Remote:
    """An engine whose jobd is a puppet."""

    def __init__(self, puppet: Puppet, session: WorkerSession) -> None:
        self.puppet = puppet
        self.session = session
        self.engine = RemoteEngine(session, "w-1")


@contextlib.asynccontextmanager
async def remote(*answers: ScriptedAnswer) -> AsyncIterator[Remote]:
    with Puppet(*answers).serving() as puppet:
        async with WorkerSession(puppet.url, None) as session:
            yield Remote(puppet, session)


# -- reports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code", "retryable"),
    [
        (problem(413, "too_large"), "result_too_large", False),
        (problem(413, "body_too_large"), "result_too_large", False),
        (ScriptedAnswer(413, b"<html>too much</html>"), "result_too_large", False),
        (problem(422, "nul"), "bad_result", False),
        (problem(422, "result_too_deep"), "bad_result", False),
        (problem(400, "duplicate_key"), "bad_result", False),
        (problem(503, "result_not_kept", Retry_After="5"), "result_not_kept", True),
    ],
    ids=lambda value: (
        value.body["code"] if isinstance(value, ScriptedAnswer) and isinstance(value.body, dict) else None
    ),
)
async def test_result_that_is_not_taken_is_a_failure_to_report_instead(
    said: ScriptedAnswer, code: str, retryable: bool
) -> None:
    async with remote(said) as there:
        with pytest.raises(TaskFailed) as raised:
            await there.engine.complete(Completion(**ids(), result='{"a":1}'))

        assert (raised.value.code, raised.value.retryable) == (code, retryable)
        assert there.session._pace.next_at == 0.0, "jobd is well, so others need not wait"


@pytest.mark.parametrize(
    "said",
    [
        ScriptedAnswer(0),
        problem(500, "internal"),
        problem(503, "unavailable", Retry_After="1"),
        problem(429, "too_many_requests", Retry_After="1"),
        problem(401, "unauthorized"),
        ScriptedAnswer(404, b"<html>nothing here</html>"),
        ScriptedAnswer(502, b""),
        ScriptedAnswer(200, b"<html>welcome</html>"),
    ],
    ids=lambda said: f"{said.status}",
)
async def test_report_of_unknown_fate_is_to_be_made_again_after_a_pause(said: ScriptedAnswer) -> None:
    async with remote(said) as there:
        with pytest.raises(ClientError):
            await there.engine.complete(Completion(**ids(), result="1"))

        assert there.session._pace.next_at > 0.0
        assert there.session.is_up is False


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"ok": True, "ack": True}, Completed),
        ({"ok": True, "ack": True, "replay": True, "new": "field"}, Completed),
        ({"ok": False, "ack": True, "reason": "superseded"}, Superseded),
        ({"ok": False, "ack": True, "reason": "conflicting_outcome"}, Conflicting),
    ],
    ids=str,
)
async def test_answer_to_a_report_is_understood(body: dict[str, Any], kind: type) -> None:
    held = ids()
    async with remote(ScriptedAnswer(200, body)) as there:
        assert isinstance(await there.engine.complete(Completion(**held, result='{"a":[null]}')), kind)

        assert bodies(there.puppet) == [
            {"worker_id": "w-1", "result": {"a": [None]}, **{name: str(one) for name, one in held.items()}}
        ]


# -- leases --------------------------------------------------------------------------------------------------------


async def test_all_leases_are_renewed_in_one_call() -> None:
    beats = [LeaseProof(resource_id=uuid.uuid4(), lease_token=uuid.uuid4()) for _ in range(3)]
    usual = {"ok": True, "lease_expires_at": NOW, "cancel": False, "quiet": False, "lease_ttl_seconds": 60}
    jobs = [{**usual, "job_id": str(beat.resource_id)} for beat in beats]
    jobs[1] |= {"ok": False, "lease_expires_at": None, "reason": "lease_lost"}
    jobs[2] |= {"cancel": True}
    async with remote(ScriptedAnswer(200, {"jobs": jobs})) as there:
        first, second, third = await there.engine.heartbeat(beats)

        assert isinstance(first, Renewal)
        assert isinstance(second, LeaseLost)
        assert isinstance(third, Renewal)
        assert (first.cancel_requested, third.cancel_requested) == (False, True)
        assert len(there.puppet.heard) == 1


async def test_renewal_without_an_answer_is_lost_for_nobody() -> None:
    beats = [LeaseProof(resource_id=uuid.uuid4(), lease_token=uuid.uuid4()) for _ in range(2)]
    async with remote(ScriptedAnswer(0)) as there:
        answers = await there.engine.heartbeat(beats)

        assert [isinstance(answer, ClientError) for answer in answers] == [True, True]


async def test_guard_renews_on_a_line_of_its_own() -> None:
    beats = [LeaseProof(resource_id=uuid.uuid4(), lease_token=uuid.uuid4())]
    usual = {"ok": True, "lease_expires_at": NOW, "cancel": True, "quiet": False, "lease_ttl_seconds": 60}
    async with remote(
        ScriptedAnswer(200, {"jobs": [{**usual, "job_id": str(beats[0].resource_id)}]}), ScriptedAnswer(0)
    ) as there:
        there.session._pace.saw_failure(0.0, 60.0)
        line = HttpLine(lambda: WorkerSession(there.puppet.url, None), "w-1")

        (renewal,) = await line.renew(beats, 60)
        with pytest.raises(ClientError):
            await line.renew(beats, 60)

        assert isinstance(renewal, Renewal)
        assert renewal.cancel_requested
        assert bodies(there.puppet)[0]["jobs"][0]["lease_token"] == str(beats[0].lease_token)


class Renewer:
    """Grants every renewal."""

    def __init__(self) -> None:
        self.was_asked = anyio.Event()

    async def heartbeat(self, beats: Sequence[LeaseProof]) -> list[Renewal]:
        self.was_asked.set()
        at = datetime(2030, 1, 1, tzinfo=timezone.utc)
        return [Renewal(lease_expires_at=at, claim_version=1, cancel_requested=False) for _ in beats]


async def test_lease_that_is_shorter_than_any_before_is_renewed_in_time() -> None:
    renewer, before = Renewer(), Leases(ttl_s=36_000, heartbeat_s=3600)
    short = {**job(), "lease_ttl_seconds": 3, "heartbeat_interval_seconds": 1}
    async with remote(claimed(short)) as there, anyio.create_task_group() as tasks:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        leases = JobLeases(renewer, lambda: Config(leases=claims.leases or before))
        await tasks.start(keep, leases)

        hold = leases.hold(await taken_from(claims))

        with anyio.fail_after(30):
            await renewer.was_asked.wait()
        assert not hold.lost.is_set()
        tasks.cancel_scope.cancel()


async def keep(leases: JobLeases, *, task_status: TaskStatus[None]) -> None:
    await leases.run(Handle(task_status.started))


# -- TLS -----------------------------------------------------------------------------------------------------------


async def test_jobd_is_believed_by_its_certificate_only(folder: Path) -> None:
    certificate, key = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    puppet = Puppet(ScriptedAnswer(200, {"ok": True, "ack": True}))
    puppet._server.socket = context.wrap_socket(puppet._server.socket, server_side=True)
    url = puppet.url.replace("http:", "https:")
    with puppet.serving():
        async with WorkerSession(url, None, trusting(None)) as session:
            with pytest.raises(ClientError, match="CERTIFICATE_VERIFY_FAILED"):
                await RemoteEngine(session, "w-1").complete(Completion(**ids(), result="1"))
        async with WorkerSession(url, None, trusting(str(certificate))) as session:
            answer = await RemoteEngine(session, "w-1").complete(Completion(**ids(), result="1"))

    assert isinstance(answer, Completed)


# -- events --------------------------------------------------------------------------------------------------------


async def test_events_of_all_jobs_go_in_one_call() -> None:
    told = [
        {"ok": True, "last_event_id": "2-7"},
        {"ok": False, "reason": "out_of_step", "offset": 4},
        {"ok": False, "reason": "lease_lost"},
    ]
    async with remote(ScriptedAnswer(200, {"jobs": told})) as there:
        answers = await there.engine.emit_many([telling("a", "b"), telling("c"), telling("d")])

        assert answers == [Kept(Cursor(2, 7)), OutOfStep(4), LeaseLost()]
        (body,) = bodies(there.puppet)
        assert [[event["data"]["text"] for event in job["events"]] for job in body["jobs"]] == [
            ["a", "b"],
            ["c"],
            ["d"],
        ]


async def test_one_job_whose_events_are_refused_costs_the_others_nothing() -> None:
    good, bad = ScriptedAnswer(200, {"jobs": [{"ok": True, "last_event_id": "1-1"}]}), problem(422, "invalid")
    async with remote(bad, good, bad) as there:
        first, second = await there.engine.emit_many([telling("a"), telling("b")])

        assert first == Kept(Cursor(1, 1))
        assert isinstance(second, ValueError)


async def test_more_events_than_a_call_takes_go_in_several() -> None:
    large = telling(*["x" * 16_000] * 100)
    kept = ScriptedAnswer(200, {"jobs": [{"ok": True, "last_event_id": "1-1"}]})
    async with remote(kept, kept) as there:
        answers = await there.engine.emit_many([large, large])

        assert answers == [Kept(Cursor(1, 1))] * 2
        assert max(len(heard.body) for heard in there.puppet.heard) <= CALL_BYTES


# -- claims --------------------------------------------------------------------------------------------------------


def claimed(*jobs: dict[str, Any]) -> ScriptedAnswer:
    return ScriptedAnswer(200, {"claimed": bool(jobs), "max_wait_ms": 0, "jobs": jobs})


def job() -> dict[str, Any]:
    return {
        **{name: str(one) for name, one in ids().items()},
        **{"stream": "jobs:stream", "message_id": "1-0", "payload": {"n": 1}, "task": "chat", "attempt": 1},
        **{"lease_ttl_seconds": 12, "heartbeat_interval_seconds": 3.5, "max_attempts": 3, "timeout_s": 9.5},
        "enqueue_id": 1,
    }


class SlotsOfQueue:
    """Keep what they are handed. After each time they want as many as they were made with, in turn, and then none."""

    def __init__(self, claims: RemoteClaims, *wants: int) -> None:
        self.jobs: list[ClaimedJob] = []
        self.handed: list[list[str]] = []
        self._wants = iter(wants)
        self.want = claims.open("default", "w-1", self)

    def take_over(self, jobs: Sequence[ClaimedJob], asked: int | None = None) -> None:
        self.jobs += jobs
        self.handed.append([str(taken.job_id) for taken in jobs])
        self.want(next(self._wants, 0), False)

    async def until_handed(self, times: int) -> None:
        await wait_until_async(lambda: len(self.handed) == times)


@contextlib.asynccontextmanager
async def claiming(claims: RemoteClaims) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claims.run, Handle(lambda: None))
        yield
        tasks.cancel_scope.cancel()


async def test_job_comes_with_the_lease_that_jobd_grants() -> None:
    async with remote(claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)

        taken = await taken_from(claims)

        assert (taken.task, taken.payload, taken.timeout_s) == ("chat", '{"n": 1}', 9.5)
        assert claims.leases is not None
        assert (claims.leases.ttl_s, claims.leases.heartbeat_s) == (12, 3.5)


async def test_job_that_nobody_asked_for_is_handed_back() -> None:
    first, second = job(), job()
    released = ScriptedAnswer(200, {"ok": True, "ack": True, "requeued": True})
    async with remote(claimed(first, second), released) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        async with claiming(claims):
            slots.want(1, False)
            await wait_until_async(lambda: there.engine.released == 1)

        asked, handed_back = bodies(there.puppet)
        assert asked == {"worker_id": "w-1", "streams": ["jobs:stream"], "max_wait_ms": 0, "max_jobs": 1}
        assert slots.handed == [[first["job_id"]]]
        assert handed_back["job_id"] == second["job_id"]


async def test_all_jobs_that_are_wanted_before_a_call_are_asked_for_by_it_and_come_in_order() -> None:
    jobs = [job() for _ in range(5)]
    async with remote(claimed(*jobs[:4]), claimed(jobs[4])) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims, 1)
        slots.want(3, False)
        slots.want(5, False)
        async with claiming(claims):
            await slots.until_handed(2)

        assert [body["max_jobs"] for body in bodies(there.puppet)] == [5, 1]
        ids_of = [one["job_id"] for one in jobs]
        assert slots.handed == [ids_of[:4], ids_of[4:]]


async def test_slots_are_handed_all_that_an_answer_brings_at_once() -> None:
    jobs = [job() for _ in range(3)]
    async with remote(claimed(*jobs)) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        async with claiming(claims):
            slots.want(5, False)
            await slots.until_handed(1)

        assert slots.handed == [[one["job_id"] for one in jobs]]
        assert bodies(there.puppet)[0]["max_jobs"] == 5


async def test_nothing_is_claimed_while_nothing_is_wanted() -> None:
    async with remote(claimed(job()), claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        async with claiming(claims):
            slots.want(1, False)
            slots.want(0, False)
            await anyio.wait_all_tasks_blocked()
            assert there.puppet.heard == []
            slots.want(1, True)
            await slots.until_handed(1)
            await anyio.wait_all_tasks_blocked()

        assert len(there.puppet.heard) == 1


async def test_job_that_comes_when_it_is_no_longer_wanted_is_handed_back() -> None:
    first, second = job(), job()
    released = ScriptedAnswer(200, {"ok": True, "ack": True, "requeued": True})
    async with remote(claimed(first, second), released) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        post = there.session.post_at_once

        async def wanting_less(*arguments: Any, **more: Any) -> Any:
            answer: Any = await post(*arguments, **more)
            slots.want(1 if not slots.handed else 0, False)
            return answer

        there.session.post_at_once = wanting_less  # type: ignore[method-assign]  # between the call and its answer
        async with claiming(claims):
            slots.want(2, False)
            await wait_until_async(lambda: there.engine.released == 1)

        assert slots.handed == [[first["job_id"]]]
        assert bodies(there.puppet)[1]["job_id"] == second["job_id"]


async def test_claim_for_more_jobs_than_can_begin_does_not_wait_and_says_when_there_are_none() -> None:
    async with remote(claimed(job()), claimed(job(), job()), claimed(), claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], slots={"default": 2}, release=there.engine.release)
        slots = SlotsOfQueue(claims, 9, 9, 2)
        async with claiming(claims):
            slots.want(2, False)
            await slots.until_handed(4)

        calls = [(body["max_jobs"], body["max_wait_ms"]) for body in bodies(there.puppet)]
        assert calls == [(2, 0), (9, 0), (9, 0), (2, 30_000)]
        assert [len(handed) for handed in slots.handed] == [1, 2, 0, 1]


async def test_older_jobd_is_asked_for_as_many_jobs_as_it_knows() -> None:
    async with remote(claimed(), problem(422, "invalid"), claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        async with claiming(claims):
            slots.want(700, False)
            await slots.until_handed(1)

        assert [body["max_jobs"] for body in bodies(there.puppet)] == [500, 500, 100]


async def test_jobs_with_large_payloads_are_claimed_in_calls_of_bounded_size() -> None:
    large = {**job(), "payload": {"text": "x" * (CLAIM_BYTES // 4)}}
    async with remote(claimed(large, large), claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims, 100)
        async with claiming(claims):
            slots.want(100, False)
            await slots.until_handed(2)

        assert [body["max_jobs"] for body in bodies(there.puppet)] == [100, 3]


async def test_shortest_lease_of_all_jobs_is_the_one_to_be_renewed_by() -> None:
    jobs = [
        {**job(), "lease_ttl_seconds": ttl_s, "heartbeat_interval_seconds": beat_s}
        for ttl_s, beat_s in ((12, 3), (60, 2), (9, 5))
    ]
    async with remote(claimed(*jobs)) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        slots = SlotsOfQueue(claims)
        async with claiming(claims):
            slots.want(3, False)
            await slots.until_handed(1)

        assert claims.leases == Leases(ttl_s=9, heartbeat_s=2)
        assert there.session.lease_s == 9


async def test_jobd_that_does_not_hold_a_claim_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    def draw(low: float, high: float) -> float:
        paused.append(high)
        return 0.0

    monkeypatch.setattr("jobd.worker.claims.random.uniform", draw)
    async with remote(claimed(), claimed(), claimed(), claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)

        await taken_from(claims)

        assert [body["max_wait_ms"] for body in bodies(there.puppet)] == [0, 30_000, 30_000, 30_000]
        assert len(paused) == 2


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (problem(401, "unauthorized"), TokenRefused),
        (problem(403, "forbidden"), TokenRefused),
        (problem(422, "unknown_stream"), ServerRefused),
        (problem(422, "invalid"), ServerRefused),
        (problem(503, "unavailable"), None),
        (problem(429, "too_many_attempts", Retry_After="0"), None),
        (ScriptedAnswer(404, b"<html>"), None),
        (ScriptedAnswer(0), None),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, ScriptedAnswer) else None,
)
async def test_worker_goes_on_unless_it_is_pointless(said: ScriptedAnswer, error: type[Exception] | None) -> None:
    async with remote(said, claimed(job())) as there:
        claims = RemoteClaims(there.session, "w-1", ["default"], release=there.engine.release)
        if error is None:
            assert (await taken_from(claims)).task == "chat"
        else:
            with pytest.raises(Exception) as raised:
                await taken_from(claims)
            assert isinstance(root_cause(raised.value), error)


async def taken_from(claims: RemoteClaims) -> ClaimedJob:
    slots = SlotsOfQueue(claims)
    async with claiming(claims):
        slots.want(1, False)
        await slots.until_handed(1)
    (job,) = slots.jobs
    return job

"""The batch service on a real Postgres: broken off anywhere it goes on, and every line is run and answered once."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.batches import finish, submit, validate
from jobd.batches.service import BatchService
from jobd.batches.table import NewBatch, StoredBatch, cancel_batch, create_batch, prune_batches, read_batch
from jobd.config.model import Config, Limits, ModelConfig, Queue, Task
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.files.storage import FileStorage, FileWriter
from jobd.files.table import NewStoredFile, create_file, delete_file, prune_files, read_file
from jobd.job.retry import RetryPolicy
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.prune import prune
from jobd.lifecycle.read import read_jobs
from jobd.lifecycle.settle import settle
from jobd.openai.batch_lines import line_job_id
from jobd.store.ids import new_id
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.support.claims import take_first
from tests.support.factories import completion, failure
from tests.support.node import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from uuid import UUID

CHAT = "/v1/chat/completions"
CONFIG = Config(
    queues={"default": Queue(slots=2)},
    tasks={"chat": Task(run="mock")},
    models={"m": ModelConfig(task="chat")},
    limits=Limits(inline_result_bytes=500),
)
POLICY = RetryPolicy(base_s=0, cap_s=0)


class KilledHere(BaseException):
    """Nothing in jobd catches it."""


def line(n: int, say: str = "ok") -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": say}]}
    return json.dumps({"custom_id": f"line {n}", "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"


def content_of(number: int) -> bytes:
    """Every third line fails, every fifth has a long answer; some are empty."""
    says = ("fail" if n % 3 == 2 else "long" if n % 5 == 4 else "ok" for n in range(number))
    return b"".join(line(n, say) + b"\n" * (n % 4 == 0) for n, say in enumerate(says))


class World:
    """A database, a data directory, and the workers of the jobs."""

    def __init__(self, database: Database, data_dir: Path, config: Config = CONFIG) -> None:
        self.database = database
        self.files = FileStorage(data_dir)
        self.results = Results(data_dir, lambda: config)
        self.config = config
        self.handle = Handle(lambda: None)
        #: How often each job was run.
        self.runs: dict[UUID, int] = {}

    def service(self) -> BatchService:
        """As after a start: nothing is left but the rows and the files."""
        engine = Engine(self.database, lambda: self.config)
        return BatchService(engine, self.files, self.results, lambda: self.config, {})

    async def send(self, content: bytes) -> UUID:
        file_id = new_id()
        async with self.files.new_file(file_id) as writer:
            await writer.write(content)
            ref = await writer.keep()
            await create_file(
                self.database,
                NewStoredFile(
                    id=file_id, owner="ann", filename="f", purpose="batch", bytes=len(content), ref=ref, keep_s=3600
                ),
            )
        return file_id

    async def make(self, content: bytes) -> UUID:
        batch_id = new_id()
        made = await create_batch(
            self.database,
            NewBatch(
                id=batch_id,
                owner="ann",
                endpoint=CHAT,
                input_file_id=await self.send(content),
                metadata=None,
                keep_output_s=None,
                window_s=86_400,
            ),
        )
        assert made
        return batch_id

    async def work(self, most: int = 1000) -> int:
        """Run jobs that wait as their payload says, and count them in their groups."""
        claimed = await take_first(self.database, ["default"], owner_id="w", most=most, ttl_s=60)
        jobs = await read_jobs(self.database, [job.job_id for job in claimed])
        for job in claimed:
            self.runs[job.job_id] = self.runs.get(job.job_id, 0) + 1
            say = json.loads(jobs[job.job_id].payload)["messages"][0]["content"]
            if say == "fail":
                await fail(self.database.pool, [failure(job, retryable=False)], policy=POLICY)
                continue
            text = json.dumps({"text": "x" * 1000 if say == "long" else "yes", "usage": USAGE})
            ref = await self.results.keep(job, text.encode())
            await complete(self.database.pool, [completion(job, result=None if ref else text, result_ref=ref)])
        await self.settle()
        return len(claimed)

    async def settle(self) -> None:
        async with self.database.connection() as connection:
            while (await settle(connection)).ends:
                pass

    async def read(self, batch_id: UUID) -> StoredBatch:
        batch = await read_batch(self.database, batch_id)
        assert batch is not None
        return batch

    async def until(self, batch_id: UUID, *statuses: str, service: BatchService | None = None, work: int = 7) -> Any:
        """Let the service and the workers go on until the batch has such a status."""
        service = service or self.service()
        for _ in range(100):
            await service.run_once(self.handle)
            if (batch := await self.read(batch_id)).status in statuses:
                return batch
            await self.work(work)
        raise AssertionError(f"the batch stays {batch}")

    async def lines(self, file_id: UUID | None) -> list[Any]:
        if file_id is None:
            return []
        file = await read_file(self.database, file_id)
        assert file is not None
        opened = await self.files.open(file.ref)
        with opened.file:
            found = opened.file.read()
        assert len(found) == file.bytes
        return [json.loads(text) for text in found.splitlines()]

    async def check_whole(self, batch_id: UUID, number: int) -> None:
        """Every line once, in the order of the input, by what its job ended with; every job run once."""
        batch = await self.read(batch_id)
        output, errors = await self.lines(batch.output_file_id), await self.lines(batch.error_file_id)
        names = [f"line {n}" for n in range(number)]
        assert [one["custom_id"] for one in errors] == names[2::3]
        assert [one["custom_id"] for one in output] == [name for name in names if name not in names[2::3]]
        assert {one["response"]["body"]["error"]["code"] for one in errors} <= {"boom"}
        for one in output:
            n = int(one["custom_id"].split()[1])
            text = one["response"]["body"]["choices"][0]["message"]["content"]
            assert text == ("x" * 1000 if n % 5 == 4 else "yes")
        assert (batch.total, batch.completed, batch.failed) == (number, len(output), len(errors))
        assert msgspec.json.decode(batch.usage or "")["total_tokens"] == 5 * len(output)
        assert sorted(self.runs.values()) == [1] * number
        assert len(list(self.files.walk())) == 1 + bool(output) + bool(errors)


USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


@pytest.fixture
async def world(shared_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(validate, "STEP_LINES", 4)
    monkeypatch.setattr(submit, "STEP_LINES", 5)
    monkeypatch.setattr(finish, "STEP_LINES", 6)
    database = Database(await new_database(shared_postgres), 4)
    async with database.opened():
        yield World(database, tmp_path)


async def test_a_batch_goes_its_way(world: World) -> None:
    batch_id = await world.make(content_of(20))

    batch = await world.until(batch_id, "completed")

    assert batch.model == "m"
    await world.check_whole(batch_id, 20)


# -- broken off --------------------------------------------------------------------------------------------------------


def broken(function: Callable[..., Any], nth: int, *, after: bool) -> Callable[..., Any]:
    """The function, which is killed before or after its nth call."""
    calls = 0

    def is_reached() -> bool:
        nonlocal calls
        calls += 1
        return calls == nth

    async def wrapped(*arguments: Any, **named: Any) -> Any:
        reached = is_reached()
        if reached and not after:
            raise KilledHere
        answer = await function(*arguments, **named)
        if reached:
            raise KilledHere
        return answer

    def wrapped_plain(*arguments: Any, **named: Any) -> Any:
        reached = is_reached()
        if reached and not after:
            raise KilledHere
        answer = function(*arguments, **named)
        if reached:
            raise KilledHere
        return answer

    return wrapped if inspect.iscoroutinefunction(function) else wrapped_plain


POINTS: dict[str, tuple[object, str, int, bool]] = {
    "while lines are looked at": (validate.Validation, "step", 2, True),
    "before the batch begins": (validate, "begin_batch", 1, False),
    "before its group is there": (validate, "create_group", 1, False),
    "before lines become jobs": (submit, "enqueue_within", 1, False),
    "before jobs are committed": (submit, "enqueue_within", 2, True),
    "when jobs are committed": (Engine, "enqueued", 2, False),
    "before the last line is known": (Engine, "seal_group", 1, False),
    "when the group is sealed": (Engine, "seal_group", 1, True),
    "before the files": (finish, "read_line_ends", 1, False),
    "while the files are written": (finish.Finish, "_write_lines", 3, True),
    "before the first file has its name": (FileWriter, "keep", 2, False),
    "before the second file has its name": (FileWriter, "keep", 3, False),
    "when both have their names": (FileWriter, "keep", 3, True),
    "before the last commit": (finish, "finish_batch", 1, True),
    "within the last commit": (finish, "create_file", 1, True),
}


@pytest.mark.parametrize("name", POINTS)
async def test_a_batch_broken_off_goes_on_from_its_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    where, function, nth, after = POINTS[name]
    with monkeypatch.context() as patch:
        patch.setattr(where, function, broken(getattr(where, function), nth, after=after))
        batch_id = await world.make(content_of(20))
        with pytest.raises(KilledHere):
            await world.until(batch_id, "completed")

    await world.until(batch_id, "completed")

    await world.check_whole(batch_id, 20)


async def test_a_batch_is_cancelled_by_a_service_that_did_not_begin_it(world: World) -> None:
    batch_id = await world.make(content_of(20))
    await world.until(batch_id, "in_progress")
    await world.service().run_once(world.handle)
    await world.work(7)
    done = set(world.runs)
    await cancel_batch(world.database, batch_id)

    batch = await world.until(batch_id, "cancelled", work=0)

    output, errors = await world.lines(batch.output_file_id), await world.lines(batch.error_file_id)
    assert (batch.completed, batch.failed) == (len(output), len(errors))
    assert sorted(one["custom_id"] for one in output + errors) == sorted(f"line {n}" for n in range(20))
    answered = {one["id"] for one in output + errors if one["response"] is not None}
    assert answered == {f"batch_req_{job_id.hex}" for job_id in done}
    assert {one["error"]["code"] for one in errors if one["error"] is not None} == {"batch_cancelled"}


@pytest.mark.parametrize("begun", [False, True])
async def test_a_batch_whose_window_is_over_ends_with_what_is_done(world: World, begun: bool) -> None:
    batch_id = await world.make(content_of(20))
    if begun:
        await world.until(batch_id, "in_progress")
        await world.service().run_once(world.handle)
        await world.work(7)
    await world.database.execute("UPDATE batches SET expires_at = created_at")

    batch = await world.until(batch_id, "expired", work=0)

    output, errors = await world.lines(batch.output_file_id), await world.lines(batch.error_file_id)
    assert batch.finalizing_at is not None
    assert len(output + errors) == (20 if begun else 0)
    assert {one["error"]["code"] for one in errors if one["error"] is not None} == (
        {"batch_expired"} if begun else set()
    )
    assert len(world.runs) == (7 if begun else 0)


async def test_a_batch_cancelled_before_it_began_has_no_files(world: World) -> None:
    batch_id = await world.make(content_of(20))
    await cancel_batch(world.database, batch_id)

    batch = await world.until(batch_id, "cancelled")

    assert (batch.output_file_id, batch.error_file_id, batch.members) == (None, None, 0)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_batch_whose_input_is_lost_fails_and_runs_nothing_more(world: World, begun: bool) -> None:
    batch_id = await world.make(content_of(20))
    if begun:
        await world.until(batch_id, "in_progress")
        await world.service().run_once(world.handle)
    await world.files.remove([file.ref for file in world.files.walk()])
    if begun:
        await world.work(7)
        await world.database.execute("UPDATE batches SET status = 'finalizing', ending = 'completed'")

    batch = await world.until(batch_id, "failed", work=0)

    assert [fault["code"] for fault in json.loads(batch.errors)] == ["input_lost"]
    assert batch.pending == 0
    assert await world.work() == 0


async def test_a_batch_whose_input_is_on_another_node_is_left_to_it(world: World) -> None:
    batch_id = await world.make(content_of(20))
    await world.database.execute("UPDATE files SET ref = replace(ref, $1, 'other-0a1b2c3d')", world.files.node)

    for _ in range(3):
        await world.service().run_once(world.handle)

    assert (await world.read(batch_id)).status == "validating"


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_lines_become_jobs_a_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "AHEAD", 8)
    monkeypatch.setattr("jobd.batches.service.AHEAD", 8)
    batch_id = await world.make(content_of(20))

    service, seen = world.service(), []
    for _ in range(20):
        await service.run_once(world.handle)
        seen.append((await world.read(batch_id)).pending)
        await world.work(3)

    assert max(seen) == 8
    await world.check_whole(batch_id, 20)


async def test_a_full_queue_is_waited_for(world: World) -> None:
    world.config = msgspec.structs.replace(CONFIG, limits=Limits(inline_result_bytes=500, max_queued=6))
    batch_id = await world.make(content_of(20))

    await world.until(batch_id, "completed")

    await world.check_whole(batch_id, 20)


async def test_lines_that_cannot_become_jobs_any_more_have_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await world.make(content_of(2))
    with monkeypatch.context() as patch:
        patch.setattr("jobd.batches.service.AHEAD", 0)
        await world.until(batch_id, "in_progress")
    world.config = msgspec.structs.replace(CONFIG, models={})

    batch = await world.until(batch_id, "completed")

    assert (batch.completed, batch.failed, batch.members) == (0, 2, 0)
    assert [one["error"]["code"] for one in await world.lines(batch.error_file_id)] == ["job_deleted"] * 2


async def test_more_lines_than_a_batch_may_have_fail_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "MAX_LINES", 10)

    good = await world.until(await world.make(content_of(10)), "completed")
    bad = await world.until(await world.make(content_of(11)), "failed")

    assert good.total == 10
    assert [fault["code"] for fault in json.loads(bad.errors)] == ["too_many_lines"]


async def test_a_fault_of_one_batch_leaves_the_others_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await world.make(content_of(5)), await world.make(content_of(5))
    original = validate.Validation.step

    def step(self: validate.Validation) -> bool:
        if self._batch.id == bad:
            raise RuntimeError("a fault")
        return original(self)

    monkeypatch.setattr(validate.Validation, "step", step)

    await world.until(good, "completed")

    assert (await world.read(bad)).status == "validating"


# -- what is kept ------------------------------------------------------------------------------------------------------


async def test_retention_keeps_what_an_open_batch_will_read(world: World) -> None:
    batch_id = await world.make(content_of(20))
    await world.until(batch_id, "in_progress")
    while len(world.runs) < 20:
        await world.service().run_once(world.handle)
        await world.work()
    batch = await world.read(batch_id)
    await world.database.execute("UPDATE files SET expires_at = created_at - interval '1 day'")

    early = await prune(world.database, keep_s=-10, most=500)
    files = await prune_files(world.database, most=10)
    deleted = await delete_file(world.database, batch.input_file_id)
    await world.until(batch_id, "completed")
    late = await prune(world.database, keep_s=-10, most=500)

    assert (early.jobs, files, deleted) == (0, [], None)
    await world.check_whole(batch_id, 20)
    assert late.jobs == 20
    assert len(await prune_files(world.database, most=10)) == 1


async def test_a_batch_goes_when_it_ended_long_ago(world: World) -> None:
    batch_id = await world.make(content_of(1))
    open_id = await world.make(content_of(1))
    await world.until(batch_id, "completed", work=1)
    await world.database.execute("UPDATE batches SET status = 'validating', finished_at = NULL WHERE id = $1", open_id)

    assert await prune_batches(world.database, keep_s=3600) == 0
    assert await prune_batches(world.database, keep_s=-10) == 1

    assert await read_batch(world.database, batch_id) is None
    assert await read_batch(world.database, open_id) is not None


def test_ids_of_lines_are_different_in_order_and_of_their_batch() -> None:
    first, second = new_id(), new_id()
    ids = [line_job_id(first, n) for n in range(1, 50_001)]

    assert ids == sorted(set(ids))
    assert {one.version for one in ids} == {7}
    assert not {*ids} & {line_job_id(second, n) for n in range(1, 50_001)}
    assert ids == [line_job_id(first, n) for n in range(1, 50_001)]

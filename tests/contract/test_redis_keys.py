"""What clients and raw workers find in Redis: every key, field and type of the contract, byte for byte."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.node import Node

FIELDS = ["job_id", "task", "payload", "status", "created_ts", "updated_ts", "ttl_s", "result", "error"]
MILLISECONDS = re.compile(r"1\d{12}")


async def until_told(node: Node) -> None:
    await wait_until_async(node.outbox_is_empty)


async def types_of(node: Node, job_id: UUID) -> list[str]:
    return [fields["type"] for _, fields in await node.events_of(job_id)]


async def test_queued_job_is_a_hash_of_strings_with_json_in_three_fields(node: Node) -> None:
    job = await node.enqueue(payload='{"text": "grüße", "n": 1.5}', ttl_s=777)
    await until_told(node)

    found = await node.hash_of(job.id)

    assert await node.redis.type(f"job:{job.id}") == "hash"
    assert set(FIELDS) <= set(found)
    assert {name for name in found if name not in FIELDS} <= {
        "jobd_version",
        "jobd_offered",
        "jobd_event",
        "jobd_event_bytes",
        "jobd_message",
        "jobd_epoch",
    }
    assert found["job_id"] == str(job.id)
    assert found["task"] == "chat"
    assert json.loads(found["payload"]) == {"text": "grüße", "n": 1.5}
    assert found["status"] == "queued"
    assert MILLISECONDS.fullmatch(found["created_ts"])
    assert MILLISECONDS.fullmatch(found["updated_ts"])
    assert found["ttl_s"] == "777"
    assert (found["result"], found["error"]) == ("", "")


async def test_first_event_is_queued_by_the_gateway(node: Node) -> None:
    job = await node.enqueue()
    await until_told(node)

    ((event_id, fields),) = await node.events_of(job.id)

    assert event_id == "0-1"
    assert list(fields) == ["type", "ts", "step", "data"]
    assert MILLISECONDS.fullmatch(fields["ts"])
    assert (fields["type"], fields["step"], fields["data"]) == ("queued", "gateway.enqueue", "{}")


async def test_message_in_the_stream_has_the_fields_of_the_contract(node: Node) -> None:
    job = await node.enqueue()
    await wait_until_async(lambda: node.redis.xlen("jobs:stream"))

    ((_, (message,)),) = await node.redis.xreadgroup("workers", "raw", {"jobs:stream": ">"})

    assert list(message[1]) == ["job_id", "task", "payload", "enqueue_id"]
    assert message[1]["job_id"] == str(job.id)
    assert json.loads(message[1]["payload"]) == {"text": "hello"}
    assert message[1]["enqueue_id"] == "1"


async def test_both_keys_expire_and_every_update_refreshes_them(node: Node) -> None:
    job = await node.enqueue(ttl_s=500)
    await until_told(node)
    for key in (f"job:{job.id}", f"job:{job.id}:events"):
        assert 490 <= await node.redis.ttl(key) <= 500
        await node.redis.expire(key, 5)

    await node.claim(job)
    await until_told(node)

    for key in (f"job:{job.id}", f"job:{job.id}:events"):
        assert 490 <= await node.redis.ttl(key) <= 500


async def test_done_job_has_its_result_and_events_in_order(node: Node) -> None:
    job = await node.enqueue()
    claimed = await node.claim(job)
    await node.done(claimed, '{"answer": 42}')
    await until_told(node)

    found = await node.hash_of(job.id)

    assert found["status"] == "done"
    assert json.loads(found["result"]) == {"answer": 42}
    assert found["error"] == ""
    assert await types_of(node, job.id) == ["queued", "running", "done"]


async def test_failed_job_has_its_error_and_is_announced_as_dead_letter(node: Node) -> None:
    job = await node.enqueue()
    claimed = await node.claim(job)
    error = '{"code": "boom", "message": "no", "retryable": false}'
    await node.failed(claimed, error, retryable=False)
    await until_told(node)

    found = await node.hash_of(job.id)
    ((_, dead),) = await node.redis.xrange("jobs:dlq")

    assert found["status"] == "error"
    assert json.loads(found["error"])["code"] == "boom"
    assert await types_of(node, job.id) == ["queued", "running", "error"]
    assert dead["job_id"] == str(job.id)


async def test_canceled_job_ends_with_a_canceled_event(node: Node) -> None:
    job = await node.enqueue()
    await node.engine.cancel([job.id])
    await until_told(node)

    assert (await node.hash_of(job.id))["status"] == "canceled"
    assert await types_of(node, job.id) == ["queued", "canceled"]


async def test_event_ids_only_grow_over_retries(node: Node) -> None:
    job = await node.enqueue(max_attempts=2)
    claimed = await node.claim(job)
    await node.failed(claimed)
    await until_told(node)

    ids = [tuple(map(int, event_id.split("-"))) for event_id, _ in await node.events_of(job.id)]

    assert ids == sorted(set(ids))
    assert await types_of(node, job.id) == ["queued", "running", "queued"]


async def test_message_is_acknowledged_and_deleted_only_with_the_terminal_event(node: Node) -> None:
    job = await node.enqueue()
    await wait_until_async(lambda: node.redis.xlen("jobs:stream"))
    ((_, ((message_id, _),)),) = await node.redis.xreadgroup("workers", "raw", {"jobs:stream": ">"})
    claimed = await node.claim(job, stream="jobs:stream", message_id=message_id)
    await until_told(node)
    pending_while_running = (await node.redis.xpending("jobs:stream", "workers"))["pending"]

    await node.done(claimed)
    await until_told(node)

    assert pending_while_running == 1
    assert (await node.redis.xpending("jobs:stream", "workers"))["pending"] == 0
    assert await node.redis.xlen("jobs:stream") == 0
    assert (await types_of(node, job.id))[-1] == "done"

"""The lease engine for whatever is not a job, and the claim record that it publishes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import anyio
import asyncpg
import pytest

from jobd.lifecycle.lease import LeaseProof, LeaseRecord, acquire, claim_record_schema, release, renew
from jobd.store.ids import new_id, new_ids
from tests.support.factories import NOW, TTL_S, all_rows, at, make_running

if TYPE_CHECKING:
    from jobd.lifecycle.lease import ResourceType
    from jobd.store.postgres import Database


async def take(
    db: Database, *ids: UUID, owner: str = "w1", seconds: float = 0, kind: ResourceType = "EVENT"
) -> list[LeaseRecord | None]:
    return await acquire(db, kind, ids, owner_id=owner, ttl_s=TTL_S, now=at(seconds))


async def take_one(db: Database, resource_id: UUID, owner: str = "w1", seconds: float = 0) -> LeaseRecord:
    (record,) = await take(db, resource_id, owner=owner, seconds=seconds)
    assert record is not None
    return record


def proof(record: LeaseRecord, **changes: Any) -> LeaseProof:
    return LeaseProof(**{"resource_id": record.resource_id, "lease_token": record.lease_token, **changes})


async def extend(
    db: Database, *proofs: LeaseProof, seconds: float = 0, kind: ResourceType = "EVENT"
) -> list[LeaseRecord | None]:
    return await renew(db, kind, proofs, ttl_s=TTL_S, now=at(seconds))


# Acquire


async def test_a_free_resource_is_acquired(db: Database) -> None:
    event = new_id()

    record = await take_one(db, event)

    assert (record.resource_type, record.resource_id, record.owner_id) == ("EVENT", event, "w1")
    assert (record.claim_version, record.lease_expires_at, record.heartbeat_at) == (1, at(TTL_S), NOW)


@pytest.mark.parametrize(("seconds", "taken"), [(0, False), (TTL_S - 1, False), (TTL_S + 1, True)])
async def test_a_held_resource_is_acquired_once_its_lease_expired(db: Database, seconds: float, taken: bool) -> None:
    first = await take_one(db, new_id())

    (second,) = await take(db, first.resource_id, owner="w2", seconds=seconds)

    assert (second is not None) == taken
    if second is not None:
        assert (second.owner_id, second.claim_version) == ("w2", 2)
        assert second.lease_token != first.lease_token
        assert second.lease_expires_at == at(seconds + TTL_S)


async def test_the_owner_itself_does_not_acquire_what_it_holds(db: Database) -> None:
    first = await take_one(db, new_id())

    assert await take(db, first.resource_id) == [None]


async def test_answers_are_in_the_order_of_the_resources(db: Database) -> None:
    free, mine = new_id(), (await take_one(db, new_id())).resource_id
    other = new_id()

    records = await take(db, other, mine, free, other, owner="w2")

    assert [record and record.resource_id for record in records] == [other, None, free, other]
    assert await take(db) == []


async def test_of_many_who_acquire_at_once_each_resource_goes_to_one(db: Database) -> None:
    ids = new_ids(20)
    won: list[UUID] = []

    async def work(turn: int) -> None:
        order = ids if turn % 2 else ids[::-1]
        records = await acquire(db, "WORKORDER", order, owner_id=f"w{turn}", ttl_s=TTL_S)
        won.extend(record.resource_id for record in records if record is not None)

    async with anyio.create_task_group() as tasks:
        for turn in range(10):
            tasks.start_soon(work, turn)

    assert sorted(won) == ids


async def test_the_lease_of_a_job_is_never_acquired_this_way(db: Database) -> None:
    claimed = await make_running(db)
    before = await all_rows(db)

    assert await take(db, claimed.job_id, seconds=TTL_S + 1) == [None]
    assert await all_rows(db) == before


async def test_a_lease_of_another_kind_is_never_acquired(db: Database) -> None:
    order = new_id()
    await take(db, order, kind="WORKORDER")

    assert await take(db, order, seconds=TTL_S + 1) == [None]


# Renew


async def test_a_renewal_extends_the_lease_and_counts_up_its_version(db: Database) -> None:
    record = await take_one(db, new_id())

    (renewed,) = await extend(db, proof(record), seconds=20)

    assert renewed is not None
    assert (renewed.claim_version, renewed.lease_expires_at, renewed.heartbeat_at) == (2, at(20 + TTL_S), at(20))
    assert renewed.lease_token == record.lease_token


async def test_an_expired_lease_that_nobody_took_is_renewed(db: Database) -> None:
    record = await take_one(db, new_id())

    assert await extend(db, proof(record), seconds=1000) != [None]


async def test_the_expiry_never_goes_back_though_the_clock_does(db: Database) -> None:
    record = await take_one(db, new_id())

    (renewed,) = await extend(db, proof(record), seconds=-30)

    assert renewed is not None
    assert renewed.lease_expires_at == record.lease_expires_at


@pytest.mark.parametrize(("shown", "kept"), [(None, True), (1, True), (0, False), (2, False)])
async def test_a_holder_that_shows_a_version_loses_if_it_has_moved(db: Database, shown: int | None, kept: bool) -> None:
    record = await take_one(db, new_id())

    (renewed,) = await extend(db, proof(record, claim_version=shown))

    assert (renewed is not None) == kept


async def test_of_two_who_renew_with_the_same_version_one_loses(db: Database) -> None:
    record = await take_one(db, new_id())

    (first,) = await extend(db, proof(record, claim_version=1))
    (second,) = await extend(db, proof(record, claim_version=1))

    assert first is not None
    assert second is None


async def test_a_lease_that_is_lost_is_not_renewed(db: Database) -> None:
    old = await take_one(db, new_id())
    new = await take_one(db, old.resource_id, "w2", TTL_S + 1)
    unknown = LeaseProof(resource_id=new_id(), lease_token=uuid4())

    answers = await extend(db, proof(old), unknown, proof(new, lease_token=uuid4()), seconds=TTL_S + 1)

    assert answers == [None, None, None]
    assert await extend(db, proof(new), seconds=TTL_S + 1, kind="WORKORDER") == [None]


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_a_zombie_in_the_same_batch_does_not_cost_the_holder_its_lease(db: Database, zombie_first: bool) -> None:
    old = await take_one(db, new_id())
    new = await take_one(db, old.resource_id, "w2", TTL_S + 1)
    proofs = [proof(old), proof(new)]

    answers = await extend(db, *(proofs if zombie_first else proofs[::-1]), seconds=100)

    owners = [answer and answer.owner_id for answer in answers]
    assert owners == ([None, "w2"] if zombie_first else ["w2", None])


# Release


async def test_a_released_resource_is_free(db: Database) -> None:
    record = await take_one(db, new_id())

    assert await release(db, "EVENT", [proof(record)]) == [True]
    assert (await take_one(db, record.resource_id, "w2")).claim_version == 1
    assert await release(db, "EVENT", [proof(record)]) == [False]


async def test_only_the_token_releases(db: Database) -> None:
    record, other = await take_one(db, new_id()), await take_one(db, new_id())

    answers = await release(
        db.pool,
        "EVENT",
        [proof(record, lease_token=other.lease_token), proof(other), proof(record, lease_token=uuid4())],
    )

    assert answers == [False, True, False]
    assert await release(db, "WORKORDER", [proof(record)]) == [False]
    assert await take(db, record.resource_id) == [None]


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_a_zombie_in_the_same_batch_hears_that_it_released_nothing(db: Database, zombie_first: bool) -> None:
    old = await take_one(db, new_id())
    new = await take_one(db, old.resource_id, "w2", TTL_S + 1)
    proofs = [proof(old), proof(new)]

    answers = await release(db, "EVENT", proofs if zombie_first else proofs[::-1])

    assert answers == ([False, True] if zombie_first else [True, False])


# The table


@pytest.mark.parametrize(("kind", "with_attempt"), [("JOB", False), ("EVENT", True), ("TICKET", False)])
async def test_the_table_refuses_a_lease_that_makes_no_sense(db: Database, kind: str, with_attempt: bool) -> None:
    attempt = (uuid4(), 1) if with_attempt else (None, None)

    with pytest.raises(asyncpg.CheckViolationError):
        await db.pool.execute(
            """
            INSERT INTO leases (
                resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at,
                attempt_id, attempt_no
            ) VALUES (gen_random_uuid(), $1, 'w', gen_random_uuid(), $2, $2, $2, $3, $4)
            """,
            kind,
            NOW,
            *attempt,
        )


# The claim record


def faults(record: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """What is wrong with the record, for the few words that this schema uses."""
    assert set(schema) == {
        "$schema",
        "title",
        "description",
        "type",
        "properties",
        "required",
        "additionalProperties",
    }
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    found = [f"{name} is missing" for name in schema["required"] if name not in record]
    found += [f"{name} is unknown" for name in record if name not in schema["properties"]]
    for name, rules in schema["properties"].items():
        assert set(rules) <= {"type", "enum", "format", "minLength", "minimum", "description"}
        if name in record and not fits(record[name], rules):
            found.append(f"{name} is {record[name]!r}")
    return found


def fits(value: Any, rules: dict[str, Any]) -> bool:
    if "enum" in rules:
        return value in rules["enum"]
    if rules["type"] == "integer":
        return type(value) is int and value >= rules.get("minimum", value)
    assert rules["type"] == "string"
    if not isinstance(value, str) or len(value) < rules.get("minLength", 0):
        return False
    if rules.get("format") == "uuid":
        return str(UUID(value)) == value
    if rules.get("format") == "date-time":
        return datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo == timezone.utc
    return True


@pytest.mark.parametrize("kind", ["EVENT", "WORKORDER"])
async def test_a_claim_record_is_valid_against_its_schema(db: Database, kind: ResourceType) -> None:
    resource_id = new_id()
    (acquired,) = await take(db, resource_id, kind=kind)
    assert acquired is not None
    (renewed,) = await extend(db, proof(acquired), seconds=1.5, kind=kind)
    (taken_over,) = await take(db, resource_id, owner="w2", seconds=1000, kind=kind)

    for record in (acquired, renewed, taken_over):
        assert record is not None
        assert faults(record.public(), claim_record_schema()) == []


async def test_a_claim_record_never_shows_the_token(db: Database) -> None:
    record = await take_one(db, new_id())

    assert "lease_token" not in record.public()
    assert str(record.lease_token) not in str(record.public())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"resource_type": "JOB"}, "resource_type is 'JOB'"),
        ({"claim_version": 0}, "claim_version is 0"),
        ({"claim_version": True}, "claim_version is True"),
        ({"owner_id": ""}, "owner_id is ''"),
        ({"lease_expires_at": "2026-01-01T00:00:00"}, "lease_expires_at is '2026-01-01T00:00:00'"),
        ({"lease_token": "x"}, "lease_token is unknown"),
        ({"heartbeat_at": None}, "heartbeat_at is None"),
    ],
)
async def test_the_check_of_claim_records_finds_faults(db: Database, change: dict[str, Any], fault: str) -> None:
    record = (await take_one(db, new_id())).public()

    assert faults({**record, **change}, claim_record_schema()) == [fault]


async def test_a_claim_record_has_exactly_the_published_fields(db: Database) -> None:
    record = (await take_one(db, new_id())).public()

    schema: Any = claim_record_schema()
    assert sorted(record) == sorted(schema["required"]) == sorted(schema["properties"])

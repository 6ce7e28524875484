"""Leases: acquire, renew, release, each over many resources at once. The token is the lease.

Acquiring succeeds when a resource has no lease, or one that has expired.
A job's lease is a row of the same table and is renewed by the same statement (see `heartbeat`). A job's claim and
reports do more in one statement and so have their own.
"""

from __future__ import annotations

import json
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec

from jobd.lifecycle.lock_order import sorted_once
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jobd.store.session import Session

ACQUIRE_LEASES = statement("acquire_leases")
RENEW_LEASES = statement("renew_leases")
RELEASE_LEASES = statement("release_leases")

ResourceType = Literal["EVENT", "WORKORDER"]


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim record. `public` is valid against `claim_record_schema`; the token stays with its holder."""

    resource_type: str
    resource_id: UUID
    owner_id: str
    lease_token: UUID
    claim_version: int
    lease_expires_at: datetime
    heartbeat_at: datetime

    def public(self) -> dict[str, object]:
        record: dict[str, object] = msgspec.to_builtins(self)
        del record["lease_token"]
        return record


class LeaseProof(msgspec.Struct, frozen=True, kw_only=True):
    """What a holder shows to renew or release its lease of a job, an event or a work order."""

    resource_id: UUID
    lease_token: UUID
    #: Given: the renewal fails if the lease was renewed since that version (optimistic locking). None: not checked.
    claim_version: int | None = None


def claim_record_schema() -> dict[str, object]:
    schema: dict[str, object] = json.loads(files("jobd.lifecycle").joinpath("claim_record.schema.json").read_bytes())
    return schema


async def acquire(
    session: Session,
    kind: ResourceType,
    resource_ids: Sequence[UUID],
    *,
    owner_id: str,
    ttl_s: float,
    now: datetime | None = None,
) -> list[LeaseRecord | None]:
    """Take each resource that is free or whose lease expired; None for one that another holds."""
    rows = await session.fetch(ACQUIRE_LEASES, sorted(set(resource_ids)), kind, owner_id, ttl_s, now)
    held = {row["resource_id"]: _record(row) for row in rows}
    return [held.get(resource_id) for resource_id in resource_ids]


async def renew(
    session: Session, kind: ResourceType, proofs: Sequence[LeaseProof], *, ttl_s: float, now: datetime | None = None
) -> list[LeaseRecord | None]:
    """Extend leases; None for one that is lost, whose holder must stop at once."""
    rows = await renew_rows(session, kind, proofs, ttl_s=ttl_s, now=now)
    return [None if row is None else _record(row) for row in rows]


async def renew_rows(
    session: Session,
    kind: ResourceType | Literal["JOB"],
    proofs: Sequence[LeaseProof],
    *,
    ttl_s: float,
    now: datetime | None,
) -> list[asyncpg.Record | None]:
    """The row of each lease that was extended, in the order of the proofs. Of two with one token the first counts."""
    ordered = [proofs[n] for n in sorted_once(proofs, _key_of).values()]
    rows = await session.fetch(
        RENEW_LEASES,
        [proof.resource_id for proof in ordered],
        kind,
        [proof.lease_token for proof in ordered],
        [proof.claim_version for proof in ordered],
        ttl_s,
        now,
    )
    renewed = {(row["resource_id"], row["lease_token"]): row for row in rows}
    return [renewed.get(_key_of(proof)) for proof in proofs]


async def release(session: Session, kind: ResourceType, proofs: Sequence[LeaseProof]) -> list[bool]:
    """Give leases up; False for one that was lost before."""
    ordered = [proofs[n] for n in sorted_once(proofs, _key_of).values()]
    rows = await session.fetch(
        RELEASE_LEASES,
        [proof.resource_id for proof in ordered],
        kind,
        [proof.lease_token for proof in ordered],
    )
    freed = {(row["resource_id"], row["lease_token"]) for row in rows}
    return [_key_of(proof) in freed for proof in proofs]


def _key_of(proof: LeaseProof) -> tuple[UUID, UUID]:
    return proof.resource_id, proof.lease_token


def _record(row: asyncpg.Record) -> LeaseRecord:
    return LeaseRecord(**{name: row[name] for name in LeaseRecord.__struct_fields__})

"""The claims of one ticket poller: taken from the one lease engine, renewed together, given up or lost.

A renewal shows the claim's version, so that of two who believe to hold a claim one learns that it does not. A claim
that was lost, or that could not be renewed in time by this process's own clock (see `lease_timer.py`), is told to its
holder at once, who then stops and writes nothing; the statements would refuse it anyway, since each of them proves the
lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.leases.timer import MARGIN, Lease, LeaseTimer
from jobd.lifecycle.lease import Grip, LeaseRecord, acquire, release, renew
from jobd.tickets.pollers.take_back import free_claims_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.lifecycle.lease import ResourceType
    from jobd.store.postgres import Database

#: Claims are short, however long the leases of jobs may be.
LONGEST_TTL_S = 120.0
LONGEST_HEARTBEAT_S = 30.0
#: How often it looks for claims to renew, as a part of the heartbeat.
LOOK = 0.25


class OwnerNames(msgspec.Struct, frozen=True):
    """Under which names claims are held: one for each poller of each run of jobd, and none is ever used twice."""

    owner_id: str
    #: Names of this data directory's earlier runs, which are known to be dead.
    dead: tuple[str, ...] = ()

    def of(self, poller: str) -> OwnerNames:
        return OwnerNames(f"{self.owner_id}:{poller}", tuple(f"{name}:{poller}" for name in self.dead))


class Claim(Lease):
    def __init__(self, record: LeaseRecord, sent_at: float, ttl_s: float) -> None:
        super().__init__(sent_at, ttl_s)
        self.record = record
        self.is_lost = False
        #: Called when it is lost.
        self.on_lost: Callable[[], None] = _nothing

    @property
    def resource_id(self) -> UUID:
        return self.record.resource_id

    @property
    def grip(self) -> Grip:
        record = self.record
        return Grip(resource_id=record.resource_id, lease_token=record.lease_token, claim_version=record.claim_version)

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.on_lost()


def _nothing() -> None:
    pass


class Claims:
    def __init__(
        self, database: Database, kind: ResourceType, owners: OwnerNames, config: Callable[[], Config]
    ) -> None:
        self._database = database
        self._kind: ResourceType = kind
        self._owners = owners
        self._config = config
        self._held: dict[UUID, Claim] = {}
        self._timer = LeaseTimer(self._held.values, self._lose)

    @property
    def ttl_s(self) -> float:
        return min(LONGEST_TTL_S, float(self._config().leases.ttl_s))

    @property
    def heartbeat_s(self) -> float:
        return min(LONGEST_HEARTBEAT_S, self._config().leases.heartbeat_s, self.ttl_s / 3)

    def __len__(self) -> int:
        return len(self._held)

    async def acquire(self, resource_ids: Sequence[UUID]) -> list[Claim]:
        """Claim what is free or expired, in the order asked for; what another holds is left out.

        So is what was answered too late to begin with it.
        """
        sent_at, ttl_s = time.monotonic(), self.ttl_s
        records = await acquire(self._database, self._kind, resource_ids, owner_id=self._owners.owner_id, ttl_s=ttl_s)
        claims = [Claim(record, sent_at, ttl_s) for record in records if record is not None]
        if claims and claims[0].is_over():
            await self.release(claims)
            return []
        for claim in claims:
            self._held[claim.resource_id] = claim
            self._timer.watch(claim)
        return claims

    def forget(self, claims: Iterable[Claim]) -> None:
        """Renew them no more: they were given up with a write, or are to expire."""
        for claim in claims:
            if self._held.get(claim.resource_id) is claim:
                del self._held[claim.resource_id]

    async def release(self, claims: Sequence[Claim]) -> None:
        """Give claims up without a write."""
        self.forget(claims)
        if claims:
            await release(self._database, self._kind, [claim.grip for claim in claims])

    async def release_all(self) -> None:
        await self.release(list(self._held.values()))

    async def take_back(self) -> None:
        """Free what earlier runs of this very poller held."""
        await free_claims_of(self._database, self._owners.dead)

    async def keep(self) -> None:
        """Renew for as long as the poller runs."""
        while True:
            await anyio.sleep(self.heartbeat_s * LOOK)
            await self.renew_due()

    async def renew_due(self) -> None:
        due_before = time.monotonic() - self.heartbeat_s * (1 - LOOK)
        due = [claim for claim in self._held.values() if claim.renewed_at < due_before]
        if due:
            await self._renew(due)

    async def _renew(self, due: Sequence[Claim]) -> None:
        """One renewal for all. One that hangs is given up early enough for another try."""
        sent_at, ttl_s = time.monotonic(), self.ttl_s
        records: Sequence[LeaseRecord | None] = []
        with anyio.move_on_after(ttl_s * (1 - MARGIN) / 2):
            records = await renew(self._database, self._kind, [claim.grip for claim in due], ttl_s=ttl_s)
        for claim, record in zip(due, records, strict=False):
            if record is None:
                self._lose(claim)
            else:
                claim.record = record
                claim.grant(sent_at, ttl_s)

    def _lose(self, claim: Claim) -> None:
        """Unless it was given up while the renewal was under way."""
        if self._held.get(claim.resource_id) is claim:
            self.forget([claim])
            claim.lose()

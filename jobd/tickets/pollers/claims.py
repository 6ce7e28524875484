"""The claims of one ticket poller: leases of events or work orders, acquired, renewed together, released or lost.

A renewal shows the claim's version, so that of two who believe to hold a claim one learns that it does not. A poller
that has lost a claim stops and writes nothing; the statements would refuse it anyway, since each of them proves the
lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobd.config.task_settings import RENEWALS
from jobd.job.model import LeaseLost
from jobd.leases.keeper import LeaseKeeper
from jobd.leases.timer import Lease
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.lease import LeaseProof, LeaseRecord, acquire, release, renew
from jobd.tickets.pollers.free_claims import free_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config, Leases
    from jobd.lifecycle.lease import ResourceType
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database

#: Bounds in seconds for how long a claim lasts and how often it is renewed, however long the leases of jobs are: a dead
#: node keeps nobody waiting for longer.
LONGEST_TTL_S = 120.0
#: Longest time between two renewals of a claim in seconds.
LONGEST_HEARTBEAT_S = 30.0


class Claim(Lease):
    """A claim of an event or a work order, in the hands of a poller in this process."""

    def __init__(self, record: LeaseRecord, sent_at: float, ttl_s: float) -> None:
        super().__init__(sent_at, ttl_s)
        #: The lease as it was acquired; `proof` has its present version.
        self.record = record
        self._version = record.claim_version

    @property
    def resource_id(self) -> UUID:
        return self.record.resource_id

    @property
    def proof(self) -> LeaseProof:
        return LeaseProof(
            resource_id=self.resource_id, lease_token=self.record.lease_token, claim_version=self._version
        )

    def ttl_s(self, leases: Leases, renewal: Renewal | None = None) -> float:
        return claim_ttl_s(leases)

    def heartbeat_s(self, leases: Leases) -> float:
        return claim_heartbeat_s(leases)

    def renewed(self, renewal: Renewal) -> None:
        self._version = renewal.claim_version


def claim_ttl_s(leases: Leases) -> float:
    return min(LONGEST_TTL_S, float(leases.ttl_s))


def claim_heartbeat_s(leases: Leases) -> float:
    return min(LONGEST_HEARTBEAT_S, leases.heartbeat_s, claim_ttl_s(leases) / RENEWALS)


class ClaimKeeper(LeaseKeeper[Claim]):
    def __init__(
        self, database: Database, kind: ResourceType, owners: OwnerNames, config: Callable[[], Config]
    ) -> None:
        super().__init__(self._send_renewals, config)
        self._database = database
        self._kind: ResourceType = kind
        self._owners = owners

    async def acquire(self, resource_ids: Sequence[UUID]) -> list[Claim]:
        """Claim the resources that are free or whose lease has expired, in the order asked for.

        If the answer came so late that the leases are over already, nothing is claimed.
        """
        sent_at, ttl_s = time.monotonic(), claim_ttl_s(self._config().leases)
        records = await acquire(self._database, self._kind, resource_ids, owner_id=self._owners.owner_id, ttl_s=ttl_s)
        claims = [Claim(record, sent_at, ttl_s) for record in records if record is not None]
        if claims and claims[0].is_over():
            await self.release(claims)
            return []
        for claim in claims:
            self.keep(claim)
        return claims

    async def release(self, claims: Sequence[Claim]) -> None:
        """Give up claims whose work was not done."""
        self.let_go(*claims)
        if claims:
            await release(self._database, self._kind, [claim.proof for claim in claims])

    async def release_all(self) -> None:
        await self.release(self.all())

    async def free_dead(self) -> None:
        """Free the claims of this poller in earlier runs of jobd on this data directory."""
        await free_claims(self._database, self._owners.dead)

    def lose(self, claim: Claim) -> None:
        """Stop the work on a lost claim and forget the claim."""
        super().lose(claim)
        self.let_go(claim)

    async def _send_renewals(self, claims: Sequence[Claim]) -> list[Renewal | LeaseLost]:
        ttl_s = claim_ttl_s(self._config().leases)
        records = await renew(self._database, self._kind, [claim.proof for claim in claims], ttl_s=ttl_s)
        return [LeaseLost() if record is None else _renewal(record) for record in records]


def _renewal(record: LeaseRecord) -> Renewal:
    return Renewal(lease_expires_at=record.lease_expires_at, claim_version=record.claim_version, cancel_requested=False)

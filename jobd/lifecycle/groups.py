"""Groups: jobs that are counted, canceled and waited for together; and the job that runs when all of them are final.

The counters move with `depend`, when members come, and with `settle`, when they end; nothing is ever counted by looking
at the members. A group is finished when it is sealed and its last member has ended: canceled and expired ones count.

The callback is a job that depends on the group. It is enqueued, and held, by the commit that makes the group, so there
is one, whatever is killed when.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec

from jobd.lifecycle.enqueue import NewJob, enqueue_within
from jobd.store.clock import in_time
from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.clock_eras import Past
    from jobd.store.session import Connection, Session

CREATE_GROUP = statement("create_group")
SEAL_GROUP = statement("seal_group")
READ_GROUP = statement("read_group")
LIST_GROUPS = statement("list_groups")
PRUNE_GROUPS = statement("prune_groups")


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str | None = None
    #: A JSON object of strings as text, not empty.
    labels: str | None = None
    #: Name of the token that made it.
    owner: str | None = None
    #: Depends on the group.
    callback: NewJob | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str | None
    #: A JSON object of strings.
    labels: str | None
    owner: str | None
    sealed: bool
    members: int
    #: Members that ended so.
    done: int
    error: int
    canceled: int
    #: Members that run a dead letter among the members again.
    retried: int
    callback_id: UUID | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def status(self) -> Literal["running", "done", "error"]:
        """As a job that waits for it sees it."""
        if not self.is_finished:
            return "running"
        return "error" if self.error + self.canceled > self.retried else "done"


async def create_group(connection: Connection, group: NewGroup, *, now: datetime | None = None) -> bool:
    """Make a group with its callback; False: there is a group of this id, and nothing was done."""
    callback_id = None if group.callback is None else group.callback.id
    values = group.id, group.name, group.labels, group.owner, callback_id
    async with connection.transaction():
        made = await connection.fetch(CREATE_GROUP, *values, now)
        if made and group.callback is not None:
            await enqueue_within(connection, [group.callback], now=now)
    return bool(made)


async def seal_group(session: Session, group_id: UUID, *, now: datetime | None = None) -> bool:
    """No more members come; False: it was sealed already, or there is no such group."""
    return bool(await session.fetch(SEAL_GROUP, group_id, now))


async def read_group(session: Session, group_id: UUID) -> Group | None:
    for row in await session.fetch(READ_GROUP, group_id):
        return Group(**dict(row))
    return None


async def list_groups(
    session: Session, *, most: int = 100, before: UUID | None = None, owner: str | None = None
) -> list[Group]:
    """Newest first; with `owner` only those of that token."""
    return [Group(**dict(row)) for row in await session.fetch(LIST_GROUPS, before, most, owner)]


async def prune_groups(
    session: Session, *, keep_s: float = 0.0, most: int = 500, past: Past | None = None, now: datetime | None = None
) -> int:
    """Delete groups that finished long ago and of which no member is left; how many."""
    (row,) = await session.fetch(PRUNE_GROUPS, keep_s, most, now, *in_time(past))
    return int(row["groups"])

"""The client contract of groups, and of the graph of a job."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobd.wire.gateway import MAX_BULK, ClientRequest, Labels, Object, Status

#: Most groups of one page.
MAX_GROUPS = 100
#: Most nodes of the graph of a job.
MAX_NODES = 100

GroupName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]


class GroupRequest(ClientRequest, frozen=True, kw_only=True):
    #: Id of the group, if the client makes it: sent again, it leads to the same group.
    id: UUID | UnsetType = UNSET
    name: GroupName | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    #: A submit: the job that runs once, when the group is sealed and all members are final. Its input `group` has the
    #: counters.
    callback: Object | UnsetType = UNSET
    #: `any`: the callback runs however the members ended; `success`: it is canceled unless all are done.
    callback_on: Literal["any", "success"] = "any"


class GroupObject(msgspec.Struct, frozen=True, kw_only=True):
    group_id: UUID
    name: str | None
    labels: dict[str, str]
    #: Name of the token that made it.
    owner: str | None
    #: No more members come.
    sealed: bool
    #: All jobs that entered the group, those included that run another member again.
    members: int
    #: Members that have not ended.
    pending: int
    done: int
    error: int
    canceled: int
    #: Members that run another member again, which ended in error or was canceled because one before it did.
    retried: int
    #: `running` until it is finished; then `done`, or `error` if a member failed or was canceled.
    status: Literal["running", "done", "error"]
    callback_id: UUID | None
    created_ts: int
    #: When it was sealed and its last member had ended.
    finished_ts: int | None


class GroupPage(msgspec.Struct, frozen=True):
    #: Newest first.
    groups: list[GroupObject]
    #: Send it as `before` for the next page; null: this was the last.
    next: UUID | None


class GroupChange(ClientRequest, frozen=True, kw_only=True):
    #: Most members that this call changes.
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK)] = 500
    #: Only members older than this: `next` of the call before.
    before: UUID | UnsetType = UNSET


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    #: Of a job or a group.
    id: UUID
    kind: Literal["job", "group"]
    #: Task of the job, or name of the group.
    title: str
    #: Null: it was deleted.
    status: Status | None


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    #: The job or group that is waited for.
    source: UUID
    #: The job that waits.
    target: UUID
    on: Literal["success", "any"]


class JobGraph(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    #: There are more than 100 nodes; those nearest to the job are here.
    is_cut: bool

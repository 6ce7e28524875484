"""The graph around a job: what it waits for and what waits for it, both to the ends, nearest first, bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.lifecycle.depend import list_dependencies, list_dependents
from jobd.lifecycle.groups import read_group
from jobd.lifecycle.read import Job, read_jobs
from jobd.wire.groups import MAX_NODES, GraphEdge, GraphNode, JobGraph

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.depend import Edge
    from jobd.lifecycle.groups import Group
    from jobd.store.session import Session


async def graph_around(session: Session, job_id: UUID, *, most: int = MAX_NODES, owner: str | None = None) -> JobGraph:
    """With `owner`, only what that token has sent."""
    nodes: dict[UUID, bool] = {job_id: False}
    edges: dict[tuple[UUID, UUID], Edge] = {}
    frontier = [job_id]
    is_cut = False
    while frontier:
        found = await list_dependencies(session, frontier, most=most) + await list_dependents(
            session, frontier, most=most
        )
        frontier = []
        for edge in found:
            for node, is_group in ((edge.on_id, edge.is_group), (edge.job_id, False)):
                if node in nodes:
                    continue
                if len(nodes) >= most:
                    is_cut = True
                    continue
                nodes[node] = is_group
                frontier.append(node)
            if edge.on_id in nodes and edge.job_id in nodes:
                edges[edge.on_id, edge.job_id] = edge
    shown = await _nodes(session, nodes, owner)
    seen = {node.id for node in shown}
    return JobGraph(
        nodes=shown,
        edges=[
            GraphEdge(source=source, target=target, on="any" if edge.on_any else "success")
            for (source, target), edge in edges.items()
            if source in seen and target in seen
        ],
        is_cut=is_cut,
    )


async def _nodes(session: Session, nodes: dict[UUID, bool], owner: str | None) -> list[GraphNode]:
    jobs = await read_jobs(session, [node for node, is_group in nodes.items() if not is_group])
    made: list[GraphNode] = []
    for node, is_group in nodes.items():
        found: Job | Group | None = await read_group(session, node) if is_group else jobs.get(node)
        if owner is None or (found is not None and found.owner == owner):
            made.append(_node(node, found, is_group=is_group))
    return made


def _node(node: UUID, found: Job | Group | None, *, is_group: bool) -> GraphNode:
    title = "" if found is None else (found.task if isinstance(found, Job) else found.name or "group")
    status: Any = None if found is None else found.status  # the tables have no other words
    return GraphNode(id=node, kind="group" if is_group else "job", title=title, status=status)

"""The ticket tailer: every reader gets every line after its cursor once and in order, whoever changed the ticket."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import anyio

from jobd.follow.followers import ROOM
from jobd.follow.tickets import TicketTailer
from jobd.supervise.service import Handle
from jobd.tickets.service import TicketService
from jobd.tickets.wakeups import Wakeups
from tests.tickets.factories import CONFIG, new_ticket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from uuid import UUID

    from jobd.follow.followers import Follower
    from jobd.store.postgres import Database
    from jobd.wire.tickets import LogLine

WAIT_S = 20.0
#: As many edits in one go.
CHURN = """
DO $$ BEGIN
    FOR n IN 1..%d LOOP
        UPDATE tickets SET title = 'edit ' || n, version = version + 1 WHERE ticket_id = '%s';
    END LOOP;
END $$
"""


@contextlib.asynccontextmanager
async def tailing(db: Database) -> AsyncIterator[tuple[TicketTailer, TicketService]]:
    wakeups = Wakeups()
    service = TicketService(db, lambda: CONFIG, wakeups)
    tailer, handle = TicketTailer(service, wakeups), Handle(lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tailer.run, handle)
        yield tailer, service
        handle.stop.set()


async def next_lines(reader: Follower[int], number: int) -> list[dict[str, Any]]:
    """The next `number` lines, as they come."""
    text = b""
    with anyio.fail_after(WAIT_S):
        while text.count(b"\n\n") < number:
            text += await reader.next(WAIT_S)
    return [json.loads(part.partition("data: ")[2]) for part in text.decode().split("\n\n") if part]


async def churn(db: Database, ticket_id: UUID, number: int) -> None:
    await db.pool.execute(CHURN % (number, ticket_id))


def versions(lines: list[dict[str, Any]]) -> list[int]:
    return [line["version"] for line in lines]


async def test_readers_get_what_comes_after_their_cursors(db: Database) -> None:
    ticket = await new_ticket(db)
    await churn(db, ticket.ticket_id, 4)
    async with tailing(db) as (tailer, service):
        with tailer.following(ticket.ticket_id, 0) as first, tailer.following(ticket.ticket_id, 3) as second:
            assert versions(await next_lines(first, 5)) == [1, 2, 3, 4, 5]
            assert versions(await next_lines(second, 2)) == [4, 5]

            await service.decide("APPROVE", ticket.ticket_id, by="bob")

            assert [(await next_lines(one, 1))[0]["data"]["status"] for one in (first, second)] == ["TODO", "TODO"]


async def test_what_another_node_did_is_found_without_a_wakeup(db: Database) -> None:
    ticket = await new_ticket(db)
    elsewhere = TicketService(db, lambda: CONFIG, Wakeups())
    async with tailing(db) as (tailer, _):
        with tailer.following(ticket.ticket_id, ticket.version) as reader:
            await elsewhere.decide("REJECT", ticket.ticket_id, by="bob")

            (line,) = await next_lines(reader, 1)

    assert (line["type"], line["data"]["was"], line["data"]["status"]) == ("status", "NEW", "BLOCKED")


async def test_lines_of_one_ticket_do_not_reach_readers_of_another(db: Database) -> None:
    ticket, other = await new_ticket(db), await new_ticket(db)
    async with tailing(db) as (tailer, service):
        with tailer.following(ticket.ticket_id, 1) as reader, tailer.following(other.ticket_id, 1):
            await service.decide("REJECT", other.ticket_id, by="bob")
            await service.decide("APPROVE", ticket.ticket_id, by="bob")

            (line,) = await next_lines(reader, 1)

    assert (line["ticket_id"], line["data"]["status"]) == (str(ticket.ticket_id), "TODO")


async def test_a_long_log_comes_whole_to_a_reader_that_was_passed_over(db: Database) -> None:
    ticket = await new_ticket(db)
    number = 3 * ROOM
    await churn(db, ticket.ticket_id, number)
    async with tailing(db) as (tailer, _):
        with tailer.following(ticket.ticket_id, 0) as slow, tailer.following(ticket.ticket_id, 0) as quick:
            assert versions(await next_lines(quick, number + 1)) == list(range(1, number + 2))
            assert not slow.has_room()
            assert slow.cursor <= number

            assert versions(await next_lines(slow, number + 1)) == list(range(1, number + 2))


async def test_a_reader_that_comes_while_logs_are_read_misses_nothing(db: Database) -> None:
    """What is being read begins at the cursor of another reader, and is not for the one that has just come."""
    ticket = await new_ticket(db)
    await churn(db, ticket.ticket_id, 4)
    late: list[Follower[int]] = []
    with contextlib.ExitStack() as stack:

        class SlowService(TicketService):
            async def log(self, after: Mapping[UUID, int]) -> dict[UUID, list[LogLine]]:
                lines = await super().log(after)
                if not late:
                    late.append(stack.enter_context(tailer.following(ticket.ticket_id, 0)))
                return lines

        wakeups = Wakeups()
        tailer = TicketTailer(SlowService(db, lambda: CONFIG, wakeups), wakeups)
        with tailer.following(ticket.ticket_id, 3) as early:
            await tailer.run_once([ticket.ticket_id])
            assert versions(await next_lines(early, 2)) == [4, 5]

            await tailer.run_once([ticket.ticket_id])

            assert versions(await next_lines(late[0], 5)) == [1, 2, 3, 4, 5]


async def test_the_end_of_the_service_ends_its_readers(db: Database) -> None:
    ticket = await new_ticket(db)
    with contextlib.ExitStack() as stack:
        async with tailing(db) as (tailer, _):
            reader = stack.enter_context(tailer.following(ticket.ticket_id, ticket.version))

        assert reader.is_over
        assert await reader.next(WAIT_S) == b""

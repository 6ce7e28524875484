"""Why a ticket was not taken or not moved. The code is stable; the message names thing, value and remedy.

unknown_ticket        there is no ticket with this id
gone_ticket           the ticket was DONE, and retention has deleted it
illegal_transition    the ticket does not stand where the decision applies
version_moved         the ticket has changed since the version that the decision names
not_new               only a NEW ticket can be edited
no_sign_off           no sign-off is waited for
four_eyes             an author may not decide this alone
key_busy              another request with the same idempotency key is under way
unknown_task          the task is not configured
unknown_gate          a gate names a command that is not configured
bad_schema            the schema of a gate does not compile
bad_gate              a gate that cannot be evaluated: a pointer that is none, a second sign_off
unknown_blocker       blocked_on names a ticket that does not exist
blocker_cycle         blocked_on would make tickets wait for each other
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.errors import JobdError

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.tickets.machine import Refused


class TicketRefused(JobdError):
    """Nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def unknown_ticket(ticket_id: UUID) -> TicketRefused:
    return TicketRefused("unknown_ticket", f"there is no ticket {ticket_id}")


def gone_ticket(ticket_id: UUID) -> TicketRefused:
    return TicketRefused("gone_ticket", f"ticket {ticket_id} was DONE and was deleted after its retention")


def refused(why: Refused) -> TicketRefused:
    return TicketRefused(why.code, why.message)

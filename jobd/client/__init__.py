"""The Python client of jobd: `Client`, and `AsyncClient` with the same methods.

sansio          a call as values: it yields steps (send, open, read, pause) and does no I/O
retrying        what is retried, for how long, and how an answer is decoded
calls           submit, read, wait, list, cancel, retry
operations      queues, workers, dead letters, stats
tickets         tickets and decisions about them
following       the events of a job or ticket, through lost connections
target          where jobd is and the token, from arguments or variables
http1           HTTP/1.1 as bytes: a request written, an answer read; no I/O
transport       the route to jobd, its headers, idle connections: what both clients share
sync            takes the steps by blocking
asynchronous    takes them by awaiting
answers         what calls return
errors          what calls raise
"""

from jobd.client.answers import (
    Attempt,
    DeadLetter,
    DeadLetters,
    Event,
    Job,
    Ticket,
    TicketPage,
    Trail,
    Waiting,
    Worker,
    Workers,
)
from jobd.client.asynchronous import AsyncClient
from jobd.client.calls import Options, Submission
from jobd.client.errors import (
    ApiProblem,
    BadAnswer,
    ClientError,
    Conflict,
    Denied,
    Gone,
    NotFound,
    Refused,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from jobd.client.sync import Client
from jobd.client.tickets import TicketEdit, TicketOptions
from jobd.wire.gateway import (
    BatchEntry,
    CancelAnswer,
    JobPage,
    JobSummary,
    PauseAnswer,
    QueueObject,
    RedriveAnswer,
    Redriven,
    Stats,
    Totals,
)
from jobd.wire.workers import HeldJob

__all__ = [
    "ApiProblem",
    "AsyncClient",
    "Attempt",
    "BadAnswer",
    "BatchEntry",
    "CancelAnswer",
    "Client",
    "ClientError",
    "Conflict",
    "DeadLetter",
    "DeadLetters",
    "Denied",
    "Event",
    "Gone",
    "HeldJob",
    "Job",
    "JobPage",
    "JobSummary",
    "NotFound",
    "Options",
    "PauseAnswer",
    "QueueObject",
    "RedriveAnswer",
    "Redriven",
    "Refused",
    "Stats",
    "Submission",
    "Ticket",
    "TicketEdit",
    "TicketOptions",
    "TicketPage",
    "Totals",
    "Trail",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
    "Waiting",
    "Worker",
    "Workers",
]

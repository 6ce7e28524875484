"""The Python client of jobd: `Client`, and `AsyncClient` with the same methods.

steps, retrying, following, calls, house,
tickets                                     what each call does, written once and without any I/O
sync, asynchronous                          how a step is taken: by blocking, by awaiting
answers, errors                             what comes of it
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

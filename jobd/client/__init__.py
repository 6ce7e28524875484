"""The Python client of jobd: `Client`, and `AsyncClient` with the same methods.

sansio          a call as values: it yields steps (send, open, read, pause) and does no I/O
retrying        what is retried, for how long, and how an answer is decoded
calls           submit, read, wait, list, cancel, retry
operations      queues, workers, dead letters, stats, configuration, audit log
schedules       schedules: make, change, pause, run, backfill
groups          groups of jobs; chain, fan-out, fan-in
tickets         tickets and decisions about them
responses       models, and responses of the OpenAI interface
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
    ChatModel,
    ChatResponse,
    DeadLetter,
    DeadLetters,
    Event,
    Job,
    JobPage,
    JobSummary,
    Schedule,
    SchedulePage,
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
from jobd.client.schedules import ScheduleEdit, ScheduleOptions
from jobd.client.sync import Client
from jobd.client.tickets import TicketEdit, TicketOptions
from jobd.wire.gateway import (
    BatchEntry,
    BulkAnswer,
    CancelAnswer,
    CountAnswer,
    DeadLetterGroup,
    DeadLetterGroups,
    PauseAnswer,
    QueueObject,
    RedriveAnswer,
    Redriven,
    Stats,
    Totals,
)
from jobd.wire.groups import GroupObject, GroupPage
from jobd.wire.schedules import BackfillAnswer, NextTimes, Occurrence
from jobd.wire.workers import HeldJob

__all__ = [
    "ApiProblem",
    "AsyncClient",
    "Attempt",
    "BackfillAnswer",
    "BadAnswer",
    "BatchEntry",
    "BulkAnswer",
    "CancelAnswer",
    "ChatModel",
    "ChatResponse",
    "Client",
    "ClientError",
    "Conflict",
    "CountAnswer",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "DeadLetters",
    "Denied",
    "Event",
    "Gone",
    "GroupObject",
    "GroupPage",
    "HeldJob",
    "Job",
    "JobPage",
    "JobSummary",
    "NextTimes",
    "NotFound",
    "Occurrence",
    "Options",
    "PauseAnswer",
    "QueueObject",
    "RedriveAnswer",
    "Redriven",
    "Refused",
    "Schedule",
    "ScheduleEdit",
    "ScheduleOptions",
    "SchedulePage",
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

"""The Python client of jobd: `Client`, and `AsyncClient` with the same methods.

steps, retrying, following, calls    what each call does, written once and without any I/O
sync, asynchronous                   how a step is taken: by blocking, by awaiting
answers, errors                      what comes of it
"""

from jobd.client.answers import Attempt, Event, Job, Waiting
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
from jobd.wire.gateway import BatchEntry, CancelAnswer, JobPage, JobSummary, QueueObject, Stats, Totals

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
    "Denied",
    "Event",
    "Gone",
    "Job",
    "JobPage",
    "JobSummary",
    "NotFound",
    "Options",
    "QueueObject",
    "Refused",
    "Stats",
    "Submission",
    "Totals",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
    "Waiting",
]

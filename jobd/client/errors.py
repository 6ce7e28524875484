"""Everything the client raises on purpose.

    ClientError             5   what a call of the client ended with
    ├── ApiProblem          5   jobd answered with a problem: `status`, `code`, `detail`
    │   ├── Refused         5   it will not do this (4xx); the same again gets the same answer
    │   │   ├── Denied     77   401, 403: no token, a wrong one, or one without the scope
    │   │   ├── NotFound    5   404
    │   │   ├── Conflict    5   409: the job is not in a state for it
    │   │   └── Gone        5   410: retention has deleted the job or ticket
    │   └── Unavailable    69   it cannot do this now (429, 502 to 504); later it may
    │       └── Unreachable     nobody answered at all; `status` is 0
    ├── BadAnswer           5   something answered that no jobd says
    └── WaitTimeout         4   the job was not final in time; also a TimeoutError

The number is the exit code of a command that ends with it. A message is one line: the thing, the value, the remedy. No
message holds a payload or a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.client.sansio import Lost, Reply
from jobd.errors import JobdError

if TYPE_CHECKING:
    from jobd.client.sansio import ApiRequest, CallSettings

#: Statuses that are retried: jobd is busy, or a proxy answers for it while it restarts.
PASSING = frozenset({429, 502, 503, 504})


class ClientError(JobdError):
    code = "client"
    exit_code = 5


class ApiProblem(ClientError):
    def __init__(
        self,
        what: str,
        *,
        status: int,
        code: str,
        detail: str,
        index: int | None = None,
        request_id: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{what}: {detail} ({code})")
        self.status = status
        #: Never changes for the same cause; `/problems` of a jobd lists them all.
        self.code = code
        self.detail = detail
        #: Which item of a batch it is about, counted from 0.
        self.index = index
        #: To find the request in jobd's log.
        self.request_id = request_id
        #: Seconds of the `Retry-After` header, if there was one.
        self.retry_after_s = retry_after_s


class Refused(ApiProblem):
    pass


class Denied(Refused):
    exit_code = 77


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class Gone(Refused):
    pass


class Unavailable(ApiProblem):
    exit_code = 69


class Unreachable(Unavailable):
    pass


class BadAnswer(ClientError):
    code = "bad_answer"


class WaitTimeout(ClientError, TimeoutError):
    code = "wait_timeout"
    exit_code = 4


_OF_STATUS: dict[int, type[ApiProblem]] = {401: Denied, 403: Denied, 404: NotFound, 409: Conflict, 410: Gone}


class _Problem(msgspec.Struct, frozen=True):
    code: str
    detail: str
    index: int | None = None
    request_id: str = ""


class _OpenAIDetail(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None


class _OpenAIProblem(msgspec.Struct, frozen=True):
    """How the paths of the OpenAI interface say it."""

    error: _OpenAIDetail


def error_of(settings: CallSettings, request: ApiRequest, answer: Reply | Lost) -> ClientError:
    """What an answer that is not the wanted one means."""
    if isinstance(answer, Lost):
        return _unreachable(settings, request, answer.reason)
    if answer.status < 400:
        return BadAnswer(
            f"{request.what}: {settings.url} answered with status {answer.status}, which no jobd does here; "
            "check the URL"
        )
    problem = _problem_in(settings, answer)
    detail = problem.detail
    if answer.status == 401:
        detail += "; give the client its token, or set JOBD_TOKEN"
    return _kind(answer.status)(
        request.what,
        status=answer.status,
        code=problem.code,
        detail=detail,
        index=problem.index,
        request_id=problem.request_id,
        retry_after_s=retry_after_s(answer),
    )


def _unreachable(settings: CallSettings, request: ApiRequest, reason: str) -> Unreachable:
    return Unreachable(
        request.what,
        status=0,
        code="unreachable",
        detail=f"no answer from {settings.url}: {reason}; is jobd running there? `jobd serve` starts one",
    )


def _kind(status: int) -> type[ApiProblem]:
    if status in PASSING:
        return Unavailable
    return _OF_STATUS.get(status) or (Refused if status < 500 else ApiProblem)


def _problem_in(settings: CallSettings, answer: Reply) -> _Problem:
    try:
        return msgspec.json.decode(answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        found = msgspec.json.decode(answer.body, type=_OpenAIProblem).error
        return _Problem(code=found.code or f"http_{answer.status}", detail=found.message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        detail = f"{settings.url} answered with status {answer.status} and not as jobd does; is it behind a proxy?"
        return _Problem(code=f"http_{answer.status}", detail=detail)


def retry_after_s(answer: Reply) -> float | None:
    value = answer.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 7 else None

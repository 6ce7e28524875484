"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`, and what they do then.

Clients send a call again on 408, 409, 429 and 5xx, unless the header `x-should-retry` says otherwise. So 409 is never
answered, and a call whose job has failed says `false`: its attempts were made already. A `Retry-After` of more than two
minutes makes clients give up, so it is cut to that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jobd.errors import JobdError

#: Longest `Retry-After` in seconds that clients obey.
MAX_RETRY_AFTER_S = 120

#: `type` of the error object by status; any other below 500 is invalid_request_error, the rest server_error.
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
#: Status of a call whose job ended with this error code; any other is 500.
_STATUS_OF_JOB_ERROR = {
    "invalid_payload": 400,
    "upstream_refused": 400,
    "upstream_busy": 503,
    "upstream_error": 502,
    "upstream_cut": 502,
    "upstream_unreachable": 502,
    "model_server_failed": 503,
    "stream_broken": 502,
    "timeout": 504,
    "expired": 504,
}
#: Codes of errors that only calls of the OpenAI interface have, each with its status. A call whose job has failed has
#: the error code of the job, for which `job_failed` stands here.
CODES = {
    "model_not_found": 404,
    "invalid_type": 400,
    "unsupported_value": 400,
    "unsupported_parameter": 400,
    "invalid_value": 400,
    "context_length_exceeded": 400,
    "previous_response_not_found": 400,
    "response_not_found": 404,
    "job_failed": 500,
    "bad_form": 400,
    "batch_ended": 400,
    "file_in_use": 400,
    "no_such_batch": 404,
    "no_such_file": 404,
    "file_lost": 410,
    "file_too_large": 413,
    "file_elsewhere": 503,
    "file_not_kept": 503,
    **_STATUS_OF_JOB_ERROR,
}


class OpenAIError(JobdError):
    """A call that is refused, or whose job has failed."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = 400 if status in (409, 422) else status
        self.message = message
        self.error_code = code
        #: Field of the body that is to blame.
        self.param = param
        self.retry_after_s = retry_after_s
        #: Whether the client should send the call again; None: as it does by itself.
        self.should_retry = should_retry


def refused(code: str, message: str, *, retry_after_s: float | None = None) -> OpenAIError:
    """A call that is refused for one of `CODES`."""
    return OpenAIError(CODES[code], message, code=code, retry_after_s=retry_after_s)


class InvalidCall(OpenAIError):
    """A field of the body is missing, of the wrong type, or asks for what is not there."""

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(400, message, code=code, param=param)


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    #: For people: the thing, the value, the remedy.
    message: str
    type: str
    #: Field of the body that is to blame.
    param: str | None
    #: For programs: never changes for the same cause.
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


def error_answer(error: OpenAIError) -> ErrorAnswer:
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return ErrorAnswer(
        error=ErrorDetail(message=error.message, type=kind, param=error.param, code=error.error_code),
    )


def error_headers(error: OpenAIError) -> dict[str, str]:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, min(MAX_RETRY_AFTER_S, round(error.retry_after_s))))
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    return headers


def error_of_job(status: str, error: Any) -> OpenAIError:
    """Why a job has no result: `status` is error or canceled, `error` the decoded error of the job or None."""
    found = error if isinstance(error, dict) else {}
    code = str(found.get("code") or ("job_canceled" if status == "canceled" else "job_failed"))
    what = "the job was canceled" if status == "canceled" else "the job failed"
    message = str(found.get("message") or what)
    return OpenAIError(_STATUS_OF_JOB_ERROR.get(code, 500), message, code=code, should_retry=False)

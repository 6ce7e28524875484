"""What went wrong with a model server, and whether another attempt may help.

    upstream_unreachable   yes   no connection, or it broke before an answer began
    timeout                yes   the deadline of the attempt passed in silence; the slot that runs it says the same
    upstream_busy          yes   429 and 503: too many requests, or the model is still being loaded. With `Retry-After`
                                 the job is put off until then and not charged, for up to MOST_PUT_OFFS attempts
    upstream_error         yes   408, 409, the other 5xx, and answers that are not what the interface says
    upstream_cut           yes   the answer ended in the middle
    upstream_refused       no    any other status, with what the server says about it
    bad_api_key            no    nothing was sent: the variable that should hold the key does not
    invalid_payload        no    nothing was sent; see `openai_payload`

What a server says is foreign text: it is cut at 1 KB, on one line, and without keys, which some servers repeat.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import httpx

from jobd.host.masking import HIDDEN, masked_text
from jobd.job.retry import SHORTEST_SNOOZE_S
from jobd.tasks.runner import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of the server's own words that are kept in the error of a job.
MAX_MESSAGE_BYTES = 1024
#: Longest header `Retry-After` that is read.
MAX_RETRY_AFTER_CHARS = 40
#: Longest time in seconds that a job is put off for `Retry-After`; a server that names a later time is asked then.
MAX_RETRY_AFTER_S = 3600.0
#: Number of the last attempt that is put off for `Retry-After`; from then on a busy server fails the attempt.
MOST_PUT_OFFS = 100

_KEY_LIKE = re.compile(r"(?i)\b(sk-|bearer\s+)[^\s\"',;)]+")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class UpstreamFailures:
    """Failures of one server as TaskFailed; `key` is the API key, which must not be shown."""

    def __init__(self, server: str, key: str) -> None:
        self._server = server
        self._key = key

    def by_status(self, status: int, text: str, headers: Mapping[str, str]) -> TaskFailed:
        retry_after = headers.get("retry-after", "")[:MAX_RETRY_AFTER_CHARS]
        text = f"{self._server} answered {status}{f' (Retry-After: {retry_after})' if retry_after else ''}: {text}"
        if status in (429, 503):
            return TaskFailed("upstream_busy", self._safe(text))
        if status in (408, 409) or status >= 500:
            return TaskFailed("upstream_error", self._safe(text))
        return TaskFailed("upstream_refused", self._safe(text), retryable=False)

    def in_stream(self, error: object) -> TaskFailed:
        """A server that had already answered 200 can only send the status along with the error."""
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return self.by_status(status, _message_in(error), {})

    def by_loss(self, error: httpx.RequestError, *, has_begun: bool) -> TaskFailed:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return TaskFailed("timeout", f"{self._server} was silent until the deadline of the attempt")
        if has_begun:
            return TaskFailed("upstream_cut", self._safe(f"{self._server} broke off its answer: {why}"))
        return TaskFailed("upstream_unreachable", self._safe(f"no answer from {self._server}: {why}"))

    def no_end(self) -> TaskFailed:
        return TaskFailed("upstream_cut", f"{self._server} ended its answer without a finish reason or an end mark")

    def not_understood(self, why: object) -> TaskFailed:
        return TaskFailed("upstream_error", self._safe(f"{self._server} sent what is not in OpenAI's format: {why}"))

    def too_large(self, limit: int) -> TaskFailed:
        return TaskFailed("upstream_error", f"{self._server} sent more than {limit} bytes", retryable=False)

    def _safe(self, text: str) -> str:
        """The text with secrets masked before it is cut: a cut could leave half a key unmasked."""
        text = text.replace(self._key, HIDDEN) if self._key else text
        return _UNPRINTABLE.sub(" ", without_keys(text)).encode()[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")


def without_keys(text: str) -> str:
    """The text of a server without what looks like an API key or the password of a URL."""
    return _KEY_LIKE.sub(rf"\1{HIDDEN}", masked_text(text))


def put_off_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that `Retry-After` asks for, within bounds; None: the header is missing or says nothing."""
    text = headers.get("retry-after", "").strip()[:MAX_RETRY_AFTER_CHARS]
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds()
        except (TypeError, ValueError, OverflowError):  # no date, or one without a zone
            return None
    return min(max(seconds, SHORTEST_SNOOZE_S), MAX_RETRY_AFTER_S)


def error_text(body: bytes, reason: str) -> str:
    """What the body of a bad answer says; one that says nothing leaves the reason phrase of its status."""
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip() or reason
    return _message_in(answer.get("error", answer) if isinstance(answer, dict) else answer)


def _message_in(error: object) -> str:
    """OpenAI has an object with a message, Ollama a text, FastAPI a `detail`."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return error if isinstance(error, str) else json.dumps(error)

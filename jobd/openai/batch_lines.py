"""Lines of a batch: what each asks for, and what its answer looks like. Pure.

input    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
output   {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}},
          "error": null}
error    the same with another status_code, or with `response` null and `error` {"code", "message"}
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from jobd.openai.chat_request import chat_call
from jobd.openai.embedding_request import embedding_call
from jobd.openai.errors import InvalidCall, OpenAIError, error_answer
from jobd.openai.responses_request import read_request, response_call

if TYPE_CHECKING:
    from jobd.config.model import Config
    from jobd.openai.embedding_request import Encoding
    from jobd.openai.fields import ModelCall

#: Longest custom_id in characters: it becomes a label of the job.
MAX_CUSTOM_ID = 512
_NAMES = ("custom_id", "method", "url", "body")
#: Bits of the number of a line in the id of its job: more lines than a file can have.
_LINE_BITS = 34
_encode = msgspec.json.Encoder().encode


class LineFault(Exception):
    """The line cannot become a job."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class LineCall(NamedTuple):
    custom_id: str
    call: ModelCall
    #: Of an embedding: how its numbers are written.
    encoding: Encoding = "float"


def line_call(value: Any, endpoint: str, config: Config) -> LineCall:
    """The call that a line, decoded, asks for; raises LineFault."""
    custom_id = custom_id_in(value)
    for name in value:
        if name not in _NAMES:
            raise LineFault("unknown_field", f"{name[:64]!r} is no field of a line: {', '.join(_NAMES)}", name[:64])
    if value.get("method") != "POST":
        raise LineFault("invalid_method", f"method must be POST (got {_shown(value.get('method'))})", "method")
    if value.get("url") != endpoint:
        message = f"url must be {endpoint}, as the batch says (got {_shown(value.get('url'))})"
        raise LineFault("invalid_url", message, "url")
    try:
        if endpoint == "/v1/embeddings":
            asked = embedding_call(value.get("body"), config)
            return LineCall(custom_id, asked.call, asked.encoding)
        if endpoint == "/v1/responses":
            return LineCall(custom_id, _response_call(value.get("body"), config))
        call = chat_call(value.get("body"), config)
        if call.is_stream:
            raise InvalidCall("stream", "stream must be false: nobody reads along", "unsupported_value")
        return LineCall(custom_id, call)
    except OpenAIError as error:
        param = "body" if error.param is None else f"body.{error.param}"
        raise LineFault(error.error_code or "invalid_request", error.message, param) from None


def _response_call(body: object, config: Config) -> ModelCall:
    request = read_request(body, config)
    asked = request.remembered
    for name, is_set in (("stream", asked.stream), ("background", asked.background)):
        if is_set:
            raise InvalidCall(name, f"{name} must be false: nobody reads along", "unsupported_value")
    if request.previous_id is not None:
        message = "a line cannot continue a response; put the conversation into input"
        raise InvalidCall("previous_response_id", message, "unsupported_value")
    return response_call(request, config)


def custom_id_in(value: Any) -> str:
    if not isinstance(value, dict):
        raise LineFault("invalid_json_line", "a line must be a JSON object")
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise LineFault(
            "invalid_custom_id",
            f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters (got {_shown(custom_id)})",
            "custom_id",
        )
    return custom_id


def line_job_id(batch_id: UUID, line: int) -> UUID:
    """The id of the job of a line: always the same, in the order of lines, with the time of the batch (UUIDv7)."""
    noise = int.from_bytes(hashlib.sha256(batch_id.bytes).digest()[:5], "big")
    tail = line << (74 - _LINE_BITS) | noise  # 74 bits
    time_ms = batch_id.int >> 80
    return UUID(int=time_ms << 80 | 7 << 76 | (tail >> 62) << 64 | 2 << 62 | tail & ((1 << 62) - 1))


def derived_id(batch_id: UUID, what: str) -> UUID:
    """The id of something that a batch makes once: always the same (UUIDv7 of its time)."""
    digest = hashlib.sha256(batch_id.bytes + what.encode()).digest()
    tail = int.from_bytes(digest[:10], "big") & ((1 << 74) - 1)
    time_ms = batch_id.int >> 80
    return UUID(int=time_ms << 80 | 7 << 76 | (tail >> 62) << 64 | 2 << 62 | tail & ((1 << 62) - 1))


def answered_line(job_id: UUID, custom_id: str, body: object) -> bytes:
    """A line of the output file."""
    return _line(job_id, custom_id, _response(job_id, 200, body), None)


def failed_line(job_id: UUID, custom_id: str, error: OpenAIError) -> bytes:
    """A line of the error file: the job has ended in error."""
    return _line(job_id, custom_id, _response(job_id, error.status, error_answer(error)), None)


def unanswered_line(job_id: UUID, custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file: the job was not run to its end."""
    return _line(job_id, custom_id, None, {"code": code, "message": message})


def _response(job_id: UUID, status: int, body: object) -> dict[str, object]:
    return {"status_code": status, "request_id": job_id.hex, "body": body}


def _line(job_id: UUID, custom_id: str, response: object, error: object) -> bytes:
    line = {"id": f"batch_req_{job_id.hex}", "custom_id": custom_id, "response": response, "error": error}
    return _encode(line) + b"\n"


def _shown(value: object) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 64 else f"{text[:64]}..."

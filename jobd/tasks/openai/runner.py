"""Jobs that a model server answers: llama.cpp, Ollama, vLLM or anything else that speaks OpenAI's HTTP interface.

The task called `embed` asks for vectors, every other one for text, which is streamed: each piece becomes an event as
it comes, `token` for text, `reasoning` for thoughts and `tool_call` for pieces of tool calls. A call of jobd's own
OpenAI interface says itself where it goes. Payloads are read in `payload`, answers gathered in `answer`, and `failures`
lists what may go wrong.

One attempt is one request. Nothing is sent again here: whether another attempt is made, and when, is decided where it
is counted, by the job's retries.

Cancelling `run` closes its connection, by which the server notices and stops to compute. Connections of answers that
were read to their end are kept for the next job. The API key comes from the environment and goes into one header,
nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx
import msgspec

from jobd import __version__
from jobd.errors import ConfigError
from jobd.openai.embedding_request import input_count
from jobd.tasks.openai.answer import CompletionChunk, Embeddings, StreamedAnswer, vectors
from jobd.tasks.openai.failures import MOST_PUT_OFFS, UpstreamFailures, error_text, put_off_s
from jobd.tasks.openai.model_counts import ModelCounts
from jobd.tasks.openai.payload import chat_body, embed_body, server_path
from jobd.tasks.runner import Runner, Snoozed, TaskFailed, trace_headers
from jobd.wire.sse import SseParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from jobd.config.model import Task
    from jobd.tasks.runner import Context

EMBED = "embed"
#: Seconds that a connection to the model's server may take.
CONNECT_TIMEOUT_S = 5.0
#: Uvicorn (vLLM) and llama.cpp drop an idle connection after 5 s, which could cross with a request.
IDLE_S = 3.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_S)
#: How a stream says that it is whole, and how long its connection may then take to be ready for the next job.
END_MARK = "[DONE]"
#: Seconds that a connection may take after the end of a stream to be ready for the next job.
END_S = 0.5
#: Largest event of a stream in bytes.
MAX_EVENT_BYTES = 1024 * 1024
#: Largest answer that is not streamed, in bytes.
MAX_BODY_BYTES = 64 * 1024 * 1024
#: Bytes of an error answer that are read.
MAX_ERROR_BYTES = 64 * 1024

_T = TypeVar("_T")


class OpenAIRunner(Runner):
    model_counts: ModelCounts

    def __init__(self, task: Task) -> None:
        self._task = task
        try:
            url = httpx.URL(task.base_url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"base_url is no URL: {error}") from None
        self._server = f"{url.scheme}://{url.netloc.decode()}"  # without the password that the URL may hold
        self._key = os.environ.get(task.api_key_env, "").strip() if task.api_key_env else ""
        self._failures = UpstreamFailures(self._server, self._key)
        self._http = server_client(url)
        self.model_counts = ModelCounts(task.model)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        path = server_path(payload, is_embed=context.task == EMBED)
        return await (self._embed(payload, context) if path == "embeddings" else self._chat(path, payload, context))

    async def _embed(self, payload: Mapping[str, Any], context: Context) -> dict[str, Any]:
        body = embed_body(payload, self._task)
        async with self._asked("embeddings", body, context) as response:
            embeddings = self._decoded(await self._whole(response), Embeddings)
        return vectors(embeddings, input_count(body.get("input")), body.get("model", ""))

    async def _chat(self, path: str, payload: Mapping[str, Any], context: Context) -> dict[str, Any]:
        body = chat_body(payload, self._task)
        answer = StreamedAnswer(body.get("model", ""))
        try:
            async with self._asked(path, body, context) as response:
                if _is_json(response):  # from a server that does not stream
                    self._add(answer, await self._whole(response), context)
                else:
                    await self._follow(response, answer, context)
        finally:
            self.model_counts.add(body.get("model", ""), answer)
        if not answer.is_whole:
            raise self._failures.no_end()
        return answer.result()

    @contextlib.asynccontextmanager
    async def _asked(self, path: str, body: Mapping[str, Any], context: Context) -> AsyncIterator[httpx.Response]:
        """The good answer to a request, to be read within; failures raise TaskFailed."""
        headers, left_s = {**trace_headers(context), **self._authorization()}, context.left_s
        timeout = httpx.Timeout(left_s, connect=min(CONNECT_TIMEOUT_S, left_s))
        has_begun = False
        try:
            async with self._http.stream("POST", path, json=body, headers=headers, timeout=timeout) as response:
                has_begun = True
                if not response.is_success:
                    text = error_text(await _body(response, MAX_ERROR_BYTES), response.reason_phrase)
                    raise self._put_off(
                        self._failures.by_status(response.status_code, text, response.headers), response, context
                    )
                yield response
        except httpx.RequestError as error:
            raise self._failures.by_loss(error, has_begun=has_begun) from None

    def _put_off(self, failed: TaskFailed, response: httpx.Response, context: Context) -> TaskFailed:
        """What to raise: a busy server that says when it has time is asked again then, at no cost to the job."""
        delay_s = put_off_s(response.headers) if failed.code == "upstream_busy" else None
        if delay_s is None or context.attempt > MOST_PUT_OFFS:
            return failed
        context.log(f"put off for {delay_s:g} s: {failed.message}", "warning")
        return Snoozed(delay_s)

    def _authorization(self) -> dict[str, str]:
        if not self._task.api_key_env:
            return {}
        if not re.fullmatch(r"[\x21-\x7e]+", self._key):  # else httpx would refuse it, and show it
            message = f"the variable {self._task.api_key_env} must hold the API key of {self._server} when jobd starts"
            raise TaskFailed("bad_api_key", f"{message}, in visible ASCII", retryable=False)
        return {"Authorization": f"Bearer {self._key}"}

    async def _follow(self, response: httpx.Response, answer: StreamedAnswer, context: Context) -> None:
        """Read the stream to its end. Once the answer is whole, the way in which the stream ends does not matter."""
        parser, parts = _Events(), response.aiter_bytes()
        try:
            async for part in parts:
                if self._take(parser.feed(part), answer, context):
                    break
                if parser.waiting > MAX_EVENT_BYTES:
                    raise self._failures.too_large(MAX_EVENT_BYTES)
            with anyio.move_on_after(END_S):
                async for _ in parts:
                    pass
        except httpx.RequestError:
            if not answer.is_whole:
                raise

    def _take(self, events: Iterator[str], answer: StreamedAnswer, context: Context) -> bool:
        """Take the events of one part of the stream; True if the end mark was among them."""
        for data in events:
            if data == END_MARK:
                answer.is_whole = True
                return True
            self._add(answer, data.encode(), context)
        return False

    def _add(self, answer: StreamedAnswer, data: bytes, context: Context) -> None:
        chunk = self._decoded(data, CompletionChunk)
        if chunk.error:
            raise self._failures.in_stream(chunk.error)
        for piece in answer.add(chunk):
            context.event(piece.kind, piece.data)

    async def _whole(self, response: httpx.Response) -> bytes:
        body = await _body(response, MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise self._failures.too_large(MAX_BODY_BYTES)
        return body

    def _decoded(self, data: bytes, type_: type[_T]) -> _T:
        try:
            return msgspec.json.decode(data, type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._failures.not_understood(error) from None


def server_client(url: httpx.URL) -> httpx.AsyncClient:
    """Connections to a model server, which are asked for paths below its `base_url`."""
    # Reading the certificates of all authorities takes 30 ms. Where none is needed, none is trusted either.
    verify = True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # With a transport of our own httpx does not ask the environment for a proxy.
    way: dict[str, Any] = (
        {"transport": httpx.AsyncHTTPTransport(verify=verify, limits=LIMITS)}
        if _is_loopback(url.host)
        else {"verify": verify, "limits": LIMITS}
    )
    return httpx.AsyncClient(base_url=url, headers={"User-Agent": f"jobd/{__version__}"}, **way)


class _Events:
    """The data of each event of a stream, and how many bytes were read for one that has not come yet."""

    def __init__(self) -> None:
        self.waiting = 0
        self._parser = SseParser()

    def feed(self, part: bytes) -> Iterator[str]:
        self.waiting += len(part)
        for message in self._parser.feed(part):
            self.waiting = 0
            yield message.data


async def _body(response: httpx.Response, limit: int) -> bytes:
    """The body of a response, cut at the limit."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size >= limit:
            break
    return b"".join(parts)[:limit]


def _is_json(response: httpx.Response) -> bool:
    content_type: str = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

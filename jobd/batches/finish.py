"""The end of a batch: what its jobs ended with becomes the output and the error file, one line for each of the input.

Both files are made from the beginning, in the order of the input, from the rows of the jobs, and get their names when
they are whole. Their rows and the last status of the batch are one commit. So whatever is killed when, each line stands
once in one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from anyio import to_thread

from jobd.batches.lines import line_limit, read_lines
from jobd.batches.table import finish_batch, read_line_ends
from jobd.engine.results import ResultLost
from jobd.files.table import NewStoredFile, create_file
from jobd.openai.answer import answer_of
from jobd.openai.batch_lines import (
    LineFault,
    answered_line,
    derived_id,
    failed_line,
    line_call,
    line_job_id,
    unanswered_line,
)
from jobd.openai.batch_objects import batch_id_text
from jobd.openai.chat_answer import chat_completion
from jobd.openai.embedding_answer import embedding_list
from jobd.openai.errors import OpenAIError, error_of_job
from jobd.openai.responses_stream import whole_response

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO
    from uuid import UUID

    from jobd.batches.table import LineEnd, StoredBatch
    from jobd.config.model import Config
    from jobd.engine.results import Results
    from jobd.files.storage import FileStorage, FileWriter
    from jobd.store.postgres import Database

#: Lines whose results are read at once; each may have `limits.inline_result_bytes`.
STEP_LINES = 100

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
#: Code and message of a line that was not run, by how the batch ends.
_NOT_RUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}


class Line(NamedTuple):
    job_id: UUID
    custom_id: str
    model: str
    encoding: Any
    #: Of the job, as a response has to know it; None if it could not be made today.
    payload: dict[str, Any] | None = None


class Tokens(msgspec.Struct, kw_only=True):
    """Usage of all lines."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def add(self, usage: dict[str, Any]) -> None:
        self.prompt += usage["prompt_tokens"]
        self.completion += usage["completion_tokens"]
        self.cached += _count(usage.get("prompt_tokens_details"), "cached_tokens")
        self.reasoning += _count(usage.get("completion_tokens_details"), "reasoning_tokens")

    def shown(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }


class Finish:
    """Makes the files of one batch."""

    def __init__(
        self, database: Database, files: FileStorage, results: Results, batch: StoredBatch, config: Config
    ) -> None:
        self._database = database
        self._files = files
        self._results = results
        self._batch = batch
        self._config = config
        self._tokens = Tokens()
        self._completed = 0
        self._failed = 0

    async def run(self, file: BinaryIO, beat: Callable[[], None]) -> None:
        """`beat` is called after each step and may raise to stop it; then nothing has happened."""
        output_id, error_id = derived_id(self._batch.id, "output"), derived_id(self._batch.id, "error")
        async with self._files.new_file(output_id) as output, self._files.new_file(error_id) as errors:
            await self._write(file, output, errors, beat)
            new = [
                NewStoredFile(
                    id=file_id,
                    owner=self._batch.owner,
                    filename=f"{batch_id_text(self._batch.id)}_{name}.jsonl",
                    purpose="batch_output",
                    bytes=writer.size,
                    ref=await writer.keep(),
                    keep_s=self._batch.keep_output_s or self._config.openai.batch_keep_s,
                )
                for file_id, name, writer in ((output_id, "output", output), (error_id, "error", errors))
                if writer.size
            ]
            made = {stored.id for stored in new}
            async with self._database.connection() as connection, connection.transaction():
                is_ours = await finish_batch(
                    connection,
                    self._batch.id,
                    completed=self._completed,
                    failed=self._failed,
                    usage=_encode(self._tokens.shown()).decode(),
                    output_file_id=output_id if output_id in made else None,
                    error_file_id=error_id if error_id in made else None,
                )
                for stored in new if is_ours else ():
                    await create_file(connection, stored)

    async def _write(self, file: BinaryIO, output: FileWriter, errors: FileWriter, beat: Callable[[], None]) -> None:
        at, number = 0, 1
        while True:
            lines, at, number = await to_thread.run_sync(self._read, file, at, number)
            if lines is None:
                return
            ends = await read_line_ends(self._database, [line.job_id for line in lines])
            waiting: list[tuple[Line, LineEnd | None, bytes | None]] = []
            for line in lines:
                end = ends.get(line.job_id)
                text = None
                if end is not None and end.result_ref is not None and end.status == "done":
                    # It may be large: what is before it is written first, and it alone is in memory.
                    await to_thread.run_sync(self._write_lines, waiting, output, errors)
                    waiting = []
                    text = await self._large_result(end.result_ref)
                waiting.append((line, end, text))
            await to_thread.run_sync(self._write_lines, waiting, output, errors)
            beat()

    async def _large_result(self, ref: str) -> bytes | None:
        try:
            opened = await self._results.open(ref)
        except ResultLost:
            return None
        with opened.file:
            return await to_thread.run_sync(opened.file.read)

    def _read(self, file: BinaryIO, at: int, number: int) -> tuple[list[Line] | None, int, int]:
        """The next lines, and where those after them begin; None: there are none. Blocks."""
        found = read_lines(file, at, number, most=STEP_LINES, longest=line_limit(self._config))
        if not found:
            return None, at, number
        lines = [self._line(line.number, line.text) for line in found if line.text]
        return lines, found[-1].end, found[-1].number + 1

    def _line(self, number: int, text: bytes) -> Line:
        """It was good when the batch began; the configuration may have changed since."""
        value = _decode(text)
        try:
            call = line_call(value, self._batch.endpoint, self._config)
            model, encoding, payload = call.call.model.id, call.encoding, call.call.payload
        except LineFault:
            model, encoding = str(value["body"].get("model") or ""), value["body"].get("encoding_format") or "float"
            payload = None
        return Line(line_job_id(self._batch.id, number), value["custom_id"], model, encoding, payload)

    def _write_lines(
        self, lines: list[tuple[Line, LineEnd | None, bytes | None]], output: FileWriter, errors: FileWriter
    ) -> None:
        """Blocks."""
        for line, end, text in lines:
            answer = self._answer(line, end, text)
            if isinstance(answer, OpenAIError):
                self._failed += 1
                errors.write_blocking(failed_line(line.job_id, line.custom_id, answer))
            elif isinstance(answer, tuple):
                self._failed += 1
                errors.write_blocking(unanswered_line(line.job_id, line.custom_id, *answer))
            else:
                self._completed += 1
                output.write_blocking(answered_line(line.job_id, line.custom_id, answer))

    def _answer(self, line: Line, end: LineEnd | None, text: bytes | None) -> object:
        """The body of the answer; an OpenAIError: the job failed; code and message: it was not run to its end."""
        if end is None:
            return _NOT_RUN.get(self._batch.ending or "") or (
                "job_deleted",
                "The job of this request was deleted, or could not be made, before the batch ended.",
            )
        if end.status == "done":
            raw = text if end.result_ref is not None else (end.result or "null").encode()
            if raw is None:
                return "result_lost", "The file with the answer to this request is not on this node."
            return self._body(line, _decode(raw), end.ended_ms)
        error = error_of_job(end.status, None if end.error is None else _decode(end.error))
        if end.status == "error":
            return error
        if error.error_code == "expired":
            return _NOT_RUN["expired"]
        return _NOT_RUN.get(self._batch.ending or "") or (error.error_code, error.message)

    def _body(self, line: Line, result: Any, ended_ms: int) -> object:
        answer = answer_of(result)
        self._tokens.add(answer.counts)
        if self._batch.endpoint == "/v1/responses" and line.payload is not None:
            return whole_response(line.job_id, line.payload, result, ended_ms)
        if self._batch.endpoint != "/v1/embeddings":
            return chat_completion(line.job_id, line.model, answer)
        try:
            return embedding_list(line.model, result, line.encoding)
        except OpenAIError as error:
            return error


def _count(details: object, name: str) -> int:
    value = details.get(name) if isinstance(details, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

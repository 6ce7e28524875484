"""Validation: all lines of a batch are good, or it fails and says which are not. Nothing is written before.

A batch that was being validated when jobd ended is validated from the beginning.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from jobd.batches.lines import decoded, line_job, line_limit, read_lines
from jobd.batches.table import begin_batch, fail_batch
from jobd.lifecycle.groups import NewGroup, create_group
from jobd.openai.batch_lines import LineFault, line_call
from jobd.openai.batch_objects import BatchFault, batch_id_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from jobd.batches.lines import InputLine
    from jobd.batches.table import StoredBatch
    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.tasks.runner import Runner

#: Most lines of a batch, as OpenAI has it.
MAX_LINES = 50_000
#: Faults that are listed; a file with more of them is not read to its end.
MAX_FAULTS = 100
#: Lines that are checked in one step: some 10 ms of CPU.
STEP_LINES = 100
#: Bytes of a hash that stand for a custom_id: 50 000 of them meet with a chance of 10^-29.
_DIGEST_BYTES = 16


class Validation:
    """What is known so far of the lines of one batch. `step` blocks; one thread at a time may call it."""

    def __init__(self, batch: StoredBatch, file: BinaryIO, config: Config, runners: Mapping[str, Runner]) -> None:
        self._batch = batch
        self._file = file
        self._config = config
        self._runners = runners
        self._at = 0
        self._number = 1
        self._seen: set[bytes] = set()
        self._models: set[str] = set()
        self.total = 0
        self.faults: list[BatchFault] = []

    @property
    def model(self) -> str | None:
        """The model of all lines, if it is one."""
        return next(iter(self._models)) if len(self._models) == 1 else None

    def step(self) -> bool:
        """Check some lines; whether it is over."""
        lines = read_lines(self._file, self._at, self._number, most=STEP_LINES, longest=line_limit(self._config))
        for line in lines:
            if line.text and not self._look_at(line):
                return True
        if lines:
            self._at, self._number = lines[-1].end, lines[-1].number + 1
            return False
        if not self.total and not self.faults:
            self.faults.append(BatchFault(code="empty_file", message="the file has no lines"))
        return True

    def close(self) -> None:
        self._file.close()

    def _look_at(self, line: InputLine) -> bool:
        """False: it is not worth looking at more."""
        self.total += 1
        if self.total > MAX_LINES:
            message = f"the file has more than {MAX_LINES} lines; split it"
            self.faults.append(BatchFault(code="too_many_lines", message=message, line=line.number))
            return False
        try:
            self._check(line)
        except LineFault as fault:
            fault_of_line = BatchFault(code=fault.code, message=fault.message, line=line.number, param=fault.param)
            self.faults.append(fault_of_line)
        return len(self.faults) < MAX_FAULTS

    def _check(self, line: InputLine) -> None:
        call = line_call(decoded(line, line_limit(self._config)), self._batch.endpoint, self._config)
        digest = hashlib.blake2b(call.custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._seen:
            message = f"custom_id {call.custom_id[:64]!r} stands in an earlier line, too"
            raise LineFault("duplicate_custom_id", message, "custom_id")
        self._seen.add(digest)
        line_job(self._batch, line.number, call, self._config, self._runners)
        self._models.add(call.call.model.id)


async def end_validation(database: Database, batch: StoredBatch, validation: Validation) -> None:
    """Write down what came of it: the batch fails, or begins, and then has a group for its jobs."""
    if validation.faults:
        await fail_batch(database, batch.id, msgspec.json.encode(validation.faults).decode(), validation.total)
        return
    group = NewGroup(id=batch.id, name=batch_id_text(batch.id), owner=batch.owner)
    async with database.connection() as connection, connection.transaction():
        if await begin_batch(connection, batch.id, validation.total, validation.model):
            await create_group(connection, group)

"""Reports to jobd in batches: what gathers while a call is under way goes with the next one.

The caller that finds no call under way sends for all who have gathered; the others wait for its answer. So a lone
report goes at once, by the call for one job, and the busier the worker is, the more reports share a call. There is no
task of its own that could be stopped too early:

- A caller that is cancelled before its reports were sent withdraws them. If it was the one that sent, another of those
  who wait sends again: reports are idempotent by attempt.
- A batch that is refused for its body is sent in halves, down to the report that is to blame.
- A large report goes alone, and the others do not wait for it.
- A jobd that knows no batches (it is older than this worker) gets one call for each report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType

from jobd.client import ApiProblem, BadAnswer, ClientError, NotFound
from jobd.worker.session import is_about_the_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobd.worker.session import WorkerSession

#: Most reports of one call: as many as jobd writes in one commit.
MAX_REPORTS = 500
#: Most bytes of reports in one call, well below the limit of the gateway.
CALL_BYTES = 1 << 20
#: A report with more bytes goes alone, so that no other waits until it is sent and written to a disk.
ALONE_BYTES = 64 * 1024
#: Most bytes of a report without its result or error.
ENVELOPE_BYTES = 256
#: Seconds added to the timeout for each byte of a result, which has to be sent, checked and written to a disk.
HOLD_S_PER_BYTE = 1e-6
#: Calls for one report each that are under way at once, where there are no batches.
AT_ONCE = 16

Report = TypeVar("Report")
Answer = TypeVar("Answer")


class SentReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report, in a batch or, with `worker_id`, alone."""

    job_id: UUID
    attempt_id: UUID
    lease_token: UUID
    #: Encoded JSON.
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    #: Of a release: seconds until the job comes back.
    delay_s: float | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET

    @property
    def size(self) -> int:
        """Bytes of its result or error."""
        content = self.error if isinstance(self.result, UnsetType) else self.result
        return 0 if isinstance(content, UnsetType) else len(content)


class SentBatch(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    jobs: Sequence[SentReport]


class _GatheredReports(Generic[Answer]):
    """Reports that are sent together."""

    __slots__ = ("answers", "reports")

    def __init__(self) -> None:
        #: None: withdrawn.
        self.reports: list[SentReport | None] = []
        #: In their order; none until they were sent.
        self.answers: list[Answer | Exception | None] | None = None


class ReportLine(Generic[Report, Answer]):
    """The reports of one verb on their way to jobd."""

    def __init__(
        self,
        session: WorkerSession,
        worker_id: str,
        verb: str,
        *,
        kinds: tuple[type[Any], type[Any]],
        sent: Callable[[Report], SentReport],
        answered: Callable[[Any], Answer],
        refused: Callable[[ApiProblem, int], Exception] = lambda error, _: error,
    ) -> None:
        self._session = session
        self._worker_id = worker_id
        self._verb = verb
        #: What jobd answers to one report, and to a batch of them.
        self._kind, self._batch_kind = kinds
        self._sent = sent
        self._answered = answered
        #: What an answer means that refuses a report for what is in it, by its problem and its size in bytes.
        self._refused = refused
        #: What goes with the next call.
        self._gathering: _GatheredReports[Answer] = _GatheredReports()
        self._is_sending = False
        #: Set and replaced when a call has ended.
        self._ended = anyio.Event()
        #: How many reports counted.
        self.accepted = 0

    async def submit(self, report: Report) -> Answer:
        """The answer to the report; raises the error that it was answered with."""
        (answer,) = await self.submit_many([report])
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)  # several callers may raise it, and each would add its own frames
        return answer

    async def submit_many(self, reports: Sequence[Report]) -> list[Answer | Exception]:
        """An answer or an error for each report, in order. After a ClientError the report may be sent again."""
        sent = [self._sent(report) for report in reports]
        large = [n for n, report in enumerate(sent) if report.size > ALONE_BYTES]
        if not large:
            return await self._gather(sent)
        answers: list[Any] = [None] * len(sent)
        small = [n for n in range(len(sent)) if n not in large]

        async def send_alone(n: int) -> None:
            answers[n] = await self._alone(sent[n])

        async with anyio.create_task_group() as tasks:
            for n in large:
                tasks.start_soon(send_alone, n)
            for n, answer in zip(small, await self._gather([sent[n] for n in small]), strict=True):
                answers[n] = answer
        return answers

    # -- gathering -----------------------------------------------------------------------------------------------

    async def _gather(self, reports: Sequence[SentReport]) -> list[Answer | Exception]:
        if not reports:
            return []
        gathering = self._gathering
        places = slice(len(gathering.reports), len(gathering.reports) + len(reports))
        gathering.reports += reports
        try:
            while gathering.answers is None:
                if self._is_sending:
                    await self._ended.wait()
                else:
                    await self._send_for_all(gathering)
        except BaseException:
            gathering.reports[places] = [None] * len(reports)
            raise
        return [answer for answer in gathering.answers[places] if answer is not None]

    async def _send_for_all(self, gathering: _GatheredReports[Answer]) -> None:
        self._is_sending = True
        if gathering is self._gathering:
            self._gathering = _GatheredReports()
        try:
            answers = iter(await self._send([report for report in gathering.reports if report is not None]))
            gathering.answers = [None if report is None else next(answers) for report in gathering.reports]
        finally:
            self._is_sending = False
            ended, self._ended = self._ended, anyio.Event()
            ended.set()

    # -- sending -------------------------------------------------------------------------------------------------

    async def _send(self, reports: Sequence[SentReport]) -> list[Answer | Exception]:
        answers: list[Answer | Exception] = []
        for part in _parts(reports):
            answers += await self._together(part)
        return answers

    async def _together(self, reports: Sequence[SentReport]) -> list[Answer | Exception]:
        if len(reports) == 1:
            return [await self._alone(reports[0])]
        if not self._session.takes_batches:
            return await self._one_by_one(reports)
        batch = SentBatch(worker_id=self._worker_id, jobs=reports)
        hold_s = sum(report.size for report in reports) * HOLD_S_PER_BYTE
        try:
            answer = await self._session.post(f"{self._verb}/batch", batch, self._batch_kind, hold_s, is_new=True)
        except NotFound as error:
            if error.code != "not_found":  # a proxy, while jobd is away
                return [error] * len(reports)
            self._session.takes_batches = False
            return await self._one_by_one(reports)
        except ClientError as error:
            if not is_about_the_body(error):
                return [error] * len(reports)
            half = len(reports) // 2
            return [*await self._together(reports[:half]), *await self._together(reports[half:])]
        if len(answer.jobs) != len(reports):
            return [BadAnswer(f"{self._verb}: {len(answer.jobs)} answers to {len(reports)} reports")] * len(reports)
        return [self._read(report, job) for report, job in zip(reports, answer.jobs, strict=True)]

    async def _one_by_one(self, reports: Sequence[SentReport]) -> list[Answer | Exception]:
        answers: list[Any] = [None] * len(reports)
        left = iter(enumerate(reports))

        async def send_the_next() -> None:
            for n, report in left:
                answers[n] = await self._alone(report)

        async with anyio.create_task_group() as tasks:
            for _ in range(min(AT_ONCE, len(reports))):
                tasks.start_soon(send_the_next)
        return answers

    async def _alone(self, report: SentReport) -> Answer | Exception:
        body = msgspec.structs.replace(report, worker_id=self._worker_id)
        try:
            answer = await self._session.post(self._verb, body, self._kind, report.size * HOLD_S_PER_BYTE)
        except ApiProblem as error:
            return self._refused(error, report.size) if is_about_the_body(error) else error
        except ClientError as error:
            return error
        return self._counted(answer)

    def _read(self, report: SentReport, answer: Any) -> Answer | Exception:
        if answer.problem is UNSET:
            return self._counted(answer)
        problem = answer.problem
        error = ApiProblem(self._verb, status=problem.status, code=problem.code, detail=problem.detail)
        return self._refused(error, report.size) if is_about_the_body(error) else error

    def _counted(self, answer: Any) -> Answer:
        self.accepted += answer.ok
        return self._answered(answer)


def _parts(reports: Sequence[SentReport]) -> Iterator[list[SentReport]]:
    """As many in each as one call takes, in their order."""
    part: list[SentReport] = []
    room = CALL_BYTES
    for report in reports:
        size = report.size + ENVELOPE_BYTES
        if part and (size > room or len(part) == MAX_REPORTS):
            yield part
            part, room = [], CALL_BYTES
        part.append(report)
        room -= size
    if part:
        yield part

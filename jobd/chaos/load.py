"""Clients that send every kind of job all the time, whatever happens to the board, and remember the answers.

A submit without an answer may have had its effect or not. Those with an Idempotency-Key are sent again until there is
an answer; the others are not.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from jobd.chaos.records import Accepted, BatchOfJobs, CanceledAt, History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.chaos.board import BoardAnswer, DrillBoard

TASK = "chaos"
#: The kinds in the order in which they are sent, over and over; a third of them runs without incident.
KINDS = (
    *("short", "keyed", "short", "batch", "long", "canceled", "short", "failing", "delayed", "retried"),
    *("short", "group", "keyed", "fatal", "short"),
)
#: Clients that send at the same time.
THREADS = 3
#: Seconds between two submits of a client.
PAUSE_S = 0.04
#: Seconds between two tries to send the same again.
AGAIN_S = 0.1
#: Seconds that a delayed job waits.
DELAY_S = 0.5
#: Jobs of a batch and of a group.
SOME = 4


class Load:
    """Threads that send; `with` begins and ends them. It is ended while the board is ready: what must have an answer is
    sent until it has.
    """

    def __init__(self, board: DrillBoard, queue: str) -> None:
        self._board = board
        self._queue = queue
        self._numbers = itertools.count(1)
        self._ending = threading.Event()
        #: Nothing more is sent, whatever must have an answer.
        self._abandoned = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n,), name=f"jobd-chaos-load-{n}") for n in range(THREADS)
        ]
        self._accepted: list[Accepted] = []
        self._canceled: list[CanceledAt] = []
        self._batches: list[BatchOfJobs] = []
        self.groups: list[str] = []
        #: Requests that were refused, by status, and those without an answer.
        self._refusals: Counter[int] = Counter()
        self.unanswered = 0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ending.set()
        if kind is not None:  # the board may never answer again
            self._abandoned.set()
        for thread in self._threads:
            thread.join()

    @property
    def accepted(self) -> int:
        return len(self._accepted)

    def sent(self) -> History:
        return History(
            accepted=tuple(self._accepted),
            canceled=tuple(self._canceled),
            batches=tuple(self._batches),
            refusals=dict(self._refusals),
        )

    def _run(self, first: int) -> None:
        """Each thread begins elsewhere: one that waits for an answer does not keep the others from their kinds."""
        for kind in itertools.cycle((*KINDS[first * SOME :], *KINDS[: first * SOME])):
            if self._ending.wait(PAUSE_S):
                return
            if kind == "batch":
                self._send_batch()
            elif kind == "group":
                self._send_group()
            elif kind == "keyed":
                self._submit(kind, persistent=True)
            else:
                job_id = self._submit(kind, delay_s=DELAY_S if kind in ("delayed", "canceled") else 0.0)
                if job_id is not None and kind == "canceled":
                    self._cancel(job_id)

    # -- kinds -----------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, *, delay_s: float = 0.0, persistent: bool = False, **more: object) -> str | None:
        """The id of the job, if it was accepted."""
        number, sent_at = next(self._numbers), time.time()
        body = {**self._job(kind, number), **({"delay_s": delay_s} if delay_s else {}), **more}
        answer = self._send("/v1/jobs", body, persistent=persistent)
        if answer is None:
            return None
        job_id: str = answer["job_id"]
        self._accept(job_id, kind, number, sent_at, delay_s)
        return job_id

    def _accept(self, job_id: str, kind: str, number: int, sent_at: float, delay_s: float = 0.0) -> None:
        self._accepted.append(Accepted(job_id=job_id, kind=kind, number=number, sent_at=sent_at, delay_s=delay_s))

    def _cancel(self, job_id: str) -> None:
        answer = self._send(f"/v1/jobs/{job_id}/cancel", {})
        if answer is not None and answer["status"] == "canceled":
            self._canceled.append(CanceledAt(job_id=job_id, answered_at=time.time()))

    def _send_batch(self) -> None:
        numbers, sent_at, name = [next(self._numbers) for _ in range(SOME)], time.time(), uuid.uuid4().hex
        self._batches.append(BatchOfJobs(name=name, jobs=SOME))
        answer = self._send("/v1/jobs/batch", [self._job("batch", number, name) for number in numbers])
        if answer is not None:
            for entry, number in zip(answer["jobs"], numbers, strict=True):
                self._accept(entry["job_id"], "batch", number, sent_at)

    def _send_group(self) -> None:
        group_id = str(uuid.uuid4())
        if self._send("/v1/groups", {"id": group_id}, persistent=True) is None:
            return
        self.groups.append(group_id)
        for _ in range(SOME):
            self._submit("group", persistent=True, group=group_id)
        self._send(f"/v1/groups/{group_id}/seal", {}, persistent=True)

    def _job(self, kind: str, number: int, batch: str | None = None) -> dict[str, object]:
        payload = {"kind": kind, "n": number, **({"batch": batch} if batch else {})}
        return {"task": TASK, "queue": self._queue, "payload": payload}

    # -- requests --------------------------------------------------------------------------------------------------

    def _send(self, path: str, body: object, *, persistent: bool = False) -> Any:
        """The answer, or None if it was refused or there was none; `persistent`: again until there is a good one."""
        headers = {"Idempotency-Key": uuid.uuid4().hex} if path == "/v1/jobs" and persistent else {}
        while True:
            answer = self._post(path, body, headers)
            if answer is not None and answer.status < 300:
                return answer.json()
            if not persistent or (answer is not None and answer.status < 429) or self._abandoned.wait(AGAIN_S):
                return None

    def _post(self, path: str, body: object, headers: Mapping[str, str]) -> BoardAnswer | None:
        answer = self._board.request("POST", path, body, headers)
        if answer is None:
            self.unanswered += 1
        elif answer.status >= 300:
            self._refusals[answer.status] += 1
        return answer

"""Clients that submit all the time, whatever happens to jobd, and what came of every job that was acknowledged."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from typing import TYPE_CHECKING

import asyncpg

from tests.support.http import Api
from tests.support.wait import is_late, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.daemon import Jobd

PAUSE_S = 0.02
#: After the faults, everything is to be done within this.
DONE_S = 120.0
OUTCOMES = """
SELECT j.id::text, j.status::text, j.result::text,
    (SELECT count(*) FROM jobd.attempts a WHERE a.job_id = j.id AND a.outcome = 'done') AS times
FROM jobd.jobs j WHERE j.id = ANY ($1::uuid[])
"""


class SubmitLoad:
    """Submits one job after the other in a thread of its own; a submit without an answer is not repeated."""

    def __init__(self, daemon: Jobd) -> None:
        self._daemon = daemon
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._number = 0
        #: The id of each job that was acknowledged, and the number in its payload.
        self.acknowledged: dict[str, int] = {}
        #: Statuses of answers that refused.
        self.refused: list[int] = []

    def __enter__(self) -> SubmitLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(PAUSE_S):
            self._number += 1
            self._submit({"task": "double", "payload": {"n": self._number}})

    def _submit(self, job: Mapping[str, object], headers: Mapping[str, str] | None = None) -> bool:
        """Whether it was acknowledged."""
        try:
            answer = Api(self._daemon.address)("POST", "/v1/jobs", job, headers)
        except (OSError, KeyError, ValueError, http.client.HTTPException):  # it is not there, or just went
            return False
        if answer.status < 300:
            self.acknowledged[answer.json["job_id"]] = self._number
        else:
            self.refused.append(answer.status)
        return answer.status < 300

    def wait_for_more(self, timeout_s: float, more: int = 1) -> None:
        """Until so many more are acknowledged than now."""
        enough = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= enough, self._daemon.log, timeout_s)

    def check(self) -> None:
        """Every acknowledged job is there, done exactly once, with its own result."""
        asyncio.run(self._check())

    async def _check(self) -> None:
        ids, started = list(self.acknowledged), time.monotonic()
        connection = await asyncpg.connect(self._daemon.addresses["DATABASE_URL"])
        try:
            while True:
                rows = {row["id"]: row for row in await connection.fetch(OUTCOMES, ids)}
                assert set(rows) == set(ids), f"{len(set(ids) - set(rows))} of {len(ids)} acknowledged jobs are gone"
                if all(row["status"] == "done" for row in rows.values()):
                    break
                assert not is_late(started, DONE_S), {row["status"] for row in rows.values()}
                await asyncio.sleep(0.1)
        finally:
            await connection.close()
        wrong = [
            (job, rows[job]["times"], rows[job]["result"])
            for job, number in self.acknowledged.items()
            if rows[job]["times"] != 1 or rows[job]["result"].replace(" ", "") != f'{{"twice":{number * 2}}}'
        ]
        assert wrong == []

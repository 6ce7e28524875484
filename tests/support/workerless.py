"""A jobd whose jobs nobody takes but the HTTP workers that a test plays, and what such a worker says."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal

from jobd.job.retry import RetryPolicy
from jobd.lifecycle.reap import reap
from jobd.store.postgres import Database
from tests.support.daemon import Jobd
from tests.support.http import Answer, Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.from_thread import BlockingPortal

CONFIG = """
[retry]
base_s = 0
cap_s = 0
[queues.default]
slots = 0
[queues.gpu]
slots = 0
[queues.slow]
slots = 0
"""

#: Everything about one job that a refused report must leave as it was.
_STATE = """
SELECT
    (SELECT jobs::text FROM jobs WHERE id = $1),
    (SELECT leases::text FROM leases WHERE resource_id = $1),
    (SELECT array_agg(attempts::text ORDER BY number) FROM attempts WHERE job_id = $1),
    (SELECT dead_letters::text FROM dead_letters WHERE job_id = $1)
"""

#: What a worker must keep of a claim to report on it.
KEPT = ("job_id", "attempt_id", "lease_token", "stream", "message_id")


class WorkerlessDaemon:
    def __init__(self, daemon: Jobd, portal: BlockingPortal, database: Database) -> None:
        self.daemon = daemon
        self.api = Api(daemon.address)
        self._portal = portal
        self._database = database

    # -- what clients and workers send -------------------------------------------------------------------------

    def submit(self, **fields: Any) -> str:
        answer = self.api("POST", "/v1/jobs", {"task": "chat", "payload": {"n": 1}, **fields})
        assert answer.status == 202, answer
        job_id: str = answer.json["job_id"]
        return job_id

    def read(self, job_id: str) -> Any:
        return self.api("GET", f"/v1/jobs/{job_id}").json

    def wait_for_status(self, job_id: str, *statuses: str, why: Callable[[], str] = str) -> Any:
        """The job once it has one of them."""
        wait_until(lambda: self.read(job_id)["status"] in statuses, lambda: f"{self.read(job_id)}\n{why()}")
        return self.read(job_id)

    def post(self, verb: str, body: object) -> Answer:
        return self.api("POST", f"/internal/worker/{verb}", body)

    def claim(self, *streams: str, max_wait_ms: int = 10_000, worker_id: str = "w-1") -> Any:
        body = {"worker_id": worker_id, "streams": streams or ["jobs:stream"], "max_wait_ms": max_wait_ms}
        answer = self.post("claim", body)
        assert answer.status == 200, answer
        return answer.json

    def running(self, **fields: Any) -> dict[str, Any]:
        """What proves a hold on a job that was just claimed."""
        job_id = self.submit(**fields)
        queue = fields.get("queue", "default")
        claimed = self.claim("jobs:stream" if queue == "default" else f"jobs:stream:{queue}")
        assert claimed["job_id"] == job_id, claimed
        return {"worker_id": "w-1", **{name: claimed[name] for name in KEPT}}

    def beat(self, held: dict[str, Any]) -> Any:
        return self.post("heartbeat", {name: held[name] for name in ("worker_id", "job_id", "lease_token")}).json

    def complete(self, held: dict[str, Any], result: object = None) -> Any:
        return self.post("complete", {**held, "result": result}).json

    def fail(self, held: dict[str, Any], **error: object) -> Any:
        return self.post("fail", {**held, "error": {"code": "boom", **error}}).json

    # -- what the database says --------------------------------------------------------------------------------

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._portal.call(self._database.pool.fetch, query, *arguments)]

    def state_of(self, job_id: str) -> tuple[Any, ...]:
        return self.rows(_STATE, job_id)[0]

    def outcomes_of(self, job_id: str) -> list[tuple[int, str]]:
        return [
            (number, outcome)
            for number, outcome in self.rows(
                "SELECT number, outcome FROM attempts WHERE job_id = $1 ORDER BY number", job_id
            )
        ]

    def expire(self, held: dict[str, Any]) -> None:
        """The lease of this job has just ended."""
        self.rows(
            "UPDATE leases SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE resource_id = $1",
            held["job_id"],
        )

    def reap(self) -> None:
        policy = RetryPolicy(base_s=0.0, cap_s=0.0)
        self._portal.call(lambda: reap(self._database.pool, policy=policy, most=100))

    @contextlib.contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Nobody writes to the table until the end."""
        connection: Any = self._portal.call(self._database.pool.acquire)
        transaction = connection.transaction()
        self._portal.call(transaction.start)
        self._portal.call(connection.execute, f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
        try:
            yield
        finally:
            self._portal.call(transaction.rollback)
            self._portal.call(self._database.pool.release, connection)

    def until_someone_waits_for_a_lock(self) -> None:
        wait_until(lambda: self.rows("SELECT FROM pg_locks WHERE NOT granted"), "nobody waits for the lock", 10.0)


@contextlib.contextmanager
def workerless_daemon(config: str = CONFIG, **variables: str) -> Iterator[WorkerlessDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(config)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"), **variables).start()
    try:
        daemon.until_ready()
        with start_blocking_portal() as portal:
            database = Database(daemon.addresses["DATABASE_URL"], 3)
            with portal.wrap_async_context_manager(database.opened()):
                yield WorkerlessDaemon(daemon, portal, database)
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


class InBackground:
    """A call that is under way while the test goes on."""

    def __init__(self, call: Any, *arguments: Any, **named: Any) -> None:
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(call(*arguments, **named)), daemon=True)
        self._thread.start()

    def answer(self, timeout: float = 15.0) -> Any:
        self._thread.join(timeout)
        assert self._answers, "no answer came"
        return self._answers[0]

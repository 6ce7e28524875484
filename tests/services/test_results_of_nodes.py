"""Large results of two nodes on one Postgres: each has its own, and says of the others' where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import servers
from tests.support.http import Api
from tests.support.node import new_database
from tests.support.workerless import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

LARGE = {"text": "x" * 100_000}


async def test_result_on_another_node_is_not_gone_and_its_node_is_named(
    shared_postgres: str, folder: Path, jobd: Callable[..., Jobd]
) -> None:
    (folder / "jobd.toml").write_text("[queues.default]\nslots = 0\n")
    with servers.valkey(folder) as redis_url:
        config = ("--config", str(folder / "jobd.toml"))
        variables = {"JOBD_POSTGRES_URL": await new_database(shared_postgres), "JOBD_REDIS_URL": redis_url}
        daemons = [jobd(folder / name, *config, **variables).start().until_ready() for name in ("first", "second")]
        first, second = (Api(daemon.address) for daemon in daemons)
        job_id = first("POST", "/v1/jobs", {"task": "chat", "payload": {}}).json["job_id"]
        claim = {"worker_id": "w", "streams": ["jobs:stream"], "max_wait_ms": 10_000}
        held = first("POST", "/internal/worker/claim", claim).json
        report = {"worker_id": "w", **{name: held[name] for name in KEPT}, "result": LARGE}
        assert first("POST", "/internal/worker/complete", report).json["ok"]

        here, there = (api("GET", f"/v1/jobs/{job_id}/result") for api in (first, second))
        (file,) = (folder / "first").glob("results/??/*.json")
        file.unlink()
        lost = first("GET", f"/v1/jobs/{job_id}/result")

    assert here.json == LARGE
    assert (there.status, there.code, there.headers["retry-after"]) == (503, "result_elsewhere", "1")
    assert there.json["node"] in file.name
    assert there.json["node"] in there.json["detail"]
    assert (lost.status, lost.code) == (410, "result_lost")

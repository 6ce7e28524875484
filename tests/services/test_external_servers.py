"""`[postgres] url` and `[redis] url`: a fit server is used, an unfit one is refused with setting and remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
import redis.asyncio

from jobd.errors import ServerDown, ServerRefused
from jobd.store import faults
from jobd.store import postgres as store
from jobd.stream import connection as stream
from tests.support import servers
from tests.support.daemon import run_jobd
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd


async def check_postgres(url: str, pool_size: int = 8) -> None:
    connection = await asyncpg.connect(url)
    try:
        await store.check_server(connection, url, pool_size)
    finally:
        await connection.close()


async def check_redis(url: str) -> None:
    async with redis.asyncio.Redis.from_url(url) as client:
        with stream.translated(url):
            await stream.check_server(client, url)


def test_serves_on_servers_that_it_did_not_start(jobd: Callable[..., Jobd], folder: Path) -> None:
    with servers.postgres(folder) as postgres_url, servers.valkey(folder) as redis_url:
        daemon = jobd(None, JOBD_POSTGRES_URL=postgres_url, JOBD_REDIS_URL=redis_url).start().until_ready()

        status, body = daemon.get("/readyz")

        assert status == 200
        assert {"postgres", "valkey"}.isdisjoint(body["services"])
        assert {"store", "stream", "relay", "gateway"} <= set(body["services"])
        assert daemon.addresses["DATABASE_URL"] == postgres_url
        assert not (daemon.data_dir / "postgres").exists()
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fsync=off", "set fsync = on"),
        ("full_page_writes=off", "set full_page_writes = on"),
        ("synchronous_commit=off", "SET synchronous_commit = on"),
        ("max_connections=12", "postgres.pool_size = 8"),
    ],
)
def test_serve_refuses_unsafe_postgres(folder: Path, setting: str, expected: str) -> None:
    with servers.postgres(folder, setting) as url:
        done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0", JOBD_POSTGRES_URL=url)

    assert done.returncode == 69
    last = done.stderr.splitlines()[-1]
    assert setting.split("=")[0] in last
    assert expected in last


async def test_standby_is_named_and_waited_for(folder: Path) -> None:
    with servers.postgres(folder, standby=True) as url:
        with pytest.raises(ServerDown, match=r"standby.*point it at the primary"):
            await check_postgres(url)


async def test_role_that_may_not_create_is_refused(shared_postgres: str, folder: Path) -> None:
    owner = await asyncpg.connect(shared_postgres.replace("jobd@/jobd", "postgres@/postgres"))
    await owner.execute("CREATE DATABASE closed")
    await owner.close()

    with pytest.raises(ServerRefused, match='GRANT CREATE ON DATABASE closed TO "jobd"'):
        await check_postgres(shared_postgres.replace("@/jobd", "@/closed"))


async def test_old_postgres_is_refused(shared_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MIN_VERSION", 99)

    with pytest.raises(ServerRefused, match="Postgres 18 is too old; 99 or newer"):
        await check_postgres(shared_postgres)


async def test_database_with_another_encoding_is_refused(shared_postgres: str) -> None:
    owner = await asyncpg.connect(shared_postgres.replace("jobd@/jobd", "postgres@/postgres"))
    await owner.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'")
    await owner.close()

    with pytest.raises(ServerRefused, match="encoding LATIN1"):
        await check_postgres(shared_postgres.replace("@/jobd", "@/latin"))


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("postgresql://jobd@127.0.0.1:1/jobd", ServerDown, "does not answer"),
        ("postgresql://u:canary@127.0.0.1:1/jobd", ServerDown, r"u:\*\*\*@"),
        ("postgresql://jobd@/nothing", ServerRefused, "check user, password and database"),
        ("postgresql://nobody@/jobd", ServerRefused, "check user, password and database"),
    ],
)
async def test_postgres_that_cannot_be_reached(
    shared_postgres: str, url: str, error: type[Exception], expected: str
) -> None:
    if "@/" in url:
        url += "?" + shared_postgres.partition("?")[2]

    database = store.Database(url, 4)

    with pytest.raises(error, match=expected) as caught:
        async with database.opened():
            with faults.translated(url, strict=True):
                await database.pool.execute("SELECT 1")

    assert "canary" not in str(caught.value)


async def test_redis_cluster_is_refused(folder: Path) -> None:
    with servers.valkey(folder, "cluster-enabled yes") as url:
        with pytest.raises(ServerRefused, match=r"Redis Cluster.*single server"):
            await check_redis(url)


async def test_evicting_redis_is_refused(folder: Path) -> None:
    with servers.valkey(folder, "maxmemory 50mb", "maxmemory-policy allkeys-lru") as url:
        with pytest.raises(ServerRefused, match="CONFIG SET maxmemory-policy noeviction"):
            await check_redis(url)


async def test_redis_user_without_rights_is_refused(folder: Path) -> None:
    with servers.valkey(folder, "user default on nopass ~jobs:* &* +info +ping") as url:
        with pytest.raises(ServerRefused, match="grant its user"):
            await check_redis(url)


async def test_redis_with_another_password_is_refused(folder: Path) -> None:
    with servers.valkey(folder, "requirepass right") as url:
        with pytest.raises(ServerRefused, match="check user and password"):
            await check_redis(url.replace("unix://", "unix://:canary@"))


async def test_old_redis_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MIN_VERSION", {"valkey": (99, 0)})

    with servers.valkey(folder) as url:
        with pytest.raises(ServerRefused, match=r"valkey 9.1 is too old; 99.0 or newer"):
            await check_redis(url)


async def test_replica_is_refused(folder: Path) -> None:
    with servers.valkey(folder, "replicaof 127.0.0.1 1") as url:
        with pytest.raises(ServerRefused, match="replica; point it at the primary"):
            await check_redis(url)


def test_absent_redis_makes_a_first_start_degraded_until_it_comes(jobd: Callable[..., Jobd], folder: Path) -> None:
    daemon = jobd(None, JOBD_REDIS_URL=f"unix://{folder}/valkey.sock?db=0").start().until_ready()

    _, body = daemon.readiness()
    with servers.valkey(folder):
        wait_until(lambda: daemon.readiness()[1]["status"] == "ready", daemon.log, 30)

    assert body["status"] == "degraded"
    assert body["services"]["stream"] in ("waiting", "starting")  # between two tries, or at one
    assert "does not answer" in daemon.log()


def test_absent_postgres_is_waited_for_and_told(jobd: Callable[..., Jobd], folder: Path) -> None:
    daemon = jobd(None, JOBD_POSTGRES_URL=f"postgresql://jobd@/jobd?host={folder}").start()
    wait_until(lambda: "does not answer" in daemon.log(), daemon.log, 30)

    status, body = daemon.readiness()

    assert (status, body["status"], body["services"]["store"]) == (503, "starting", "waiting")

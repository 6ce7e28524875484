"""The client of Redis (Valkey or Redis), embedded or not, and what it must be for jobd to use it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import redis.asyncio
from redis import exceptions

from jobd.errors import ServerDown, ServerRefused
from jobd.host.masking import masked_url
from jobd.stream.keys import PROBE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

#: Oldest versions whose streams and commands the relay can use.
MIN_VERSION = {"redis": (7, 0), "valkey": (7, 2)}
#: Seconds that a command of Redis may take.
TIMEOUT_S = 10.0
#: Seconds that closing a connection may take.
CLOSE_S = 1.0


class Transport:
    """A client that comes and goes with its server; using it while the server is away raises `ServerDown`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: redis.asyncio.Redis | None = None

    @property
    def client(self) -> redis.asyncio.Redis:
        if self._client is None:
            raise ServerDown("Redis is not connected; try again in a moment")
        return self._client

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with translated(self.url):
            client = redis.asyncio.Redis.from_url(
                self.url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, client_name="jobd"
            )
        try:
            with translated(self.url):
                await check_server(client, self.url)
            self._client = client
            yield
        finally:
            self._client = None
            await close(client)


async def close(client: redis.asyncio.Redis) -> None:
    """Close it with all its connections, even in a task that is being cancelled: else they stay open."""
    with anyio.move_on_after(CLOSE_S, shield=True), contextlib.suppress(OSError, exceptions.RedisError):
        await client.aclose()
        await client.connection_pool.disconnect()


@contextlib.contextmanager
def translated(url: str, *, strict: bool = True) -> Iterator[None]:
    """Say which server it was: away (worth waiting for) or unwilling (not worth it, or not `strict`: it may change)."""
    where = f"redis.url {masked_url(url)}"
    try:
        yield
    except (OSError, TimeoutError, ValueError, exceptions.RedisError) as raised:
        # A refusal during the handshake comes wrapped in a ConnectionError.
        error = raised.__cause__ if isinstance(raised.__cause__, exceptions.RedisError) else raised
        if not strict:
            raise ServerDown(f"{where} does not serve ({str(error) or type(error).__name__})") from raised
        if isinstance(error, exceptions.NoPermissionError):
            raise ServerRefused(f"{where}: {error}; grant its user ~* &* and all stream commands") from raised
        if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
            raise ServerRefused(f"{where}: {error}; check user and password") from raised
        if isinstance(error, exceptions.ReadOnlyError):
            raise ServerRefused(f"{where}: this is a read-only replica; point it at the primary") from raised
        if isinstance(error, (ValueError, exceptions.DataError)):
            raise ServerRefused(f"{where}: {error}") from raised
        raise ServerDown(f"{where} does not answer ({str(error) or type(error).__name__})") from raised


async def check_server(client: redis.asyncio.Redis, url: str) -> None:
    """Refuse a server that is too old, that forgets messages when full, or that may not be written to."""
    where = f"redis.url {masked_url(url)}"
    info: dict[str, Any] = await client.info()
    kind = "valkey" if "valkey_version" in info else "redis"
    version = tuple(int(part) for part in str(info[f"{kind}_version"]).split(".")[:2])
    if version < MIN_VERSION[kind]:
        present, needed = (".".join(map(str, numbers)) for numbers in (version, MIN_VERSION[kind]))
        raise ServerRefused(f"{where}: {kind} {present} is too old; {needed} or newer is needed")
    if info.get("role") != "master":
        raise ServerRefused(f"{where}: this is a replica; point it at the primary")
    if info.get("cluster_enabled"):
        raise ServerRefused(
            f"{where}: this is a node of a Redis Cluster, whose keys lie on several servers; point it at a single "
            "server, or at one with replicas"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ServerRefused(
            f"{where}: maxmemory-policy is {policy}, which drops messages when memory is short; "
            "CONFIG SET maxmemory-policy noeviction"
        )
    await client.set(PROBE, "1", px=1000)

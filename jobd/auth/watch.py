"""Polls the tables of tokens and sessions: a token that was revoked or a session that was closed on any node is refused
by all nodes within 5 s.

The first time, it refuses to let jobd listen where others can reach it while nobody needs a token; before that the
gateway answers /livez and /readyz only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from jobd.auth.table import read_tokens
from jobd.errors import AddressRefused, ServerDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.auth.doorkeeper import Doorkeeper
    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds between two polls of the token table: with `ANSWER_S`, a revoked token is refused within the promised 5 s.
RELOAD_S = 1.5
#: Seconds that Postgres has to answer such a poll.
ANSWER_S = 3.0


class TokenWatch:
    def __init__(
        self, database: Database, doorkeeper: Doorkeeper, config: Callable[[], Config], *, is_loopback: bool
    ) -> None:
        self._database = database
        self._doorkeeper = doorkeeper
        self._config = config
        self._is_loopback = is_loopback

    async def run(self, handle: Handle) -> None:
        is_first = not self._doorkeeper.knows_table
        await self.run_once()
        if is_first and not self._is_loopback:
            self._check()
        handle.ready()
        while not handle.stop.is_set():
            with anyio.move_on_after(RELOAD_S):
                await handle.stop.wait()
                return
            await self.run_once()
            handle.beat()

    async def run_once(self) -> None:
        with anyio.move_on_after(ANSWER_S) as asking:
            self._doorkeeper.learn(await read_tokens(self._database))
            await self._doorkeeper.sessions.refresh()
        if asking.cancelled_caught:
            raise ServerDown(f"Postgres gave no answer within {ANSWER_S:g} s")

    def _check(self) -> None:
        """Others can reach the address: refuse, or say what they could do."""
        server = self._config().server
        if not self._doorkeeper.has_tokens and not server.insecure:
            raise AddressRefused(
                f"server.host = {server.host} can be reached by others and there is no token: create one first "
                "(jobd token create --name NAME --scope admin), or listen on 127.0.0.1, or set server.insecure = true"
            )
        if not self._doorkeeper.has_tokens:
            log.warning("server.insecure: everyone who can reach %s may do everything", server.host)
        elif not server.tls_cert:
            log.warning(
                "tokens travel to %s unencrypted; set server.tls_cert and tls_key, or put a TLS proxy before it",
                server.host,
            )

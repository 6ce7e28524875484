"""Holds statements of jobd in the middle: they have written to a table, and do not commit until the gate opens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
#: The advisory lock of each table that can be held.
LOCKS = {"jobs": 7101, "attempts": 7102}
#: After each statement that inserts into the table; shared, so that statements do not wait for each other. Who comes
#: when the gate lets pass does not wait, though others still do.
MAKE_GATE = """
CREATE TABLE jobd.test_gate (lets_pass boolean);
INSERT INTO jobd.test_gate VALUES (true);
CREATE FUNCTION jobd.wait_at_test_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (SELECT lets_pass FROM jobd.test_gate) THEN PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint); END IF;
    RETURN NULL;
END $$;
"""
LET_PASS = "UPDATE jobd.test_gate SET lets_pass = $1"
ADD_TRIGGER = """
CREATE TRIGGER test_gate AFTER INSERT ON jobd.{table}
FOR EACH STATEMENT EXECUTE FUNCTION jobd.wait_at_test_gate({lock})
"""
COUNT_WAITING = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND NOT granted AND objid = ANY ($1::bigint[])
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class StatementGate:
    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def __enter__(self) -> StatementGate:
        self._connection = self._run(asyncpg.connect(self._url))
        self._run(self._connection.execute(MAKE_GATE))
        for table, lock in LOCKS.items():
            self._run(self._connection.execute(ADD_TRIGGER.format(table=table, lock=lock)))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._connection.close())
        self._loop.close()

    def close(self, table: str) -> None:
        """Statements that insert into the table wait from now on."""
        self._run(self._connection.execute("SELECT pg_advisory_lock($1)", LOCKS[table]))
        self._run(self._connection.execute(LET_PASS, False))

    def let_pass(self) -> None:
        """Those that wait go on waiting; all others pass."""
        self._run(self._connection.execute(LET_PASS, True))

    def open(self) -> None:
        """Nobody waits any more."""
        self.let_pass()
        self._run(self._connection.execute("SELECT pg_advisory_unlock_all()"))

    def wait_for_statement(self) -> None:
        def is_waiting() -> bool:
            return bool(self._run(self._connection.fetchval(COUNT_WAITING, list(LOCKS.values()))))

        wait_until(is_waiting, "no statement came to the gate")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

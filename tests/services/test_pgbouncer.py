"""Behind a PgBouncer in session mode: no parameter has to be ignored, and every session has jobd's settings."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from jobd.config.model import Config
from jobd.host.account import server_account
from jobd.store.postgres import SESSION
from tests.support import servers
from tests.support.node import Node
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs the program pgbouncer (Debian: apt install pgbouncer)")

SETTINGS = """
[databases]
jobd = host={host} dbname=jobd user=jobd
[pgbouncer]
unix_socket_dir = {folder}
listen_addr =
listen_port = 6432
auth_type = any
pool_mode = session
"""


@contextlib.contextmanager
def pgbouncer(folder: Path, postgres_url: str) -> Iterator[str]:
    account = server_account()
    home = folder / "bouncer"
    home.mkdir()
    os.chown(home, account.uid, account.gid)
    (home / "pgbouncer.ini").write_text(SETTINGS.format(host=postgres_url.partition("host=")[2], folder=home))
    drop = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.dropped else {}
    process = subprocess.Popen(
        [str(PROGRAM), str(home / "pgbouncer.ini")],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **drop,
    )  # type: ignore[call-overload]  # **drop
    try:
        wait_until((home / ".s.PGSQL.6432").exists, "no PgBouncer came up", 20)
        yield f"postgresql://jobd@/jobd?host={home}&port=6432"
    finally:
        process.terminate()
        process.wait(20)


async def test_node_works_behind_pgbouncer_with_its_settings(folder: Path) -> None:
    trust = folder / "hba.conf"
    trust.write_text("local all all trust\n")
    with servers.postgres(folder, f"hba_file={trust}") as direct, pgbouncer(folder, direct) as url:
        with servers.valkey(folder) as redis_url:
            async with Node(url, redis_url, Config()).running() as node:
                job = await node.enqueue()
                await node.done(await node.claim(job))

                status = await node.database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", job.id)
                used = {name: await node.database.pool.fetchval("SELECT current_setting($1)", name) for name in SESSION}

    assert status == "done"
    assert (used["search_path"], used["plan_cache_mode"]) == ("jobd", "force_generic_plan")
    assert (used["statement_timeout"], used["idle_in_transaction_session_timeout"]) == ("1min", "10s")

"""pgqueuer's part of compare.py; runs in a virtual environment that has pgqueuer and not jobd.

compare_pgqueuer.py work | submits JOBS | fill JOBS | singles JOBS, with the database in DATABASE_URL
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

import asyncpg
import compare_probe as probe
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

#: Jobs that a worker takes at once; the default is 10.
TAKEN_AT_ONCE = 500
#: Connections of the pool that submits.
CONNECTIONS = 20


async def work() -> None:
    worker = PgQueuer.from_asyncpg_connection(await asyncpg.connect(os.environ["DATABASE_URL"]))

    @worker.entrypoint("noop")
    async def noop(job) -> None:
        await probe.noop(json.loads(job.payload), None)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=TAKEN_AT_ONCE)


async def submit(command: str, jobs: int) -> object:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))

        async def one(number: int) -> None:
            await queries.enqueue("noop", encoded(number))

        async def many(numbers) -> None:
            await queries.enqueue(["noop"] * len(numbers), list(map(encoded, numbers)), [0] * len(numbers))

        if command == "submits":
            async with pool.acquire() as connection:
                await Queries(AsyncpgDriver(connection)).install()
            return await probe.submits(one, one, many, jobs)
        return await (probe.fill(many, jobs) if command == "fill" else probe.start_ms(one, jobs))


def encoded(number: int) -> bytes:
    return json.dumps(probe.payload(number)).encode()


logging.disable(logging.INFO)
uvloop.install()
if sys.argv[1] == "work":
    asyncio.run(work())
else:
    print(json.dumps(asyncio.run(submit(sys.argv[1], int(sys.argv[2])))))

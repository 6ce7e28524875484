"""`jobd doctor`: every check that can be made without changing anything, each with what to do about it."""

from __future__ import annotations

import platform
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import available_timezones

import anyio.to_thread
import msgspec
import redis.asyncio

from jobd.board.heat import HeatSettings, decide_heat
from jobd.board.ledger import MemoryLedger
from jobd.board.sampler import Sampler
from jobd.board.service import MemoryProbe
from jobd.errors import JobdError
from jobd.host.account import server_account
from jobd.host.data_dir import FIRST_START_BYTES, WARM_START_BYTES, DataDir
from jobd.host.masking import masked_url
from jobd.http.listen import OUT_OF_TIME, bind_listener, trusting
from jobd.occurrences.timing import BadTiming, check_zone
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from jobd.servers.program import GivenProgram
from jobd.store import postgres
from jobd.store.clock_eras import EARLIEST
from jobd.store.migrate import pending_migrations
from jobd.stream import connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config, Loaded
    from jobd.servers.program import Program

#: A zone that every database of time zones has.
KNOWN_ZONE = "Europe/Berlin"
VOLATILE = {"tmpfs": "is lost at a reboot", "ramfs": "is lost at a reboot"}
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"}


class Verdict(str, Enum):
    OK = "OK"
    WARN = "WARN"
    BAD = "BAD"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, detail=detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check=check, verdict=Verdict.WARN, detail=detail, remedy=remedy)


def bad(check: str, error: Exception) -> Finding:
    """A refusal says remedy after its last semicolon; see errors.py."""
    detail, _, remedy = str(error).rpartition("; ")
    return Finding(check=check, verdict=Verdict.BAD, detail=detail or str(error), remedy=remedy if detail else "")


async def examine(load: Callable[[], Loaded]) -> list[Finding]:
    findings = [_python(), _clock(), _zones()]
    try:
        loaded = load()
    except JobdError as error:
        return [*findings, bad("configuration", error)]
    config = loaded.config
    findings.append(ok("configuration", str(loaded.path or "no file, all defaults")))
    try:
        data_dir = DataDir(Path(config.data_dir), server_account())
    except JobdError as error:
        return [*findings, bad("account", error)]
    findings += [*_board(config), *_memory(config)]
    findings += [_account(data_dir), _data_dir(data_dir), _space(data_dir), *_file_system(data_dir)]
    if not config.postgres.url:
        program = embedded_postgres.program_of(config)
        findings.append(_program("postgres program", program, lambda: embedded_postgres.major_of(config)))
        findings.append(_cluster(data_dir, config))
    if not config.redis.url:
        transport = embedded_valkey.program_of(config)
        findings.append(_program("valkey program", transport, lambda: embedded_valkey.check_version(transport)))
    running = data_dir.is_running()
    findings.append(ok("running", f"yes, on {data_dir.path}") if running else ok("running", "no"))
    if running:
        findings.append(await anyio.to_thread.run_sync(_ready, data_dir, config))
    else:
        findings.append(_address(config))
    if running or config.postgres.url:
        findings.append(await _postgres(config, config.postgres.url or embedded_postgres.url(data_dir)))
    if running or config.redis.url:
        findings.append(await _redis(config.redis.url or embedded_valkey.url(data_dir)))
    return findings


def _python() -> Finding:
    return ok("python", f"{platform.python_version()} on {platform.machine()}, {sys.executable}")


def _clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < EARLIEST:
        return warn("clock", f"{now} cannot be right", "wait for time synchronisation before starting jobd")
    return ok("clock", now)


def _zones() -> Finding:
    """The database of time zones, which schedules are read by."""
    try:
        check_zone(KNOWN_ZONE)
    except BadTiming:
        remedy = "reinstall package tzdata"
        return Finding(
            check="time zones", verdict=Verdict.BAD, detail=f"{KNOWN_ZONE} is not in the database", remedy=remedy
        )
    return ok("time zones", f"{len(available_timezones())} names")


def _board(config: Config) -> list[Finding]:
    """What the board says of itself, by a sample of its own."""
    if not config.board.enabled:
        return [ok("board", "not measured (board.enabled)")]
    sampler = Sampler(config.board.prefix)
    try:
        sample = sampler.sample()
    finally:
        sampler.close()
    settings = HeatSettings(config.board.soft_c, config.board.hard_c, config.board.hysteresis_c)
    heat = decide_heat({}, sample.zones, settings).heat
    parts = [
        sample.identity.model or "unknown",
        f"L4T {sample.identity.release}" if sample.identity.release else "",
        f"power mode {sample.power_mode}" if sample.power_mode else "",
        f"{heat.zone} {heat.celsius:.1f} C" if heat.zone is not None else "no temperatures",
    ]
    detail = ", ".join(filter(None, parts))
    if sample.throttled_by:
        by = ", ".join(sample.throttled_by)
        return [warn("board", f"{detail}; slowed down: {by}", "check the power supply and the cooling")]
    if heat.level != "none":
        limit = heat.hard_celsius if heat.level == "hard" else heat.soft_celsius
        return [warn("board", f"{detail}, over {limit:g} C", "cool the board; queues with hot = true start fewer jobs")]
    return [ok("board", detail)]


def _memory(config: Config) -> list[Finding]:
    """Whether tasks that need memory can ever start."""
    ledger = MemoryLedger(lambda: config, MemoryProbe(config))
    needs = [name for name, task in config.tasks.items() if task.needs_memory_mb]
    free = ledger.free_bytes()
    if free is None and needs:
        return [
            warn(
                "memory",
                f"cannot be measured, so jobs of {', '.join(needs)} do not start",
                "set board.enabled and board.prefix so that /proc/meminfo can be read, or remove needs_memory_mb",
            )
        ]
    if large := [name for name in needs if ledger.too_large(name)]:
        return [
            warn(
                "memory",
                f"{', '.join(large)} need more than this board has",
                "lower needs_memory_mb or board.memory_floor_mb",
            )
        ]
    return [ok("memory", "unknown" if free is None else f"{free >> 20} MiB free for jobs that need some")]


def _account(data_dir: DataDir) -> Finding:
    account = data_dir.account
    if account.dropped and account.name == "nobody":
        return warn(
            "account",
            "root hands the servers to nobody, which other programs may use too",
            "useradd --system --shell /usr/sbin/nologin jobd",
        )
    return ok("account", f"the servers run as {account.name}")


def _data_dir(data_dir: DataDir) -> Finding:
    try:
        data_dir.check()
    except JobdError as error:
        return bad("data directory", error)
    return ok("data directory", f"{data_dir.path}" if data_dir.is_ours() else f"{data_dir.path}, to be made")


def _space(data_dir: DataDir) -> Finding:
    free = data_dir.free_bytes()
    needed = WARM_START_BYTES if data_dir.cluster.exists() else FIRST_START_BYTES
    detail = f"{free >> 20} MiB free"
    if free < needed:
        return Finding(check="disk", verdict=Verdict.BAD, detail=detail, remedy=f"free {needed >> 20} MiB")
    if free < 1 << 30:
        return warn("disk", detail, "keep 1 GiB free: a full disk stops all writes")
    return ok("disk", detail)


def _file_system(data_dir: DataDir) -> list[Finding]:
    kind = _kind_of_file_system(data_dir.path)
    if kind in VOLATILE:
        return [warn("file system", f"{kind}: {VOLATILE[kind]}", "keep the data directory on a disk")]
    if kind in NETWORK:
        return [warn("file system", f"{kind}: a network disk may lose what was synced", "use a local disk")]
    return [ok("file system", kind)]


def _kind_of_file_system(path: Path) -> str:
    """From the mount table: the longest mount point that is `path` or above it."""
    best, kind = "", "unknown"
    here = str(path.resolve())
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, point, type_name, *_ = line.split()
            if (here == point or here.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, type_name
    return kind


def _program(check: str, program: Program | GivenProgram, is_fit: Callable[[], object]) -> Finding:
    try:
        path = program.installed()
        is_fit()
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except JobdError as error:
        return bad(check, error)
    except (OSError, subprocess.SubprocessError) as error:
        detail = f"{path} does not run: {error}"
        return Finding(check=check, verdict=Verdict.BAD, detail=detail, remedy=program.remedy)
    where = f", {path}" if isinstance(program, GivenProgram) else ""
    return ok(check, answer.stdout.split("sha=")[0].strip() + where)


def _cluster(data_dir: DataDir, config: Config) -> Finding:
    if not data_dir.cluster.exists():
        return ok("cluster", "to be made at the first start")
    try:
        major = embedded_postgres.major_of(config)
        embedded_postgres.check_major(data_dir.cluster, major)
    except JobdError as error:
        return bad("cluster", error)
    return ok("cluster", f"Postgres {major}")


def _ready(data_dir: DataDir, config: Config) -> Finding:
    try:
        url = data_dir.read_addresses().JOBD_URL
        tls = trusting(config.server.tls_cert) if url.startswith("https:") else None
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=tls) as answer:
            return ok("gateway", f"{url} answers {answer.status}; web page: {url}/, metrics: {url}/metrics")
    except JobdError as error:
        return bad("gateway", error)
    except urllib.error.HTTPError as error:
        detail = f"{url} answers {error.code}: {error.read(2000).decode('utf-8', 'replace')}"
        return Finding(check="gateway", verdict=Verdict.BAD, detail=detail, remedy="see the log of jobd serve")
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else None
        if isinstance(reason, ssl.SSLCertVerificationError) and reason.verify_code in OUT_OF_TIME:
            return warn(
                "gateway",
                f"{url} listens with a certificate that clients refuse: {reason.verify_message}",
                f"renew server.tls_cert = {config.server.tls_cert}, or set the clock of this machine",
            )
        remedy = "see the log of jobd serve"
        return Finding(check="gateway", verdict=Verdict.BAD, detail=f"{url}: {error}", remedy=remedy)


def _address(config: Config) -> Finding:
    try:
        bind_listener(config.server.host, config.server.port).close()
    except JobdError as error:
        return bad("address", error)
    return ok("address", f"{config.server.host} port {config.server.port} is free")


async def _postgres(config: Config, url: str) -> Finding:
    try:
        session = await postgres.connect(url)
        try:
            await postgres.check_server(session, url, config.postgres.pool_size)
            pending = await pending_migrations(session)
        finally:
            await session.close()
    except JobdError as error:
        return bad("postgres", error)
    if pending:
        return warn("postgres", f"{len(pending)} migrations are pending", "jobd migrate")
    return ok("postgres", masked_url(url))


async def _redis(url: str) -> Finding:
    try:
        with connection.translated(url):
            client = redis.asyncio.Redis.from_url(url, socket_timeout=connection.TIMEOUT_S)
            try:
                await connection.check_server(client, url)
            finally:
                await connection.close(client)
    except JobdError as error:
        return bad("redis", error)
    return ok("redis", masked_url(url))

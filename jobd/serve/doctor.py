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

import anyio.to_thread
import msgspec
import redis.asyncio

from jobd.errors import JobdError
from jobd.host.account import server_account
from jobd.host.data_dir import FIRST_START_BYTES, WARM_START_BYTES, DataDir
from jobd.host.masking import masked_url
from jobd.http.listen import OUT_OF_TIME, bind_listener, trusting
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from jobd.store import postgres
from jobd.store.migrate import pending_migrations
from jobd.stream import connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config, Loaded
    from jobd.servers.program import Program

#: A board without a battery clock wakes in 1970; nothing with a lease should run then.
EARLIEST = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))
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
    findings = [_python(), _clock()]
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
    findings += [_account(data_dir), _data_dir(data_dir), _space(data_dir), *_file_system(data_dir)]
    if not config.postgres.url:
        findings += [_program("postgres program", embedded_postgres.PROGRAM), _cluster(data_dir)]
    if not config.redis.url:
        findings.append(_program("valkey program", embedded_valkey.PROGRAM))
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
            _, point, found, *_ = line.split()
            if (here == point or here.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, found
    return kind


def _program(check: str, program: Program) -> Finding:
    try:
        path = program.installed()
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except JobdError as error:
        return bad(check, error)
    except (OSError, subprocess.SubprocessError) as error:
        remedy = f"reinstall package {program.distribution}"
        return Finding(check=check, verdict=Verdict.BAD, detail=f"{path} does not run: {error}", remedy=remedy)
    return ok(check, answer.stdout.split("sha=")[0].strip())


def _cluster(data_dir: DataDir) -> Finding:
    if not data_dir.cluster.exists():
        return ok("cluster", "to be made at the first start")
    try:
        embedded_postgres.check_major(data_dir.cluster)
    except JobdError as error:
        return bad("cluster", error)
    return ok("cluster", f"Postgres {embedded_postgres.MAJOR}")


def _ready(data_dir: DataDir, config: Config) -> Finding:
    try:
        url = data_dir.read_addresses().JOBD_URL
        tls = trusting(config.server.tls_cert) if url.startswith("https:") else None
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=tls) as answer:
            return ok("gateway", f"{url} answers {answer.status}")
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

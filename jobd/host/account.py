"""Which user the embedded servers run as, and whether that user can get at a path.

Postgres refuses to run as root, so a jobd started as root hands both servers to an account without rights, `jobd`: the
package makes it, else the first start does. It is not `nobody`, which other programs use too: a process of the servers'
account can read the database. A data directory from a jobd that did use `nobody` is handed over, or goes on as it is
with a warning where no account can be made. A jobd that is not root runs the servers as its own user.
"""

from __future__ import annotations

import logging
import os
import pwd
import shlex
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import msgspec

from jobd.errors import StartRefused

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

ACCOUNT = "jobd"
#: The account that earlier versions of jobd used, before they made one of their own.
SHARED_ACCOUNT = "nobody"
#: Commands that make the account; the first whose program is installed is used.
MAKERS = (
    (
        *("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"),
        *("--shell", "/usr/sbin/nologin", "--comment", "jobd job daemon", ACCOUNT),
    ),
    ("systemd-sysusers", "--inline", f'u {ACCOUNT} - "jobd job daemon" - /usr/sbin/nologin'),
)
ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
#: Seconds that the program which adds the account may take.
MAKER_S = 30.0


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int
    #: jobd is root, and the servers run as this other account.
    dropped: bool


def server_account() -> Account:
    """The servers' account as far as there is one; makes none."""
    uid = os.geteuid()
    if uid != 0:
        return Account(name=user_name(uid), uid=uid, gid=os.getegid(), dropped=False)
    account = _dropped(ACCOUNT) or _dropped(SHARED_ACCOUNT)
    if account is None:
        raise StartRefused(f"root may not run Postgres and there is no user {ACCOUNT}; add it: {remedy()}")
    return account


def account_to_start(cluster: Path) -> Account:
    """The account for servers that are about to be started on `cluster`; root makes it if it is missing."""
    if os.geteuid() != 0:
        return server_account()
    account = _dropped(ACCOUNT) or _make_account()
    if account is not None:
        return account
    shared = _dropped(SHARED_ACCOUNT)
    if shared is not None and cluster.exists() and cluster.stat().st_uid == shared.uid:
        log.warning(
            "the embedded servers run as %s, so other programs of that user can read %s; add a user of their own"
            " and restart: %s",
            *(shared.name, cluster, remedy()),
        )
        return shared
    raise StartRefused(f"root may not run Postgres and there is no user {ACCOUNT} for it; add it: {remedy()}")


def remedy() -> str:
    return shlex.join(MAKERS[0])


def _make_account() -> Account | None:
    """None if it cannot be made here. Another first start may make it at the same moment; either is fine."""
    for name, *arguments in MAKERS:
        program = shutil.which(name, path=ADMIN_PATH)
        if program is None:
            continue
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=MAKER_S,
            env={"PATH": ADMIN_PATH, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
        account = _dropped(ACCOUNT)
        if account is not None:
            log.info("made system user %s, which the embedded servers run as", ACCOUNT)
            return account
        log.warning("%s cannot make user %s: %s", name, ACCOUNT, (done.stderr or done.stdout).strip()[-200:])
    return None


def _dropped(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, dropped=True)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StartRefused(
            f"user id {uid} has no name in /etc/passwd, which Postgres needs; run jobd as a user that is listed there"
        ) from None


def can_reach(account: Account, path: Path) -> bool:
    """Whether the account may enter every folder on the way to `path`: those that are there, `path` itself aside."""
    if not account.dropped:
        return True
    return all(_may_enter(account, folder.stat()) for folder in path.resolve().parents if folder.exists())


def _may_enter(account: Account, info: os.stat_result) -> bool:
    if info.st_uid == account.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == account.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)

"""Which user the embedded servers run as, and whether that user can get at a path.

Postgres refuses to run as root, so a jobd started as root hands both servers to an account without rights: `jobd`
if the machine has one (the package makes it), else `nobody`. Any other user's jobd runs them as itself.
"""

from __future__ import annotations

import os
import pwd
import stat
from typing import TYPE_CHECKING

import msgspec

from jobd.errors import StartRefused

if TYPE_CHECKING:
    from pathlib import Path

PREFERRED = ("jobd", "nobody")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int
    #: The servers run as someone else than jobd itself, which is root then.
    dropped: bool


def server_account() -> Account:
    uid = os.geteuid()
    if uid == 0:
        for name in PREFERRED:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, dropped=True)
        raise StartRefused(
            "no account for the embedded servers: root may not run Postgres and neither user jobd nor nobody exists; "
            "add one: useradd --system --shell /usr/sbin/nologin jobd"
        )
    return Account(name=user_name(uid), uid=uid, gid=os.getegid(), dropped=False)


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

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from jobd.account import PREFERRED, Account, can_reach, server_account, user_name
from jobd.errors import StartRefused

if TYPE_CHECKING:
    from pathlib import Path

NOBODY_HAS_IT = 987_654_321
STRANGER = Account(name="stranger", uid=NOBODY_HAS_IT, gid=NOBODY_HAS_IT, dropped=True)
IN_MY_GROUP = Account(name="friend", uid=NOBODY_HAS_IT, gid=os.getegid(), dropped=True)
OWNER = Account(name="owner", uid=os.geteuid(), gid=NOBODY_HAS_IT, dropped=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root hands the servers to another account")
def test_servers_of_a_normal_user_run_as_that_user() -> None:
    assert server_account() == Account(
        name=pwd.getpwuid(os.geteuid()).pw_name, uid=os.geteuid(), gid=os.getegid(), dropped=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="any other user runs the servers as itself")
def test_servers_of_root_run_as_an_account_without_rights() -> None:
    account = server_account()

    assert account.name in PREFERRED
    assert account.uid != 0
    assert account.gid != 0
    assert account.dropped


def test_user_without_a_name_is_refused() -> None:
    with pytest.raises(StartRefused, match=f"user id {NOBODY_HAS_IT} has no name in /etc/passwd"):
        user_name(NOBODY_HAS_IT)


@pytest.mark.parametrize(
    ("account", "mode", "reachable"),
    [
        (STRANGER, 0o711, True),
        (STRANGER, 0o770, False),
        (STRANGER, 0o744, False),
        (IN_MY_GROUP, 0o710, True),
        (IN_MY_GROUP, 0o701, False),
        (OWNER, 0o700, True),
    ],
)
def test_folder_is_reachable_as_its_mode_says(folder: Path, account: Account, mode: int, reachable: bool) -> None:
    (folder / "way").mkdir()
    os.chown(folder / "way", -1, os.getegid())
    (folder / "way").chmod(mode)

    assert can_reach(account, folder / "way" / "file") is reachable


def test_every_folder_on_the_way_counts_but_not_the_end_of_it(folder: Path) -> None:
    (folder / "way" / "further").mkdir(parents=True)
    (folder / "way" / "further").chmod(0o755)
    (folder / "way").chmod(0o700)

    assert not can_reach(STRANGER, folder / "way" / "further" / "file")
    assert can_reach(STRANGER, folder / "way")


def test_link_counts_as_the_place_it_leads_to(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "closed")

    assert not can_reach(STRANGER, folder / "link" / "file")


def test_what_is_yet_to_be_made_is_no_obstacle(folder: Path) -> None:
    assert can_reach(STRANGER, folder / "not" / "there" / "yet")


def test_account_that_is_jobds_own_is_never_asked_about(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    me = Account(name="me", uid=NOBODY_HAS_IT, gid=NOBODY_HAS_IT, dropped=False)

    assert can_reach(me, folder / "closed" / "file")

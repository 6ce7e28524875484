from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jobd.errors import StartRefused
from jobd.host.account import ACCOUNT, SHARED_ACCOUNT, Account, can_reach, server_account, user_name

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

    assert account.name in (ACCOUNT, SHARED_ACCOUNT)
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


IN_AN_ETC_OF_ITS_OWN = """
cp -a /etc "$1/etc" && grep -v '^jobd:' /etc/passwd > "$1/etc/passwd"
for file in group shadow gshadow; do sed -i '/^jobd:/d' "$1/etc/$file"; done
mount --bind $2 "$1/etc" /etc
[ -z "$2" ] || mount -o remount,bind,ro /etc
exec "$3" -c "$4" "$1"
"""
ASK = """
import logging, pathlib, sys
from jobd.host.account import account_to_start
logging.basicConfig()
try:
    account = account_to_start(pathlib.Path(sys.argv[1], "cluster"))
    print(account.name, account.uid != 0, account.dropped)
except Exception as error:
    print(type(error).__name__, error)
"""


def asked_with_another_etc(folder: Path, *, read_only: bool) -> str:
    """What account servers would be started with where there is no user jobd so far; and the log."""
    script = [IN_AN_ETC_OF_ITS_OWN, "sh", str(folder), "-r" if read_only else "", sys.executable, ASK]
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", *script], capture_output=True, text=True, timeout=60)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"this root may not mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root makes users, and only it can mount"
)


@needs_root
def test_first_start_of_root_makes_an_account_of_its_own(folder: Path) -> None:
    if shutil.which("useradd", path="/usr/sbin:/sbin") is None:
        pytest.skip("there is no useradd here")

    assert asked_with_another_etc(folder, read_only=False).startswith("jobd True True\n")
    assert "jobd:" in (folder / "etc" / "passwd").read_text()


@needs_root
def test_account_that_others_share_is_refused_with_the_remedy(folder: Path) -> None:
    text = asked_with_another_etc(folder, read_only=True)

    assert text.startswith("StartRefused root may not run Postgres and there is no user jobd for it; add it: useradd ")


@needs_root
def test_cluster_of_the_account_that_others_share_goes_on_with_a_warning(folder: Path) -> None:
    (folder / "cluster").mkdir()
    os.chown(folder / "cluster", pwd.getpwnam("nobody").pw_uid, -1)

    answer = asked_with_another_etc(folder, read_only=True)

    assert answer.startswith("nobody True True\n")
    assert "other programs of that user can read" in answer

"""No process of jobd sends anything to an address that the configuration does not name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.daemon import TOP, environment

#: An address that nobody has (RFC 5737).
ELSEWHERE = "203.0.113.7"

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or not shutil.which("ip"),
        reason="needs root, /dev/net/tun and the program ip, to make a network of its own",
    ),
    pytest.mark.timeout(240),
]


def addresses(*arguments: str) -> list[str]:
    """Where packets were sent to while a jobd lived through a day."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.daemon.outside", "offline_day", *arguments],
        cwd=TOP,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.split()


def test_jobd_calls_nobody() -> None:
    assert addresses() == []


def test_a_handler_that_calls_somebody_is_seen() -> None:
    assert addresses(ELSEWHERE) == [ELSEWHERE]

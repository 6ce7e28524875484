"""What the systemd unit says must fit what jobd does."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobd import errors
from jobd.errors import JobdError, StartRefused
from jobd.leases.watchdog import BLOCK_S
from jobd.supervise.service import Spec
from jobd.supervise.supervisor import WATCH_S

UNIT = Path(__file__).parents[2] / "packaging/root/usr/lib/systemd/system/jobd.service"
SETTINGS = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] not in "#[")
#: Wrong usage of the command line; what a person has to mend, and then starts jobd again.
FINAL = {2, errors.WrongVersion.exit_code, errors.ServerMissing.exit_code, errors.ConfigError.exit_code}


def exit_codes(kind: type[JobdError] = JobdError) -> set[int]:
    """Of what can end `serve`: whatever else the run has imported, errors of commands that call a jobd cannot."""
    inner = [subclass for subclass in kind.__subclasses__() if not subclass.__module__.startswith("jobd.client")]
    return {kind.exit_code}.union(*(exit_codes(subclass) for subclass in inner))


def test_watchdog_waits_until_the_guard_has_given_the_leases_up() -> None:
    """The last sign of life is up to one pace old when the loop blocks, and the next up to two after it goes on."""
    assert int(SETTINGS["WatchdogSec"]) >= BLOCK_S + 3 * WATCH_S


def test_services_that_a_block_kept_from_beating_have_time_to_beat_before_the_watchdog_bites() -> None:
    stall_s = Spec.__struct_defaults__[-1]

    assert int(SETTINGS["WatchdogSec"]) > stall_s + 2 * WATCH_S


def test_what_may_mend_is_started_again_for_ever() -> None:
    prevented = set(map(int, SETTINGS["RestartPreventExitStatus"].split()))

    assert prevented == FINAL
    assert (SETTINGS["Restart"], SETTINGS["StartLimitIntervalSec"]) == ("on-failure", "0")
    assert "StartLimitBurst" not in SETTINGS


@pytest.mark.parametrize("code", sorted(exit_codes() | exit_codes(StartRefused)))
def test_every_exit_code_of_an_error_is_final_or_retried(code: int) -> None:
    assert (code in FINAL) != (code in {1, 69, 70, 71, 73, 74, 75, 77})


def test_delays_grow_to_minutes_where_systemd_can() -> None:
    assert int(SETTINGS["RestartSec"]) < 10
    assert int(SETTINGS["RestartSteps"]) > 0
    assert 60 <= int(SETTINGS["RestartMaxDelaySec"]) <= 600

"""The lines of the embedded Postgres: what an operator should see, and what every start and stop says."""

from __future__ import annotations

import logging

import pytest

from jobd.servers.postgres import log_line


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("LOG:  checkpoint starting: time", logging.DEBUG),
        ("WARNING:  could not open directory", logging.WARNING),
        ("ERROR:  deadlock detected", logging.WARNING),
        ("FATAL:  could not write to file", logging.WARNING),
        ("PANIC:  could not locate a valid checkpoint record", logging.ERROR),
        ("FATAL:  the database system is starting up", logging.DEBUG),
        ("FATAL:  terminating connection due to administrator command", logging.DEBUG),
        ("FATAL:  connection to client lost", logging.DEBUG),
    ],
)
def test_only_what_is_wrong_is_a_warning(line: str, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "jobd.postgres")

    log_line(line)

    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, line)]

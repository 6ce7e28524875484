from __future__ import annotations

import contextvars
import io
import json
import logging
import os
import re
import warnings
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from jobd.host import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "s3cr3t-canary"
URL = f"postgresql://jobd:{CANARY}@db.example:5432/jobd"
NASTY = "one\ntwo\r\nthree\x00\x1b[31mred\x7f\x85\u2028four\u2029"

log = logging.getLogger("jobd.test")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("jobd")
    before = root.handlers[:], root.level, ours.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_says_when_how_grave_by_whom_and_what() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream=stream, environ={})
    before = datetime.now(timezone.utc)

    log.warning("%s is %d", "answer", 42)

    (line,) = json_lines(stream)
    at = datetime.strptime(line.pop("at"), "%Y-%m-%dT%H:%M:%S.%f%z")
    assert abs((at - before).total_seconds()) < 60
    assert line == {"level": "warning", "logger": "jobd.test", "message": "answer is 42"}


def test_fields_travel_as_extra_and_unknown_ones_stay_behind() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream=stream, environ={})

    fields = {"service": "slots", "job_id": 7, "attempt": "a-1", "node": "n", "request_id": "r", "trace_id": "t"}
    log.info("claimed", extra={**fields, "payload": CANARY})

    (line,) = json_lines(stream)
    assert {name: line[name] for name in logs.FIELDS} == {**fields, "job_id": "7"}
    assert CANARY not in stream.getvalue()


class SubjectOfATest:
    log_fields: ClassVar = {"job_id": "7", "attempt": "2", "payload": CANARY}


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_are_about_the_subject_of_their_task_unless_they_say_otherwise(form: str) -> None:
    stream = io.StringIO()
    logs.set_up("info", form, stream=stream, environ={})
    of_the_job = contextvars.copy_context()
    of_the_job.run(logs.SUBJECT.set, SubjectOfATest())

    log.info("one")
    of_the_job.run(log.info, "two")
    of_the_job.run(log.info, "three", extra={"attempt": "3"})

    fields = [re.findall(r"(job_id|attempt)\W+(\d)", line) for line in stream.getvalue().splitlines()]
    assert fields == [[], [("job_id", "7"), ("attempt", "2")], [("job_id", "7"), ("attempt", "3")]]
    assert CANARY not in stream.getvalue()


def test_trace_of_a_job_is_its_trace_id() -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    assert logs.job_fields("j", 1, traceparent) == {
        "job_id": "j",
        "attempt": "1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    assert logs.job_fields("j") == {"job_id": "j"}


@pytest.mark.parametrize("form", ["json", "text"])
def test_message_stays_one_line_whatever_is_in_it(form: str) -> None:
    stream = io.StringIO()
    logs.set_up("info", form, stream=stream, environ={})

    log.info(NASTY)

    assert len(stream.getvalue().splitlines()) == 1
    assert not any(character in stream.getvalue().rstrip("\n") for character in NASTY if not character.isprintable())


@pytest.mark.parametrize("form", ["json", "text"])
def test_field_stays_on_the_line_whatever_is_in_it(form: str) -> None:
    stream = io.StringIO()
    logs.set_up("info", form, stream=stream, environ={})

    log.info("claimed", extra={"job_id": NASTY, "node": URL})

    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()
    assert CANARY not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_password_in_a_url_is_masked_in_message_argument_and_trace(form: str) -> None:
    stream = io.StringIO()
    logs.set_up("info", form, stream=stream, environ={})

    try:
        raise ConnectionError(f"no answer from {URL}")
    except ConnectionError as error:
        log.warning("lost %s: %s", URL, error, exc_info=True)

    assert CANARY not in stream.getvalue()
    assert "ConnectionError: no answer from postgresql://jobd:***@db.example:5432/jobd" in stream.getvalue()


def test_trace_is_a_field_of_the_one_json_line() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream=stream, environ={})

    try:
        raise ValueError("bad\nworse")
    except ValueError:
        log.exception("failed")

    (line,) = json_lines(stream)
    assert line["message"] == "failed"
    assert line["trace"].endswith("ValueError: bad\nworse")


def test_text_of_any_language_is_kept() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream=stream, environ={})

    log.info("Grüße, 世界 🌍")

    assert json_lines(stream)[0]["message"] == "Grüße, 世界 🌍"
    assert "世界" in stream.getvalue()


def test_bytes_that_were_no_text_do_not_break_the_stream() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    logs.set_up("info", "json", stream=stream, environ={})

    log.info("file %s", os.fsdecode(b"caf\xe9"))

    (line,) = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert line["message"].startswith("file caf")


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", TerminalStream(), False),
        ("text", io.StringIO(), False),
        ("json", TerminalStream(), True),
    ],
)
def test_auto_means_text_on_a_terminal_and_json_elsewhere(form: str, stream: io.StringIO, is_json: bool) -> None:
    logs.set_up("info", form, stream=stream, environ={})

    log.info("up")

    assert stream.getvalue().startswith("{") is is_json


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (TerminalStream(), {}, True),
        (TerminalStream(), {"NO_COLOR": ""}, True),
        (TerminalStream(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals_without_no_color(stream: io.StringIO, environ: dict[str, str], coloured: bool) -> None:
    logs.set_up("info", "text", stream=stream, environ=environ)

    log.error("broken")

    assert ("\x1b[31m" in stream.getvalue()) is coloured


def test_level_of_someone_elses_making_has_a_line_too() -> None:
    stream = TerminalStream()
    logs.set_up("info", "text", stream=stream, environ={})

    log.log(25, "in between")

    assert "in between" in stream.getvalue()


def test_text_line_ends_with_its_fields_but_not_the_service() -> None:
    stream = io.StringIO()
    logs.set_up("info", "text", stream=stream, environ={})

    log.info("claimed", extra={"service": "slots", "job_id": "j-1", "attempt": 2})

    assert stream.getvalue().endswith(" info    claimed job_id=j-1 attempt=2\n")


def test_level_can_be_changed_while_running() -> None:
    stream = io.StringIO()
    logs.set_up("warning", "json", stream=stream, environ={})

    log.info("unheard")
    logs.set_level("debug")
    log.debug("heard")
    logs.set_level("error")
    log.warning("unheard")

    assert [line["message"] for line in json_lines(stream)] == ["heard"]


def test_others_are_heard_from_warning_up_at_any_level_of_ours() -> None:
    stream = io.StringIO()
    logs.set_up("debug", "json", stream=stream, environ={})

    logging.getLogger("asyncio").info("unheard")
    logging.getLogger("hypercorn.error").warning("heard")

    assert [line["message"] for line in json_lines(stream)] == ["heard"]


def test_python_warning_becomes_a_line() -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.set_up("info", "json", stream=stream, environ={})

        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)

    (line,) = json_lines(stream)
    assert line["level"] == "warning"
    assert "old ways" in line["message"]

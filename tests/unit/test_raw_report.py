"""Whatever bytes a raw worker writes, what is made of them can be stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobd.stream.raw_report import ERROR_BYTES, error_in, event_in, owner_of, result_in
from jobd.tasks.event_check import DATA_BYTES
from jobd.tasks.runner import TaskFailed
from jobd.wire.json_check import check_json

ODD = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
TOO_LONG = b"\x00" * 100_000


@given(ODD)
@example(b"[" * 100_000)
@example(b"1e-20000")
@example(b'"\\ud800"')
def test_result_is_storable_or_a_failure(field: bytes) -> None:
    try:
        result = result_in(field)
    except TaskFailed as failed:
        assert failed.code == "bad_result"
        assert not failed.retryable
    else:
        assert (result is None) == (field == b"")
        check_json(result or b"null", 10_000)


@pytest.mark.parametrize("field", [b'{"a": 1}', b"[1.5]", b"null", b'"text"'])
def test_good_result_is_kept_to_the_letter(field: bytes) -> None:
    assert result_in(field) == field


def test_text_that_is_not_json_is_kept_whole() -> None:
    text = "plain text, " * 5_000

    assert result_in(text.encode()) == msgspec.json.encode({"_raw": text})


@given(ODD)
@example(TOO_LONG)
@example(b'"' + TOO_LONG + b'"')
def test_error_is_storable_and_short(field: bytes) -> None:
    error = error_in(field).encode()

    assert isinstance(check_json(error, 2 * ERROR_BYTES), object)


def test_error_is_kept_without_passwords() -> None:
    error = error_in(b'{"code": "x", "message": "no postgresql://me:secret@db/jobs", "tries": 3}')

    assert msgspec.json.decode(error) == {"code": "x", "message": "no postgresql://me:***@db/jobs", "tries": 3}


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([b"type", b"ts", b"step", b"data"], ODD)))
@example(dict.fromkeys([b"type", b"ts", b"step", b"data"], TOO_LONG))
@example({b"type": b"log", b"data": b"\xff" * 20_000})
def test_event_is_storable_and_short(fields: dict[bytes, bytes]) -> None:
    event = event_in(fields)

    if event is not None:
        check_json(bytes(event.data), DATA_BYTES)
        assert len(event.type) <= 64
        assert len(event.step) <= 200
        assert "\0" not in event.step


def test_owner_is_short_text() -> None:
    assert owner_of(b"a\0\xff" + b"x" * 1000) == "redis:a\ufffd\ufffd" + "x" * 125
    assert owner_of(b"") == "redis:acknowledged"

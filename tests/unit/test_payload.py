from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobd.wire.json_check import (
    MAX_DEPTH,
    MAX_KEY_CHARS,
    MAX_KEYS,
    BadPayload,
    DuplicateKey,
    HasBom,
    HasNan,
    HasNul,
    HasSurrogate,
    KeyTooLong,
    NotJson,
    NotObject,
    NotUtf8,
    NumberOutOfRange,
    TooDeep,
    TooLarge,
    TooManyKeys,
    check_items,
    check_json,
    check_payload,
)

LIMIT = 204_800


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", NotJson),
        (b" \n", NotJson),
        (b"null", NotObject),
        (b"[]", NotObject),
        (b'"x"', NotObject),
        (b"1", NotObject),
        (b"true", NotObject),
        (b'{"a":1', NotJson),
        (b'{"a":"b', NotJson),
        (b'{"a":1} x', NotJson),
        (b'{"a":1}{"b":2}', NotJson),
        (b'{"a":1,}', NotJson),
        (b'{"a":01}', NotJson),
        (b"{'a':1}", NotJson),
        (b'{"a":"\x01"}', NotJson),
        (b'{"a":"\x00"}', NotJson),
        (b'{"a":"\\x41"}', NotJson),
        (b'{"a":]}', NotJson),
        (b"\xef\xbb\xbf{}", HasBom),
        (b'{"a":1,"a":1}', DuplicateKey),
        (b'{"a":1,"\\u0061":2}', DuplicateKey),
        (b'{"x":[{"b":{"a":1,"a":{"c":1}}}]}', DuplicateKey),
        (b'{"\\"":1,"\\u0022":2}', DuplicateKey),
        (b'{"a":NaN}', HasNan),
        (b'{"a":[Infinity]}', HasNan),
        (b'{"a":-Infinity}', HasNan),
        (b'{"a":1e400}', NumberOutOfRange),
        (b'{"a":-1e309}', NumberOutOfRange),
        (b'{"a":1e-20000}', NumberOutOfRange),
        (b'{"a":' + b"7" * 309 + b"}", NumberOutOfRange),
        (b'{"a":' + b"7" * 5_000 + b"}", NumberOutOfRange),
        (b'{"a":0.' + b"7" * 20_000 + b"}", NumberOutOfRange),
        (b'{"a":"\\u0000"}', HasNul),
        (b'{"\\u0000":1}', HasNul),
        (b'{"a":"\\\\\\u0000"}', HasNul),
        (b'{"a":"\\ud800"}', HasSurrogate),
        (b'{"a":"\\uDC00 x"}', HasSurrogate),
        (b'{"a":"\\ud800\\ud800"}', HasSurrogate),
        (b'{"\\udfff":1}', HasSurrogate),
        (b'{"a":"\xff"}', NotUtf8),
        (b'{"a":"\xed\xa0\x80"}', NotUtf8),
        (b'{"\xc0\x80":1}', NotUtf8),
        (b"{\xff}", NotUtf8),
        (b'{"a":' * 33 + b"1" + b"}" * 33, TooDeep),
        (b'{"a":' + b"[" * 32 + b"]" * 32 + b"}", TooDeep),
        (b"[" * 100_000, TooDeep),
        (b'{"a":' * 40_000, TooDeep),
        (json.dumps(dict.fromkeys(map(str, range(10_001)))).encode(), TooManyKeys),
        (json.dumps({"a": [{"b": 1}] * 10_000}).encode(), TooManyKeys),
        (json.dumps({"k" * 100_000: 1}).encode(), KeyTooLong),
        (json.dumps({"a": [{"k" * (MAX_KEY_CHARS + 1): 1}]}).encode(), KeyTooLong),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_bad_payload_is_refused_by_name(raw: bytes, kind: type[BadPayload]) -> None:
    with pytest.raises(BadPayload) as raised:
        check_payload(raw, LIMIT)

    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"__proto__": {"x": 1}, "constructor": 2, "$ref": "#/a"},
        {"a": "[[[[{{{{" * 100, "b": ":" * 20_000},
        {"a": 'say "x": \\" {', 'b\\": {': ["\\\\", "\\", '"']},
        {"a": "\\u0000", "b": "\\ud800"},
        {"a": "😂 é \u2028 \x7f"},
        {"a": "1" * 5_000, "b": "e-9999"},
        {"a": int("7" * 308), "b": 2**64, "c": -0.0, "d": 1e308, "e": 5e-324},
        {"a": [[]] * 1_000, "b": [{}] * 1_000},
        {"k" * MAX_KEY_CHARS: "v" * MAX_KEY_CHARS * 2},
    ],
    ids=lambda value: repr(value)[:24],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_good_payload_is_read(value: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=1).encode()

    assert check_payload(raw, LIMIT) == value


def test_quote_written_as_an_escape_is_read() -> None:
    assert check_payload(b'{"\\u0022":"\\u0022\\"\\u005c"}', LIMIT) == {'"': '""\\'}


def test_nesting_up_to_the_limit_is_read() -> None:
    raw = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH

    assert check_payload(raw, LIMIT) == json.loads(raw)


def test_keys_up_to_the_limit_are_read() -> None:
    value = dict.fromkeys(map(str, range(MAX_KEYS)))

    assert check_payload(json.dumps(value).encode(), LIMIT) == value


def test_limit_counts_bytes_and_includes_the_last() -> None:
    raw = '{"a":"éé"}'.encode()

    assert check_payload(raw, len(raw)) == {"a": "éé"}
    with pytest.raises(TooLarge):
        check_payload(raw, len(raw) - 1)


def test_any_json_value_is_read_where_no_object_is_asked_for() -> None:
    assert [check_json(raw, LIMIT) for raw in (b"null", b"[1]", b'"x"', b" 1 ")] == [None, [1], "x", 1]


def test_every_refusal_has_its_own_code() -> None:
    codes = [kind.code for kind in BadPayload.__subclasses__()]

    assert len(set(codes)) == len(codes)
    assert "bad_payload" not in codes


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * LIMIT,
        b"{" * LIMIT,
        b'{"a":[' + b"[]," * 60_000 + b"[]]}",
        b'{"a":"' + b'\\"' * 90_000,
        b'{"a":"' + b"\\" * 200_000,
        b'{"a":"' + b"\\ud800" * 30_000 + b'"}',
        b'{"a":[' + b",".join([b"1" * 308] * 600) + b"]}",
        b"e-0" * 60_000,
        b'"' * LIMIT,
        b":" * LIMIT,
    ],
    ids=lambda value: repr(value[:12]),
)
def test_made_up_input_is_judged_in_linear_time(raw: bytes) -> None:
    """In quadratic time it would not be done before the test's own time is over."""
    with contextlib.suppress(BadPayload):
        check_payload(raw, LIMIT)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(TEXT, children, max_size=5),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES), st.booleans())
def test_whatever_json_can_say_is_read(value: dict[str, Any], ascii_only: bool) -> None:
    assert check_payload(json.dumps(value, ensure_ascii=ascii_only).encode(), LIMIT) == value


@settings(deadline=None)
@given(st.dictionaries(TEXT, VALUES, min_size=1), VALUES)
def test_a_key_given_twice_is_always_noticed(value: dict[str, Any], other: object) -> None:
    key = json.dumps(next(iter(value)))
    raw = json.dumps({"outer": [value]}).replace("[{", f"[{{{key}: {json.dumps(other)}, ", 1).encode()

    with pytest.raises(DuplicateKey):
        check_payload(raw, LIMIT)


JUNK = st.lists(st.sampled_from([*b'{}[]:,"\\u0e1-.d8 ntf\xc3\xa9\xff\x00'])).map(bytes)


@settings(deadline=None)
@given(st.binary() | JUNK | JUNK.map(lambda junk: b'{"a":' + junk + b"}"))
@example(b'"\\')
def test_nothing_but_bad_payload_is_ever_raised(raw: bytes) -> None:
    try:
        value = check_payload(raw, LIMIT)
    except BadPayload as error:
        assert str(error)
    else:
        assert value == json.loads(raw)


#: JSON texts as they may stand in an array: well-formed, and some of them refused all the same.
ITEMS = VALUES.map(lambda value: json.dumps(value).encode()) | st.sampled_from(
    [
        *(b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'{"a":"\\u0000"}', b'{"a":"\\\\u0000"}', b'{"a":"\\\\"}'),
        *(b'{"a":"\\ud800"}', b'{"a":"\\u0022"}', b'{"a":"\\""}', b'{"\\"":1,"\\"":2}', b"1e400", b"1e-400"),
        *(b"[" * 16 + b"]" * 16, b"[" * 32 + b"]" * 32, b"[" * 33 + b"]" * 33, b'"' + b"[" * 40 + b'"', b"1" * 400),
        *(b'{"%b":1}' % (b"k" * 4_097), b'{"%b":1}' % (b"k" * 4_080), b'"e-00001"', b'"\xff"', b'{"a":"\xc3\xa9"}'),
    ]
)


@settings(deadline=None)
@given(st.lists(ITEMS, max_size=6))
def test_items_looked_at_together_are_judged_as_each_alone(items: list[bytes]) -> None:
    values = check_items(items)

    assert values is None or values == [check_json(item, LIMIT) for item in items]


def test_usual_items_need_no_second_look() -> None:
    items = [b'{"task":"embed","payload":{"n":%d,"text":"a \\"quoted\\" word"}}' % n for n in range(100)]

    assert check_items(items) == [json.loads(item) for item in items]

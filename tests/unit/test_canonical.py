"""The vectors are those of RFC 8785 and of its author's test data."""

from __future__ import annotations

import hashlib
import json
import struct
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobd.errors import JobdError
from jobd.wire.canonical import NotCanonical, _canonical_by_msgspec, canonical_json, spec_hash

# Appendix B: the bits of a double, and its text
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

ARRAYS = ('[56, {"d": true, "10": null, "1": []}]', '[56,{"1":[],"10":null,"d":true}]')
FRENCH = (
    """{"peach": "This sorting order", "péché": "is wrong according to French",
        "pêche": "but canonicalization MUST", "sin": "ignore locale"}""",
    '{"peach":"This sorting order","péché":"is wrong according to French",'
    '"pêche":"but canonicalization MUST","sin":"ignore locale"}',
)
STRUCTURES = (
    r"""{"1": {"f": {"f": "hi", "F": 5}, "\n": 56.0}, "10": {}, "": "empty", "a": {},
         "111": [{"e": "yes", "E": "no"}], "A": {}}""",
    r'{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
)
UNICODE = (r'{"Unnormalized Unicode": "A\u030a"}', '{"Unnormalized Unicode":"A\u030a"}')
# also the example of section 3.2.2
VALUES = (
    r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
         "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}""",
    r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    r'"string":"€$\u000f\nA'
    "'"
    r'B\"\\\\\"/"}',
)
WEIRD = (
    r"""{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\u000a": "Newline", "1": "One", "\u0080": "Control\u007f",
         "\ud83d\ude02": "Smiley", "\u00f6": "Latin Small Letter O With Diaeresis",
         "\ufb33": "Hebrew Letter Dalet With Dagesh", "</script>": "Browser Challenge"}""",
    '{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge","\u0080":"Control\u007f",'
    '"\u00f6":"Latin Small Letter O With Diaeresis","\u20ac":"Euro Sign","\U0001f602":"Smiley",'
    '"\ufb33":"Hebrew Letter Dalet With Dagesh"}',
)

# Section 3.2.4: the bytes of that example
VALUES_IN_HEX = """
    7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73
    22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31
    65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c
    22 2f 22 7d
"""


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_number_is_written_as_ecmascript_does(bits: str, text: str) -> None:
    assert canonical_json(double(bits)) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_number_that_is_not_finite_is_refused(bits: str) -> None:
    with pytest.raises(NotCanonical):
        canonical_json([double(bits)])


@pytest.mark.parametrize(
    ("source", "canonical"),
    [ARRAYS, FRENCH, STRUCTURES, UNICODE, VALUES, WEIRD],
    ids=["arrays", "french", "structures", "unicode", "values", "weird"],
)
def test_sample_of_the_author(source: str, canonical: str) -> None:
    assert canonical_json(json.loads(source)) == canonical.encode()


def test_example_of_the_rfc_gives_its_bytes() -> None:
    assert canonical_json(json.loads(VALUES[0])) == bytes.fromhex(VALUES_IN_HEX)


def test_keys_sort_by_utf16_code_units() -> None:
    source = r"""{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
                  "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
                  "\u00f6": "Latin Small Letter O With Diaeresis"}"""

    assert list(json.loads(canonical_json(json.loads(source))).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_only_what_must_be_escaped_is() -> None:
    everything = "".join(map(chr, range(0x80)))

    assert canonical_json(everything) == (
        rb'"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f'
        rb"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f"
        rb" !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
        b'\x7f"'
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2**53, "9007199254740992"),
        (-(2**53), "-9007199254740992"),
        (9007199254740994, "9007199254740994"),
        (295147905179352830000, "295147905179352830000"),
        (10**20, "100000000000000000000"),
        (10**22, "1e+22"),
    ],
)
def test_integer_that_keeps_its_digits_is_written(number: int, text: str) -> None:
    assert canonical_json(number) == text.encode()


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**60, 10**400, -(10**400), 10**5000], ids=lambda _: "")
def test_integer_that_would_lose_digits_is_refused(number: int) -> None:
    with pytest.raises(NotCanonical):
        canonical_json({"n": number})


class Colour(str, Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value", [b"x", {1, 2}, object(), 1j, {1: 2}, {"a": {None: 1}}, {"a": 1, 2: 3}, {b"a": 1}, Colour.RED]
)
def test_value_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical_json([value])


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", {"\ud800": 1}, {"\ud800": 1, "é": 2}, ["x", {"k": "\udc00"}]])
def test_lone_surrogate_is_refused(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical_json(value)


def test_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(NotCanonical):
        canonical_json(value)


def test_refusal_is_a_value_error_of_ours() -> None:
    assert issubclass(NotCanonical, ValueError)
    assert issubclass(NotCanonical, JobdError)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text(), children, max_size=5),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON)
def test_canonical_text_read_and_written_again_is_the_same(value: object) -> None:
    once = canonical_json(value)

    assert canonical_json(json.loads(once)) == once


@settings(deadline=None)
@given(JSON)
def test_canonical_text_says_what_the_value_says(value: object) -> None:
    assert json.loads(canonical_json(value), parse_int=float) == value


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives(number: float) -> None:
    assert float(canonical_json(number)) == number


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON), st.randoms())
def test_order_of_keys_does_not_matter(members: dict[str, Any], random: Any) -> None:
    shuffled = list(members.items())
    random.shuffle(shuffled)

    assert canonical_json(dict(shuffled)) == canonical_json(members)


@settings(deadline=None)
@given(st.integers())
def test_two_integers_never_share_a_text(number: int) -> None:
    try:
        text = canonical_json(number)
    except NotCanonical:
        assert abs(number) > 2**53
    else:
        assert Decimal(text.decode()) == number


#: As JSON, but with what msgspec and the canonical form write differently, or may come to.
TRICKY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(-1e-3, 1e-3)
    | st.decimals(0, 1000, places=3).map(float)
    | st.integers(-320, 308).map(lambda power: float(f"1e{power}"))
    | st.sampled_from([-0.0, 1.0, 1e15, 1e16, 1e21, 123456789012345.6, 1e-6, 1.5e-6, 9.5e-7, 1e-7, 2.0**60])
    | st.text()
    | st.text('\0\x1f\x7f\u2028\ud7ff\ue000\uffff\U0001f600 :,[]{}\\"e.0123456789-'),
    lambda children: (
        st.lists(children, max_size=5)
        | st.dictionaries(st.text() | st.text("a\ud7ff\ue000\uffff\U00010000", max_size=2), children, max_size=5)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), TRICKY, max_size=5))
def test_text_of_msgspec_is_taken_only_where_it_is_canonical(payload: dict[str, Any]) -> None:
    value = {"payload": payload, "queue": "q", "task": "t"}

    text = _canonical_by_msgspec(value)

    assert text is None or text == canonical_json(value)


@pytest.mark.parametrize(
    "payload",
    [
        {"text": "hällo 中", "temperature": 0.7, "n": [1, -2, 999_999_999_999_999], "deep": {"a": None, "B": True}},
        {"at": "2026-11-18T01:00:00.25Z", "url": "http://localhost:7433/v1/jobs", "note": 'a "quote"\n'},
        {},
    ],
)
def test_text_of_msgspec_is_taken_for_usual_payloads(payload: dict[str, Any]) -> None:
    assert _canonical_by_msgspec(payload) == canonical_json(payload)


@pytest.mark.parametrize("payload", [{"a": "\ud800"}, {"a": {1: 2}}, {"a": 2**53 + 1}, {"a": 2**60}])
def test_payload_without_canonical_text_has_no_spec_hash(payload: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical):
        spec_hash("chat", "default", payload)


def test_spec_hash_is_over_task_queue_and_payload() -> None:
    expected = hashlib.sha256(b'{"payload":{"a":1,"b":[2]},"queue":"default","task":"chat"}').digest()

    assert spec_hash("chat", "default", {"b": [2.0], "a": 1}) == expected


@pytest.mark.parametrize("other", [("code", "q", {"a": 1}), ("chat", "r", {"a": 1}), ("chat", "q", {"a": 2})])
def test_spec_hash_differs_when_any_part_does(other: tuple[str, str, dict[str, int]]) -> None:
    assert spec_hash(*other) != spec_hash("chat", "q", {"a": 1})


def double(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])

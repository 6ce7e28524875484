"""A large value as JSON in pieces: the same text as in one call, the same faults, and no second copy of it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from jobd.wire.json_check import MAX_DEPTH, MAX_KEYS, BadPayload, check_json
from jobd.wire.json_pieces import PIECE_BYTES, is_large, json_pieces

LONG = 3 * PIECE_BYTES + 7
MANY = PIECE_BYTES // 2
LIMIT = 100_000_000


class Piece(msgspec.Struct):
    x: int
    text: str


def nested(levels: int, inside: object) -> object:
    for _ in range(levels):
        inside = [inside]
    return inside


VALUES: dict[str, Any] = {
    "null": None,
    "empty": {},
    "small": {"a": [1, 2.5, True, None, "x"]},
    "a long string": "x" * LONG,
    "escapes at every cut": '\\"\n\u2028é😀' * (LONG // 6),
    "an object with a long string": {"text": "x" * LONG, "n": 1},
    "long strings between short": ["a", "x" * LONG, 1, [], "y" * LONG, {}],
    "many numbers": list(range(MANY)),
    "many strings": [f"word {n}" for n in range(MANY)],
    "many members": {f"key {n}": "x" * 200 for n in range(MAX_KEYS)},
    "long keys": {"k" * 4090 + str(n): n for n in range(100)},
    "members of odd names": {'"\\': "x" * LONG, "é": ["y" * LONG]},
    "a tuple": ("x" * LONG, 2),
    "containers in containers": [{"a": ["x" * 1000] * 300, "b": {"c": list(range(MANY))}}] * 2,
    "empty containers among large ones": [[], {}, "x" * LONG, [], [[]]],
    "as deep as may be": nested(MAX_DEPTH - 1, ["x" * LONG]),
    "a struct": Piece(1, "x" * LONG),
    "structs": [Piece(n, "x" * 100) for n in range(4000)],
    "keys that are numbers": dict.fromkeys(range(4000), "x" * 100),
    "JSON text": msgspec.Raw(b'{"text": "' + b"x" * LONG + b'"}'),
    "JSON text in a list": ["x" * LONG, msgspec.Raw(b'{"a": [1, 2]}')],
    "bytes": b"x" * LONG,
}

FAULTS: dict[str, Any] = {
    "nul in a long string": "x" * LONG + "\0",
    "nul in a short string": ["x" * LONG, "\0"],
    "nul in an object behind a full piece": ["x" * (PIECE_BYTES - 10), {"a": "\0"}],
    "nul in an object among numbers": [*range(MANY), {"a": "\0"}, *range(MANY)],
    "nul in a key": {"\0": "x" * LONG},
    "too deep around": nested(MAX_DEPTH, ["x" * LONG]),
    "too deep within": ["x" * LONG, nested(MAX_DEPTH, 1)],
    "too many keys": {f"key {n}": "x" * 200 for n in range(MAX_KEYS + 1)},
    "too many keys in all": [{"a": "x" * 100, "b": 1} for _ in range(MAX_KEYS)],
    "a key too long": {"k" * 4097: "x" * LONG},
    "the same key twice": {1: "x" * LONG, "1": 2},
    "the same key twice in text": ["x" * LONG, msgspec.Raw(b'{"a": 1, "a": 2}')],
    "a number too long": ["x" * LONG, 10**400],
    "text that is none": ["x" * LONG, msgspec.Raw(b'{"a": ')],
}


@pytest.mark.parametrize("name", VALUES)
def test_pieces_joined_are_the_text_in_one(name: str) -> None:
    value = VALUES[name]
    text = msgspec.json.encode(value)
    assert b"".join(json_pieces(value, LIMIT)) == text
    check_json(text, LIMIT)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_those_of_the_text_in_one(name: str) -> None:
    value = FAULTS[name]
    with pytest.raises(BadPayload) as in_one:
        check_json(msgspec.json.encode(value), LIMIT)
    with pytest.raises(BadPayload) as in_pieces:
        list(json_pieces(value, LIMIT))
    assert type(in_pieces.value) is type(in_one.value)


@pytest.mark.parametrize("value", [["x" * LONG, object()], ["x" * LONG, "\ud800"]])
def test_what_is_no_json_is_refused_as_in_one(value: object) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)) as in_one:
        msgspec.json.encode(value)
    with pytest.raises(type(in_one.value)):
        list(json_pieces(value, LIMIT))


def test_no_more_than_the_limit_is_handed_out_and_the_size_is_named() -> None:
    handed_out = 0
    with pytest.raises(BadPayload) as refused:
        for piece in json_pieces(["x" * LONG, "y"], LONG):
            handed_out += len(piece)
    assert handed_out <= LONG
    assert f"{LONG + 8} bytes" in str(refused.value)


@pytest.mark.parametrize("value", ["x" * 20_000_000, [f"word {n}" for n in range(500_000)]], ids=["one string", "many"])
def test_beside_the_value_little_memory_is_needed(value: object) -> None:
    assert sum(map(len, json_pieces(value, LIMIT))) > 5_000_000
    tracemalloc.start()
    for _ in json_pieces(value, LIMIT):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * PIECE_BYTES


@pytest.mark.parametrize(
    ("value", "large"),
    [
        (None, False),
        (12345, False),
        ("x" * 1000, False),
        ("x" * 1001, True),
        (b"x" * 1001, True),
        ([1] * 200, False),
        ([1] * 1001, True),
        ({str(n): n for n in range(100)}, False),
        ({"a": {"b": ["x" * 600, "y" * 600]}}, True),
        (Piece(1, "x" * 1001), True),
        (msgspec.Raw(b"1" * 1001), True),
    ],
)
def test_a_value_is_known_to_be_large_without_encoding_it(value: object, large: bool) -> None:
    assert is_large(value, 1000) is large


def test_a_list_that_contains_itself_is_large() -> None:
    around: list[Any] = []
    around.append(around)
    assert is_large(around, 1000)

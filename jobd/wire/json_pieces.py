"""A large value as JSON in pieces, joined the same text as `msgspec.json.encode` makes of it.

Encoding 60 MB in one call takes 60 ms and as much memory again, and checking that text takes 600 ms more; while such a
call runs, no other thread of the process gets the GIL. In pieces of 256 KB each call takes a few milliseconds, and what
is needed beside the value is one piece.

Strings, lists and objects are cut; anything else (a Struct, a set, JSON text in a Raw) is one piece. Every piece is
checked by the same rules as a payload (see `payload`), and so is the whole: its depth and its number of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobd.wire.json_check import MAX_DEPTH, MAX_KEYS, HasNul, TooDeep, TooLarge, TooManyKeys, check_json, structure_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Size of a piece in bytes, about: strings with escapes and items of odd types make it larger.
PIECE_BYTES: Final = 256 * 1024
#: What a number, null, a boolean or a container itself is taken to need, in bytes.
_ITEM_BYTES: Final = 4
#: An integer that is larger is left to the check of payloads, which refuses those of hundreds of digits.
_MAX_INT: Final = 2**63


def is_large(value: object, limit_bytes: int) -> bool:
    """Whether `value` as JSON has about more than `limit_bytes`. Looks at no more of it than is needed to know."""
    size = 0
    left = [value]
    while left:
        item: Any = left.pop()
        kind = type(item)
        if kind is str or kind is bytes:
            size += len(item)
        elif kind is msgspec.Raw:
            size += memoryview(item).nbytes
        elif kind is dict:
            size += 2 * _ITEM_BYTES * len(item)
            if size <= limit_bytes:
                left += item.values()
        elif kind is list or kind is tuple or kind is set:
            size += _ITEM_BYTES * len(item)
            if size <= limit_bytes:
                left += item
        elif (fields := getattr(kind, "__struct_fields__", None)) is not None:
            size += _ITEM_BYTES * len(fields)
            left += [getattr(item, name) for name in fields]
        if size > limit_bytes:
            return True
    return False


def json_pieces(value: object, limit_bytes: int) -> Iterator[bytes]:
    """The JSON of `value`; raises BadPayload, and what msgspec raises for a value that is none.

    More than `limit_bytes` are not handed out: the rest is counted, and then TooLarge names the size.
    """
    size = 0
    for piece in _Cutter().cut(value, 0):
        size += len(piece)
        if size <= limit_bytes:
            yield piece
    if size > limit_bytes:
        raise TooLarge(f"{size} bytes of JSON are more than the limit of {limit_bytes}", size)


class _Cutter:
    def __init__(self) -> None:
        self._keys = 0

    def cut(self, value: Any, depth: int) -> Iterator[bytes]:
        """`depth`: how many containers are around the value."""
        kind = type(value)
        if kind is str and len(value) > PIECE_BYTES:
            yield from _cut_string(value)
        elif (kind is list or kind is tuple) and is_large(value, PIECE_BYTES):
            yield b"["
            yield from self._joined(self._items(value, _deeper(depth)))
            yield b"]"
        elif kind is dict and all(type(key) is str for key in value) and is_large(value, PIECE_BYTES):
            yield b"{"
            yield from self._joined(self._members(value, _deeper(depth)))
            yield b"}"
        else:
            yield self._checked(msgspec.json.encode(value), depth)

    def _joined(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
        for number, part in enumerate(parts):
            if number:
                yield b","
            yield from part

    def _items(self, values: list[Any] | tuple[Any, ...], depth: int) -> Iterator[Iterator[bytes]]:
        """Small neighbours together, each large one by itself."""
        together: list[Any] = []
        are_scalars = True
        room = PIECE_BYTES
        for value in values:
            kind = type(value)
            is_scalar = True
            if kind is str:
                size = len(value) + _ITEM_BYTES
            elif kind is float or (kind is int and abs(value) <= _MAX_INT) or value is None or kind is bool:
                size = _ITEM_BYTES
            else:
                size = _size_of(value)
                is_scalar = False
            if together and size > room:
                yield _scalars(together) if are_scalars else self._without_brackets(together, depth)
                together, room, are_scalars = [], PIECE_BYTES, True
            if size > PIECE_BYTES:
                yield self.cut(value, depth)
            else:
                together.append(value)
                are_scalars = are_scalars and is_scalar
                room -= size
        if together:
            yield _scalars(together) if are_scalars else self._without_brackets(together, depth)

    def _members(self, values: dict[str, Any], depth: int) -> Iterator[Iterator[bytes]]:
        together: dict[str, Any] = {}
        room = PIECE_BYTES
        for key, value in values.items():
            size = len(key) + _size_of(value)
            if together and size > room:
                yield self._without_brackets(together, depth)
                together, room = {}, PIECE_BYTES
            if size > PIECE_BYTES:
                yield self._member(key, value, depth)
            else:
                together[key] = value
                room -= size
        if together:
            yield self._without_brackets(together, depth)

    def _member(self, key: str, value: Any, depth: int) -> Iterator[bytes]:
        text = self._checked(msgspec.json.encode({key: None}), depth - 1)
        yield text[1 : -len(b"null}")]
        yield from self.cut(value, depth)

    def _without_brackets(self, values: list[Any] | dict[str, Any], depth: int) -> Iterator[bytes]:
        yield self._checked(msgspec.json.encode(values), depth - 1)[1:-1]

    def _checked(self, text: bytes, depth: int) -> bytes:
        check_json(text, len(text))
        inner, keys = structure_of(text)
        _deeper(depth, inner)
        self._keys += keys
        if self._keys > MAX_KEYS:
            raise TooManyKeys(f"the JSON has more than {MAX_KEYS} keys")
        return text


def _deeper(depth: int, by: int = 1) -> int:
    if depth + by > MAX_DEPTH:
        raise TooDeep(f"the JSON is nested deeper than {MAX_DEPTH}")
    return depth + by


def _cut_string(value: str) -> Iterator[bytes]:
    if "\0" in value:
        raise HasNul("a string contains \\u0000, which cannot be stored")
    yield b'"'
    for start in range(0, len(value), PIECE_BYTES):
        yield msgspec.json.encode(value[start : start + PIECE_BYTES])[1:-1]
    yield b'"'


def _scalars(values: list[Any]) -> Iterator[bytes]:
    """Strings and numbers as msgspec writes them have no other fault than a NUL, so they need not be parsed again."""
    if any("\0" in value for value in values if type(value) is str):
        raise HasNul("a string contains \\u0000, which cannot be stored")
    yield msgspec.json.encode(values)[1:-1]


def _size_of(value: object) -> int:
    """About its size as JSON if that is less than a piece, else more than a piece."""
    for size in (256, 4096, PIECE_BYTES):
        if not is_large(value, size):
            return size
    return PIECE_BYTES + 1

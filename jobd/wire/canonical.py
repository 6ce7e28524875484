"""One text for one value: canonical JSON (RFC 8785), and the hash of a job's specification over it.

A number in that RFC is an IEEE double, written as ECMAScript writes it. A Python integer can say more than a double, so
one is taken only when its canonical text is that very integer: every integer up to 2^53, and beyond it those like 10^20
that come out as they went in. Others (2^53 + 1, and 2^60 too, whose text would be 1152921504606847000) are refused: two
different integers must not share a hash, and canonical text, read and written again, must not change.

Writing the text in Python takes 15 us for 8 small fields. For most values msgspec, which takes 1 us, writes the same
text: with keys sorted by code point, it differs only in keys beyond U+FFFF and in some numbers (1.0, 1e16, integers
that have no canonical text). `spec_hash` takes its text when nothing of that kind can be in it.
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobd.errors import JobdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Largest integer up to which each has a double of its own, written with exactly its digits (2^53).
_SAFE_INTEGER: Final = 2**53

_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode
#: Finds every number in compact JSON that msgspec may write in another form than RFC 8785 (and such text in strings):
#: 16 digits or more, a whole double (1.0), an exponent, or a small fraction that ECMAScript writes with an exponent.
_UNLIKE_NUMBER: Final = re.compile(rb"[:,\[]-?(?:[0-9]{16}|0\.000000|[0-9]+\.0[],}]|[0-9]+(?:\.[0-9]+)?[eE])")
#: First UTF-8 byte of a character beyond U+FFFF: RFC 8785 sorts keys by UTF-16 code units, msgspec by code points.
_BEYOND_BMP: Final = re.compile(rb"[\xf0-\xf4]")


class NotCanonical(JobdError, ValueError):
    """The value has no canonical JSON text."""

    code = "not_canonical"


def spec_hash(task: str, queue: str, payload: Mapping[str, Any]) -> bytes:
    """SHA-256 over what a job is to do: equal for two jobs exactly when task, queue and payload mean the same.

    `payload` is as `msgspec.json.decode` returns it.
    """
    spec = {"payload": payload, "queue": queue, "task": task}
    return hashlib.sha256(_canonical_by_msgspec(spec) or canonical_json(spec)).digest()


def _canonical_by_msgspec(value: dict[str, Any]) -> bytes | None:
    """The canonical text of what msgspec decoded, if msgspec writes it canonically; None: it may not."""
    try:
        text = _sorted_json(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if _UNLIKE_NUMBER.search(text) or not (text.isascii() or _BEYOND_BMP.search(text) is None):
        return None
    return text


def canonical_json(value: object) -> bytes:
    """The one canonical text of a JSON value made of str, int, float, bool, None, list, tuple and dict."""
    try:
        return _text(value).encode()
    except UnicodeEncodeError as error:
        raise NotCanonical(f"a string has the lone surrogate U+{ord(error.object[error.start]):04X}") from None
    except RecursionError:
        raise NotCanonical("the value is nested too deeply or contains itself") from None


def _text(value: object) -> str:
    write = _WRITERS.get(type(value))
    if write is None:
        raise NotCanonical(f"a {type(value).__name__} is not a JSON value")
    return write(value)


def _object(members: dict[Any, Any]) -> str:
    try:
        keys = sorted(members) if all(map(str.isascii, members)) else sorted(members, key=_utf16)
        return "{" + ",".join([f"{encode_basestring(key)}:{_text(members[key])}" for key in keys]) + "}"
    except TypeError:
        raise NotCanonical("an object key is not a string") from None


def _utf16(key: str) -> bytes:
    """Keys sort by UTF-16 code units, where a character beyond U+FFFF comes before U+E000."""
    return key.encode("utf-16-be")


def _array(items: list[Any] | tuple[Any, ...]) -> str:
    return "[" + ",".join([_text(item) for item in items]) + "]"


def _integer(number: int) -> str:
    if -_SAFE_INTEGER <= number <= _SAFE_INTEGER:
        return str(number)
    try:
        text = _double(float(number))
        if Decimal(text) == number:
            return text
    except OverflowError:
        pass
    raise NotCanonical("an integer beyond 2^53 would not keep its digits as a double; send it as a string")


def _double(number: float) -> str:
    """ECMAScript's Number::toString: Python finds the same shortest digits but changes to exponents elsewhere."""
    if not isfinite(number):
        raise NotCanonical(f"{number} is not a JSON number")
    text = repr(number)
    mantissa, e, exponent = text.partition("e")
    if not e:
        return "0" if number == 0 else text.removesuffix(".0")
    power = int(exponent)
    digits = mantissa.lstrip("-").replace(".", "")
    sign = "-" if number < 0 else ""
    if 0 < power < 21:
        return sign + digits.ljust(power + 1, "0")
    if -7 < power < 0:
        return f"{sign}0.{digits.rjust(len(digits) - power - 1, '0')}"
    return f"{mantissa}e{power:+d}"


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    int: _integer,
    float: _double,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
    dict: _object,
    list: _array,
    tuple: _array,
}

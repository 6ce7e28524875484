"""Inputs: what the jobs that a job waited for have ended with, for its handler and for the places in its payload.

A place is `{{inputs.NAME}}`, or `{{inputs.NAME.key.0}}` for a part of the result, anywhere in a string of the payload;
NAME is the `ref` of the dependency, or its id. A string that is nothing but one place becomes the value itself, of
whatever type; within other text a string stands as it is, and another value as JSON. Other words in braces are left as
they are, and what a result brings is not looked through again. Payloads are filled in once, when the job is let go, so
every attempt and every kind of worker gets the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.job.inputs import Input
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from jobd.store.session import Session

READ_INPUTS = statement("read_inputs")
READ_PAYLOADS = statement("read_payloads")
WRITE_PAYLOADS = statement("write_payloads")

#: Bytes of results that a job gets with its inputs; those beyond are to be read one by one.
MOST_BYTES = 1024 * 1024

_PLACE = re.compile(r"\{\{\s*inputs\.([A-Za-z0-9_.-]{1,600})\s*\}\}")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class BadPlace(ValueError):
    """A place in a payload cannot be filled in."""


async def read_inputs(
    session: Session, job_ids: Sequence[UUID], *, most_bytes: int = MOST_BYTES
) -> list[dict[str, Input]]:
    """The inputs of each of the jobs, by `ref` or id."""
    found: list[dict[str, Input]] = [{} for _ in job_ids]
    for row in await session.fetch(READ_INPUTS, list(job_ids), most_bytes):
        found[row["n"] - 1][row["ref"] or str(row["on_id"])] = Input(
            id=str(row["on_id"]),
            status=row["status"],
            result=None if row["result"] is None else _decode(row["result"]),
            error=None if row["error"] is None else _decode(row["error"]),
            is_large=row["is_large"],
        )
    return found


async def fill_payloads(session: Session, job_ids: Sequence[UUID], *, limit: int) -> dict[UUID, str]:
    """Put inputs into the payloads of jobs; why that cannot be done, for those of which it cannot."""
    rows = {row["job_id"]: row["payload"] for row in await session.fetch(READ_PAYLOADS, list(job_ids))}
    places = [job_id for job_id in job_ids if _PLACE.search(rows[job_id])]
    filled_in: dict[UUID, str] = {}
    failures: dict[UUID, str] = {}
    for job_id, inputs in zip(places, await read_inputs(session, places, most_bytes=limit), strict=True):
        try:
            filled_in[job_id] = filled(rows[job_id], inputs, limit)
        except BadPlace as error:
            failures[job_id] = str(error)
    if filled_in:
        await session.execute(WRITE_PAYLOADS, list(filled_in), list(filled_in.values()))
    return failures


def filled(payload: str, inputs: Mapping[str, Input], limit: int) -> str:
    """The payload, as JSON, with its places filled in; raises BadPlace. PURE."""
    return _Filling(inputs, limit).text_of(payload)


class _Filling:
    def __init__(self, inputs: Mapping[str, Input], limit: int) -> None:
        self._inputs = inputs
        self._limit = limit
        self._left = limit

    def text_of(self, payload: str) -> str:
        text = _encode(self._filled(_decode(payload)))
        if len(text) > self._limit:
            self._refuse_size()
        return text.decode()

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str):
            whole = _PLACE.fullmatch(value)
            return self._value(whole[1]) if whole else _PLACE.sub(lambda place: self._text(place[1]), value)
        if isinstance(value, dict):
            return {key: self._filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._filled(part) for part in value]
        return value

    def _value(self, path: str) -> Any:
        value = self._found(path)
        self._left -= len(_encode(value))
        if self._left < 0:
            self._refuse_size()
        return value

    def _text(self, path: str) -> str:
        value = self._value(path)
        return value if isinstance(value, str) else _encode(value).decode()

    def _refuse_size(self) -> None:
        raise BadPlace(f"its payload would have more than {self._limit} bytes with its inputs (limits.payload_bytes)")

    def _found(self, path: str) -> Any:
        name, *keys = path.split(".")
        for n in range(len(keys), -1, -1):  # a ref may have dots of its own
            long_name = ".".join([name, *keys[:n]])
            if long_name in self._inputs:
                return self._part(path, self._inputs[long_name], keys[n:])
        known = ", ".join(self._inputs)[:200]
        raise BadPlace(f"its payload names the input {name}, and its inputs are {known}")

    def _part(self, path: str, found: Input, keys: Sequence[str]) -> Any:
        if found.is_large:
            raise BadPlace(f"its payload names {path}, whose result is too large for a payload; read it in the handler")
        value = found.result
        for key in keys:
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise BadPlace(f"its payload names {path}, and the result of job {found.id} has no {key}") from None
        return value

"""Forms cut anywhere are read alike, and what is too much is refused where it is seen."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from jobd.files.storage import FileStorage
from jobd.http.openai import upload
from jobd.http.openai.upload import read_upload
from jobd.openai.errors import OpenAIError
from jobd.store.ids import new_id
from jobd.wire.problems import ApiError
from tests.support.forms import TYPE, file_form

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONTENT = b"\r\n--b0undar" * 3 + b"\r\n--b0undary x"
FORM = file_form(CONTENT, expires="x")


class Written:
    """Takes what would go to the disk."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.pieces.append(data)


def request(parts: Sequence[bytes], *, left: bool = False) -> Request:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.disconnect"} if left else {"type": "http.request", "body": b"", "more_body": False})
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting)

    headers = [(name.lower().encode(), value.encode()) for name, value in TYPE.items()]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def read(parts: Sequence[bytes], limit: int = 10_000, *, left: bool = False) -> tuple[Any, list[bytes]]:
    written = Written()
    form = await read_upload(request(parts, left=left), written, limit, lambda: None)  # type: ignore[arg-type]
    return form, written.pieces


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    at = [0, *sorted(place % len(text) for place in places), len(text)]
    return [text[low:high] for low, high in itertools.pairwise(at)]


@given(st.lists(st.integers(0, len(FORM)), max_size=20))
def test_a_form_is_read_alike_wherever_it_is_cut(places: list[int]) -> None:
    form, pieces = anyio.run(read, cut(FORM, places))

    assert b"".join(pieces) == CONTENT
    assert (form.fields, form.filename, form.size) == ({"purpose": "batch", "expires": "x"}, "in.jsonl", len(CONTENT))


async def test_pieces_are_as_large_as_they_should_be_and_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", 1000)
    text = file_form(b"x" * 9_500)

    _, pieces = await read(cut(text, range(0, len(text), 100)))

    assert sum(map(len, pieces)) == 9_500
    assert max(map(len, pieces)) <= 1_100


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False), (100_000, False)])
async def test_a_file_over_the_limit_is_refused_while_it_comes(size: int, fits: bool) -> None:
    parts = cut(file_form(b"x" * size), range(0, size, 10))

    if fits:
        assert (await read(parts, limit=100))[0].size == size
    else:
        with pytest.raises(OpenAIError, match=r"limit of \[openai\] max_file_bytes") as refused:
            await read(parts, limit=100)
        assert refused.value.error_code == "file_too_large"


async def test_a_form_that_never_ends_is_refused() -> None:
    with pytest.raises(OpenAIError) as refused:
        await read([b"x" * 50_000, b"x" * 50_000])

    assert refused.value.error_code == "bad_form"


async def test_who_leaves_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        await read([FORM[:-30]], left=True)


async def test_a_check_that_fails_ends_the_upload_and_nothing_is_left(tmp_path: Path) -> None:
    def check() -> None:
        raise ApiError("disk_low", "no room")

    with pytest.raises(ApiError, match="no room"):
        async with FileStorage(tmp_path).new_file(new_id()) as writer:
            await read_upload(request([FORM]), writer, 10_000, check)

    assert list(FileStorage(tmp_path).walk()) == []

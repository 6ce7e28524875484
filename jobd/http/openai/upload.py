"""A multipart form with one file, read as it arrives: the file goes to the disk in pieces, never into memory whole.

Fields may come before the file or behind it. What is too much of anything is refused where it is seen: bytes of the
file, bytes of a field, number of parts. python-multipart finds the boundaries; this module decides what they enclose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from jobd.http.body import content_type, header
from jobd.openai.errors import InvalidCall, refused
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from jobd.files.storage import FileWriter
    from jobd.openai.errors import OpenAIError

#: Bytes of the file that are gathered for one write: a hop to a thread costs as much as writing 256 KB.
PIECE_BYTES = 1024 * 1024
#: Largest value of a field in bytes; none that is known is longer than 20.
FIELD_BYTES = 1024
#: Most parts of a form.
MAX_PARTS = 16
#: Bytes that the form may have beside the file: boundaries, headers of parts, fields.
FORM_BYTES = 64 * 1024
#: Longest name of a file in characters.
NAME_CHARS = 255


class UploadForm:
    """What a form holds; the file itself goes where the caller says."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Text of each field.
        self.fields: dict[str, str] = {}
        #: Name of the file; None: there was none in the form.
        self.filename: str | None = None
        #: Bytes of the file that nobody has taken yet.
        self.pending = bytearray()
        #: Bytes of the file so far.
        self.size = 0
        self.is_whole = False
        self._parts = 0
        self._header = b""
        self._header_value = b""
        self._disposition = b""
        #: Name of the field that is being read; None: it is the file.
        self._field: str | None = None
        self._value = bytearray()

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_header_name,
                "on_header_value": self._add_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def take(self) -> bytes:
        taken = bytes(self.pending)
        self.pending.clear()
        return taken

    # -- what the parser calls ---------------------------------------------------------------------------------

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _bad_form(f"the form has more than {MAX_PARTS} parts")
        self._disposition = b""
        self._header, self._header_value = b"", b""
        self._value.clear()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header, self._header_value = b"", b""

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise _bad_form("a part has no Content-Disposition: form-data with a name")
        name = _text(options[b"name"], "the name of a part")
        if name == "file":
            if self.filename is not None:
                raise _bad_form("the form has two files; send one")
            self._field = None
            self.filename = _file_name(options.get(b"filename", b""))
        elif name in self.fields:
            raise _bad_form(f"the field {name[:64]!r} was sent twice; send it once")
        else:
            self._field = name

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is not None:
            self._value += data[start:end]
            if len(self._value) > FIELD_BYTES:
                raise _bad_form(f"the field {self._field[:64]!r} has more than {FIELD_BYTES} bytes")
            return
        self.size += end - start
        if self.size > self._limit:
            raise too_large(self._limit)
        self.pending += data[start:end]

    def _end_part(self) -> None:
        if self._field is not None:
            self.fields[self._field] = _text(bytes(self._value), f"the field {self._field[:64]!r}")

    def _end(self) -> None:
        self.is_whole = True


async def read_upload(request: Request, writer: FileWriter, limit: int, check: Callable[[], None]) -> UploadForm:
    """Read the form of a request, its file into `writer`; `check` is called before each write and may raise.

    Raises OpenAIError, ApiError, FileNotKept, and ClientDisconnect if the client has left.
    """
    form = UploadForm(limit)
    parser = form.parser(_boundary(request))
    if int(header(request, b"content-length") or 0) > limit + FORM_BYTES:
        raise too_large(limit)
    received, has_more = 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        received += len(part)
        if received > limit + FORM_BYTES:
            raise too_large(limit)
        try:
            parser.write(part)
        except MultipartParseError as error:
            raise _bad_form(f"the body is no multipart form: {error}") from None
        if len(form.pending) >= PIECE_BYTES or (form.pending and not has_more):
            check()
            await writer.write(form.take())
    if not form.is_whole:
        raise _bad_form("the body ends before the last boundary of its form")
    if form.filename is None:
        raise InvalidCall("file", "the form has no file: send it as the part `file`")
    return form


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(content_type(request))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise ApiError(
            "unsupported_media_type", f"Content-Type is {kind.decode('latin-1')[:64]!r}; send multipart/form-data"
        )
    if not 1 <= len(boundary) <= 200:
        raise _bad_form("Content-Type names no boundary of 1 to 200 characters")
    if header(request, b"content-encoding") not in (None, b"identity"):
        raise ApiError("unsupported_media_type", "Content-Encoding is not supported; send the form as it is")
    return boundary


def _file_name(raw: bytes) -> str:
    """Without folders: what is in front of it says something about another machine."""
    name = _text(raw, "the name of the file").replace("\\", "/").rpartition("/")[2]
    if not name or name in (".", "..") or len(name) > NAME_CHARS or not name.isprintable():
        raise InvalidCall("file", f"the file needs a name of 1 to {NAME_CHARS} printable characters")
    return name


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _bad_form(f"{what} is not UTF-8") from None


def _bad_form(why: str) -> OpenAIError:
    return refused("bad_form", why)


def too_large(limit: int) -> OpenAIError:
    return refused(
        "file_too_large",
        f"the file has more than {limit} bytes, the limit of [openai] max_file_bytes; split it, or raise the limit",
    )

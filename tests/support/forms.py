"""Multipart forms by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.http import Answer, Api

BOUNDARY = "b0undary"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, content: bytes | str, filename: str | None = None) -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    data = content if isinstance(content, bytes) else content.encode()
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def file_form(content: bytes, purpose: str = "batch", filename: str = "in.jsonl", **fields: str) -> bytes:
    more = [part(name, value) for name, value in fields.items()]
    return form(part("purpose", purpose), *more, part("file", content, filename))


def send_file(api: Api, content: bytes, purpose: str = "batch", filename: str = "in.jsonl", **fields: str) -> Answer:
    return api("POST", "/v1/files", file_form(content, purpose, filename, **fields), TYPE)

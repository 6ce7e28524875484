"""Reads what a Linux program or library asks of the machine, and leaves out what only a debugger reads.

Everything comes from the program headers and the dynamic section, as for the loader itself, so it holds for stripped
files too and for every architecture alike: no binutils of another architecture are needed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MACHINES = {62: "x86_64", 183: "aarch64"}
MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _RPATH, _RUNPATH, _VERNEED, _VERNEEDNUM = 1, 5, 15, 29, 0x6FFFFFFE, 0x6FFFFFFF
_HEADER_BYTES = 64


class Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


class Elf(NamedTuple):
    machine: str
    #: The libraries it needs (DT_NEEDED), and where the loader searches for them besides the system's folders.
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    #: Versions of symbols it asks for, such as GLIBC_2.34.
    versions: frozenset[str]

    @property
    def glibc(self) -> tuple[int, ...]:
        """The oldest glibc that has all the symbols it asks for."""
        found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version) for version in self.versions]
        return max(((int(match[1]), int(match[2])) for match in found if match), default=(2, 0))


def is_elf(content: bytes) -> bool:
    return content.startswith(MAGIC)


def read(content: bytes) -> Elf:
    if content[4:6] != b"\x02\x01":
        raise ValueError("it is not a 64-bit little-endian program")
    (machine,) = struct.unpack_from("<H", content, 18)
    segments = _segments(content)
    dynamic = [entry for segment in segments if segment.kind == _DYNAMIC for entry in _dynamic(content, segment)]
    values = dict(dynamic)
    strings = _at(segments, values[_STRTAB]) if _STRTAB in values else 0
    path = _text(content, strings + values.get(_RUNPATH, values.get(_RPATH, 0))) if strings else ""
    return Elf(
        machine=MACHINES.get(machine, f"machine {machine}"),
        needed=tuple(_text(content, strings + value) for tag, value in dynamic if tag == _NEEDED),
        runpath=tuple(part for part in path.split(":") if part),
        versions=frozenset(_versions(content, segments, values, strings)),
    )


def strip(content: bytes) -> bytes:
    """Without all that the loader never reads: symbols for debuggers and the table of sections.

    Bytes outside every segment are blanked and cut off at the end, so nothing that stays moves.
    """
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    kept = [(0, _HEADER_BYTES), (table, table + size * count)]
    kept += [(segment.offset, segment.offset + segment.size) for segment in _segments(content) if segment.size]
    stripped = bytearray(max(end for _, end in kept))
    for start, end in kept:
        stripped[start:end] = content[start:end]
    struct.pack_into("<Q", stripped, 40, 0)
    struct.pack_into("<HHH", stripped, 58, 0, 0, 0)
    return bytes(stripped)


def _segments(content: bytes) -> list[Segment]:
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    found = []
    for number in range(count):
        kind, _, offset, address, _, bytes_in_file = struct.unpack_from("<IIQQQQ", content, table + number * size)
        found.append(Segment(kind, offset, address, bytes_in_file))
    return found


def _dynamic(content: bytes, segment: Segment) -> Iterator[tuple[int, int]]:
    for offset in range(segment.offset, segment.offset + segment.size, 16):
        tag, value = struct.unpack_from("<qQ", content, offset)
        if tag == 0:
            return
        yield tag, value


def _versions(content: bytes, segments: list[Segment], values: dict[int, int], strings: int) -> Iterator[str]:
    if _VERNEED not in values:
        return
    library = _at(segments, values[_VERNEED])
    for _ in range(values[_VERNEEDNUM]):
        _, count, _, first, following = struct.unpack_from("<HHIII", content, library)
        version = library + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", content, version)
            yield _text(content, strings + name)
            version += step
        library += following


def _at(segments: list[Segment], address: int) -> int:
    """The offset in the file of what is loaded at `address`."""
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    raise ValueError(f"nothing is loaded at address {address:#x}")


def _text(content: bytes, offset: int) -> str:
    return content[offset : content.index(b"\0", offset)].decode()

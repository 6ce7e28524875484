"""Writes the one file: a zip that Python starts, with the bootstrap, a list of files and their content.

    #!/usr/bin/env python3
    __main__.py  _jobd_tree.py  _jobd_unpack.py    the bootstrap, from bootstrap/
    _jobd_about.py                                 version, target, and per Python the number and size of its files
    manifest.json                                  [Python, path, mode, offset, packed size, size, SHA-256] per file
    files.bin                                      the files, each deflated by itself, stored; equal ones once

Few entries keep the start quick, since Python reads the whole table of a zip each time. The same input gives the same
bytes: order, times and modes are fixed. (Another release of zlib may pack differently.)
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contents import Tree

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
SHEBANG = b"#!/usr/bin/env python3\n"
#: 9 would save another 0.3 % for almost three times the time.
LEVEL = 6
KEY_DIGITS = 16
BEGINNING = (1980, 1, 1, 0, 0, 0)


def write(out: Path, trees: dict[str, Tree], *, version: str, target: str, glibc: str) -> None:
    """Write the file for `trees`, which maps a Python, such as cp310, to all its files."""
    payload, places = _payload(trees)
    manifest = _manifest(trees, places)
    about = {
        "version": version,
        "target": target,
        "glibc": glibc,
        "key": hashlib.sha256(manifest).hexdigest()[:KEY_DIGITS],
        "trees": {
            tag: {"files": len(tree), "bytes": sum(len(file.content) for file in tree.values())}
            for tag, tree in sorted(trees.items())
        },
    }
    entries = {path.name: path.read_bytes() for path in sorted(BOOTSTRAP.glob("*.py"))}
    entries["_jobd_about.py"] = f"ABOUT = {json.dumps(about, sort_keys=True)}\n".encode()
    entries["manifest.json"] = manifest
    _replace(out, _zipped(entries, payload))


def _payload(trees: dict[str, Tree]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """All contents packed, each once, and where each is by its SHA-256."""
    files = [file for _, tree in sorted(trees.items()) for _, file in sorted(tree.items())]
    contents = {_digest(file.content): file.content for file in files}
    payload, places = io.BytesIO(), {}
    with ThreadPoolExecutor() as pool:
        for digest, packed in zip(
            contents, pool.map(lambda content: zlib.compress(content, LEVEL), contents.values()), strict=True
        ):
            places[digest] = (payload.tell(), len(packed))
            payload.write(packed)
    return payload.getvalue(), places


def _manifest(trees: dict[str, Tree], places: dict[str, tuple[int, int]]) -> bytes:
    lines = []
    for path in sorted({path for tree in trees.values() for path in tree}):
        owners = {tag: tree[path] for tag, tree in sorted(trees.items()) if path in tree}
        is_shared = len(owners) == len(trees) and len(set(owners.values())) == 1
        for tag, file in [("all", next(iter(owners.values())))] if is_shared else owners.items():
            digest = _digest(file.content)
            mode = 0o755 if file.executable else 0o644
            lines.append([tag, path, mode, *places[digest], len(file.content), digest])
    return json.dumps(lines, separators=(",", ":")).encode()


def _zipped(entries: dict[str, bytes], payload: bytes) -> bytes:
    out = io.BytesIO()
    out.write(SHEBANG)
    with zipfile.ZipFile(out, "a") as archive:
        for name, content in sorted(entries.items()):
            archive.writestr(_info(name, zipfile.ZIP_DEFLATED), content, compresslevel=LEVEL)
        archive.writestr(_info("files.bin", zipfile.ZIP_STORED), payload)
    return out.getvalue()


def _info(name: str, method: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, BEGINNING)
    info.compress_type = method
    info.create_system = 3  # unix, wherever it is built
    info.external_attr = 0o100644 << 16
    return info


def _replace(out: Path, content: bytes) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".new")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.rename(out)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

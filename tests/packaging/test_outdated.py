"""What of a lock is outdated, withdrawn or has a known hole, by an index on this machine."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import outdated
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHA = "a" * 64


def link(filename: str, sha256: str = "b" * 64, more: str = "") -> str:
    return f'<a href="../../files/{filename}#sha256={sha256}" {more}>{filename}</a>\n'


PINNED = link("thing-1.0-py3-none-any.whl", SHA, 'data-requires-python="&gt;=3.10"')


class Index:
    def __init__(self, url: str) -> None:
        self.url = url
        #: Path -> body; anything else is a 404.
        self.pages: dict[str, str] = {}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served.pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Index(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple/")
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def run(lock: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    lock.write_text(f"thing==1.0 --hash=sha256:{SHA}\n")
    monkeypatch.setattr("sys.argv", ["outdated.py", "--lock", str(lock), *more])
    code = outdated.main()
    return code, capsys.readouterr().out


NO_HOLES = json.dumps({"vulnerabilities": []})
HOLE = json.dumps({"vulnerabilities": [{"id": "PYSEC-1", "fixed_in": ["1.1"]}, {"id": "OLD", "withdrawn": "2026"}]})
CASES = {
    "current": (PINNED, NO_HOLES, 0, "1 pins compared"),
    "newer": (PINNED + link("thing-1.2-py3-none-any.whl"), NO_HOLES, 0, "outdated   thing 1.0 (Python 3.10): 1.2"),
    "newer sdist": (PINNED + link("thing-1.2.tar.gz"), NO_HOLES, 0, "outdated   thing 1.0 (Python 3.10): 1.2"),
    "newer for other Pythons": (
        PINNED + link("thing-2-py3-none-any.whl", more='data-requires-python="&gt;=3.11"'),
        NO_HOLES,
        0,
        "1 pins compared",
    ),
    "pre-release": (PINNED + link("thing-2.0rc1-py3-none-any.whl"), NO_HOLES, 0, "1 pins compared"),
    "newer but withdrawn": (
        PINNED + link("thing-2-py3-none-any.whl", more="data-yanked"),
        NO_HOLES,
        0,
        "1 pins compared",
    ),
    "withdrawn": (
        link("thing-1.0-py3-none-any.whl", SHA, 'data-yanked="loses data"'),
        NO_HOLES,
        1,
        "WITHDRAWN  thing 1.0 (Python 3.10): loses data",
    ),
    "hole": (PINNED, HOLE, 1, "HOLE       thing 1.0 (Python 3.10): PYSEC-1 (mended in 1.1)"),
    "holes not listed": (PINNED, None, 3, "NOT CHECKED: known holes of 1 pins"),
    "not the pinned file": (
        link("thing-1.0-py3-none-any.whl"),
        NO_HOLES,
        3,
        "NOT CHECKED: the index at hand does not have",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_and_exit_codes(
    case: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, details, strict_code, line = CASES[case]
    index.pages["/simple/thing/"] = page
    if details is not None:
        index.pages["/pypi/thing/1.0/json"] = details

    code, said = run(tmp_path / "lock", monkeypatch, capsys)
    strict, _ = run(tmp_path / "lock", monkeypatch, capsys, "--strict")

    assert (code, strict) == (0, strict_code)
    assert said.splitlines()[0].startswith(line), said


def test_without_a_network_it_says_so_and_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")

    code, said = run(tmp_path / "lock", monkeypatch, capsys)
    strict, _ = run(tmp_path / "lock", monkeypatch, capsys, "--strict")

    assert (code, strict) == (0, 3)
    assert said == "NOT CHECKED: the package index does not answer; nothing of 1 pins was compared\n"

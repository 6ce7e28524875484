"""`/v1/files` from outside: what was sent comes back, bad forms change nothing, and half a file leaves nothing."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.forms import BOUNDARY, TYPE, file_form, form, part, send_file
from tests.support.raw_http import dial, exchange
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.daemon import Jobd
    from tests.support.http import Api

#: No end of a line, a boundary that is not one, and bytes that are no text.
BYTES = b'{"a": 1}\r\n--b0undar\r\n\x00\xff--b0undary' + bytes(range(256))


def files_in(daemon: Jobd) -> set[Path]:
    return set((Path(daemon.data_dir) / "files").glob("??/*"))


def test_a_file_comes_back_as_it_was_sent(api: Api) -> None:
    sent = send_file(api, BYTES, "user_data", "notes é.bin")
    file = sent.json
    content = api("GET", f"/v1/files/{file['id']}/content")

    assert sent.status == 200, sent
    assert file == {
        "id": file["id"],
        "object": "file",
        "bytes": len(BYTES),
        "created_at": file["created_at"],
        "filename": "notes é.bin",
        "purpose": "user_data",
        "status": "processed",
        "expires_at": None,
    }
    assert api("GET", f"/v1/files/{file['id']}").json == file
    assert (content.status, content.headers["content-type"], content.body) == (200, "application/octet-stream", BYTES)


def test_the_file_may_come_before_the_fields(api: Api) -> None:
    body = form(
        part("file", b"x", "C:\\folder\\in.jsonl"),
        part("expires_after[seconds]", "3600"),
        part("expires_after[anchor]", "created_at"),
        part("purpose", "batch"),
    )

    file = api("POST", "/v1/files", body, TYPE).json

    assert (file["filename"], file["purpose"], file["bytes"]) == ("in.jsonl", "batch", 1)
    assert file["expires_at"] - file["created_at"] == 3600


def test_a_file_of_a_batch_is_kept_for_a_month_and_an_empty_one_is_a_file(api: Api) -> None:
    file = send_file(api, b"").json

    assert file["bytes"] == 0
    assert file["expires_at"] - file["created_at"] == 30 * 86_400
    assert api("GET", f"/v1/files/{file['id']}/content").body == b""


def test_a_file_of_many_pieces_is_whole(api: Api, daemon: Jobd) -> None:
    content = os.urandom(3_000_001)

    file = send_file(api, content).json

    assert api("GET", f"/v1/files/{file['id']}/content").body == content
    (path,) = [path for path in files_in(daemon) if path.stat().st_size == len(content)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_deleted_file_is_gone_with_its_bytes(api: Api, daemon: Jobd) -> None:
    before = files_in(daemon)
    file_id = send_file(api, b"x").json["id"]
    (path,) = files_in(daemon) - before

    deleted = api("DELETE", f"/v1/files/{file_id}")

    assert deleted.json == {"id": file_id, "object": "file", "deleted": True}
    assert not path.exists()
    for method, after in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert api(method, f"/v1/files/{file_id}{after}").status == 404


def test_lists_have_pages_in_both_orders_and_by_purpose(api: Api) -> None:
    mine = [send_file(api, b"x", purpose).json["id"] for purpose in ("batch", "user_data", "batch", "user_data")]

    def pages(query: str) -> list[str]:
        ids: list[str] = []
        after = ""
        while True:
            page = api("GET", f"/v1/files?limit=1{query}{after}").json
            assert page["object"] == "list"
            assert [page["first_id"], page["last_id"]] == [file["id"] for file in page["data"]] * 2
            ids += [file["id"] for file in page["data"]]
            if not page["has_more"]:
                return ids
            after = f"&after={page['last_id']}"

    assert [file_id for file_id in pages("") if file_id in mine] == mine[::-1]
    assert [file_id for file_id in pages("&order=asc") if file_id in mine] == mine
    assert [file_id for file_id in pages("&purpose=batch") if file_id in mine] == [mine[2], mine[0]]
    assert api("GET", "/v1/files?purpose=batch_output").json["data"] == []


GOOD = (part("purpose", "batch"), part("file", b"x", "a"))
SENT = {
    "no purpose": (form(GOOD[1]), 400),
    "unknown purpose": (form(part("purpose", "fine-tune"), GOOD[1]), 400),
    "purpose of jobd": (form(part("purpose", "batch_output"), GOOD[1]), 400),
    "no file": (form(GOOD[0]), 400),
    "file without a name": (form(GOOD[0], part("file", b"x")), 400),
    "file with a folder for a name": (form(GOOD[0], part("file", b"x", "a/..")), 400),
    "file with a long name": (form(GOOD[0], part("file", b"x", "a" * 256)), 400),
    "two files": (form(*GOOD, GOOD[1]), 400),
    "a field twice": (form(*GOOD, GOOD[0]), 400),
    "a field that is not known": (form(*GOOD, part("model", "m")), 400),
    "a long field": (form(*GOOD, part("x", "y" * 2000)), 400),
    "many parts": (form(*GOOD, *(part(f"x{n}", "y") for n in range(20))), 400),
    "expiry without an anchor": (form(*GOOD, part("expires_after[seconds]", "3600")), 400),
    "another anchor": (
        form(*GOOD, part("expires_after[anchor]", "now"), part("expires_after[seconds]", "3600")),
        400,
    ),
    **{
        f"expiry of {seconds}": (
            form(*GOOD, part("expires_after[anchor]", "created_at"), part("expires_after[seconds]", seconds)),
            400,
        )
        for seconds in ("3599", "2592001", "1e4", "", "-1", "9" * 30)
    },
    "no boundary at the end": (b"".join(GOOD), 400),
    "cut in the file": (form(*GOOD)[:-20], 400),
    "no form at all": (b"hello", 400),
    "nothing": (b"", 400),
    "a part without a name": (f"--{BOUNDARY}\r\nX: y\r\n\r\nz\r\n--{BOUNDARY}--\r\n".encode(), 400),
    "a name that is not UTF-8": (form(GOOD[0], part("file", b"x", "a").replace(b'"a"', b'"\xff"')), 400),
}


@pytest.mark.parametrize("name", SENT)
def test_a_bad_form_is_refused_and_leaves_nothing(api: Api, daemon: Jobd, name: str) -> None:
    body, status = SENT[name]
    before = files_in(daemon), api("GET", "/v1/files").json

    answer = api("POST", "/v1/files", body, TYPE)

    assert answer.status == status, answer
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert (files_in(daemon), api("GET", "/v1/files").json) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": ""},
        {**TYPE, "Content-Encoding": "gzip"},
    ],
)
def test_what_is_no_form_is_not_read(api: Api, headers: dict[str, str]) -> None:
    assert api("POST", "/v1/files", file_form(b"x"), headers).status == 415


def test_a_form_needs_a_boundary(api: Api) -> None:
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'x' * 201}"):
        assert api("POST", "/v1/files", file_form(b"x"), {"Content-Type": kind}).status == 400


def test_a_file_over_the_limit_is_refused_before_it_is_sent(daemon: Jobd) -> None:
    before = files_in(daemon)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE['Content-Type']}\r\n"
        f"Content-Length: {300 << 20}\r\n\r\n"
    )

    answer, _ = exchange(daemon.address, head.encode())

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"[openai] max_file_bytes" in answer
    assert files_in(daemon) == before


def test_a_client_that_leaves_in_the_middle_leaves_nothing(daemon: Jobd, api: Api) -> None:
    before = files_in(daemon)
    body = file_form(b"x" * 3_000_000)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE['Content-Type']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    with dial(daemon.address) as connection:
        connection.sendall(head.encode() + body[:2_500_000])
        wait_until(lambda: any(path.name.startswith(".") for path in files_in(daemon) - before))

    wait_until(lambda: files_in(daemon) == before)
    assert all(file["bytes"] != 3_000_000 for file in api("GET", "/v1/files").json["data"])


@pytest.mark.parametrize("name", ["file-", "file-zz", "x", "file-" + "0" * 32, "file-" + "0" * 33])
def test_an_unknown_file_is_unknown_everywhere(api: Api, name: str) -> None:
    for method, after in itertools.product(("GET", "DELETE"), ("", "/content")):
        if (method, after) != ("DELETE", "/content"):
            assert api(method, f"/v1/files/{name}{after}").status == 404
    assert api("GET", f"/v1/files?after={name}").status == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up", "purpose=x", "color=red"])
def test_a_bad_query_is_refused(api: Api, query: str) -> None:
    assert api("GET", f"/v1/files?{query}").status == 400

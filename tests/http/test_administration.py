"""`/v1/config` and `/v1/audit`: what an administrator reads, without secrets and page by page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from jobd import Client
from jobd.auth.token import new_token
from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

BAD_QUERIES = {
    "/v1/config?section=auth": "unknown parameter 'section'",
    "/v1/audit?limit=0": "parameter limit",
    "/v1/audit?limit=501": "parameter limit",
    "/v1/audit?before=0": "parameter before",
    "/v1/audit?before=9223372036854775808": "parameter before",
    "/v1/audit?before=x": "parameter before",
    "/v1/audit?limit=1&limit=2": "parameter limit was sent twice",
    "/v1/audit?after=1": "unknown parameter 'after'",
}


def test_configuration_in_force_is_shown_by_section(api: Api) -> None:
    config = api("GET", "/v1/config").json["config"]

    assert config["queues"]["default"]["slots"] == 0  # as the file of this jobd says
    assert config["server"]["host"] == "127.0.0.1"  # a default


def test_secrets_of_the_configuration_are_masked(jobd: Callable[..., Jobd]) -> None:
    token = new_token()
    tokens = [{"name": "ann", "sha256": token.sha256.hex(), "scopes": ["admin"]}]
    daemon = jobd(JOBD_AUTH_TOKENS=json.dumps(tokens)).start().until_ready()

    answer = Api(daemon.address, {"Authorization": f"Bearer {token.text}"})("GET", "/v1/config")

    assert answer.json["config"]["auth"]["tokens"][0]["name"] == "ann"
    assert token.sha256.hex().encode() not in answer.body


def test_audit_log_is_read_newest_first_page_by_page(api: Api, workers: DatabaseWorkers) -> None:
    for number in range(5):
        workers.rows("INSERT INTO audit (actor, action, subject) VALUES ('ann', 'test.act', $1)", f"thing {number}")

    first = api("GET", "/v1/audit?limit=3").json
    second = api("GET", f"/v1/audit?limit=2&before={first['next']}").json

    assert [entry["subject"] for entry in first["entries"]] == ["thing 4", "thing 3", "thing 2"]
    assert [entry["subject"] for entry in second["entries"]] == ["thing 1", "thing 0"]
    assert (first["entries"][0]["actor"], first["entries"][0]["action"]) == ("ann", "test.act")


def test_last_page_of_the_audit_log_leads_nowhere(api: Api) -> None:
    assert api("GET", "/v1/audit?before=1").json == {"entries": [], "next": None}


@pytest.mark.parametrize(("path", "detail"), BAD_QUERIES.items(), ids=range(len(BAD_QUERIES)))
def test_bad_query_is_refused_by_name(api: Api, path: str, detail: str) -> None:
    answer = api("GET", path)

    assert (answer.status, answer.code) == (422, "invalid")
    assert detail in answer.json["detail"]


def test_client_reads_both(daemon: Jobd) -> None:
    with Client(f"http://{daemon.address}") as client:
        assert client.config()["queues"]["default"]["slots"] == 0
        assert client.audit(limit=1, before=1).entries == []

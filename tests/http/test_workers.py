"""`/v1/workers`: who works, by what kind, and on what."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from jobd.http.lease_holders import kind_of
from jobd.wire.progress import share_in

if TYPE_CHECKING:
    from tests.support.http import Api

KINDS = {
    f"slots:board-7:{uuid.uuid4()}": "slots",
    f"board-7:{uuid.uuid4()}": "http",
    "redis:consumer-1": "redis",
    f"redis:{uuid.uuid4()}": "redis",
    "jetson": "http",
    "jetson:1": "http",
    "a\nb": "http",
}

SHARES: list[tuple[Any, float | None]] = [
    ({"progress": 0.25}, 0.25),
    ({"percent": 40}, 0.4),
    ({"progress": 7}, 1.0),
    ({"progress": -1}, 0.0),
    ({"progress": "half", "percent": 50}, 0.5),
    ({"progress": True}, None),
    ({}, None),
    ([0.5], None),
    (None, None),
]


@pytest.mark.parametrize(("owner_id", "kind"), KINDS.items(), ids=range(len(KINDS)))
def test_kind_is_told_by_the_name(owner_id: str, kind: str) -> None:
    assert kind_of(owner_id) == kind


@pytest.mark.parametrize(("data", "share"), SHARES, ids=range(len(SHARES)))
def test_share_is_read_from_whatever_a_worker_tells(data: Any, share: float | None) -> None:
    assert share_in(data) == share


def test_held_jobs_are_told_only_when_asked_for(api: Api) -> None:
    assert api("GET", "/v1/workers").json["held"] == []

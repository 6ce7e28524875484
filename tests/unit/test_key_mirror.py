from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_ids
from jobd.stream import idempotency_keys
from jobd.stream.connection import Transport
from jobd.stream.idempotency_keys import MOST_AT_ONCE, KeyMirror

if TYPE_CHECKING:
    import pytest


async def test_keys_do_not_pile_up_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "MOST_WAITING", MOST_AT_ONCE + 3)
    mirror = KeyMirror(Transport("redis://127.0.0.1:1"))

    for n, job_id in enumerate(new_ids(MOST_AT_ONCE + 10)):
        mirror.copy_later(f"key-{n}", job_id, 60)

    assert len(mirror._waiting) == MOST_AT_ONCE + 3
    assert await mirror.run_once() == 0
    assert len(mirror._waiting) == 3

"""The schedules of the configuration in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobd.config.model import ScheduleConfig
from jobd.schedules.change import ScheduleRefused, delete, edit, pause
from jobd.schedules.reconcile import Reconciled, reconcile
from jobd.schedules.table import list_schedules
from tests.schedules.factories import at, events_of, fire, make, row, seconds_of

if TYPE_CHECKING:
    from jobd.store.postgres import Database


def section(**fields: Any) -> ScheduleConfig:
    return ScheduleConfig(**{"every": "1m", "task": "chat", **fields})


async def test_new_changed_and_removed_ones_are_taken_over(db: Database) -> None:
    first = await reconcile(db, {"a": section(), "b": section()}, now=at(0))
    second = await reconcile(db, {"a": section(), "b": section(every="5m")}, now=at(10))
    third = await reconcile(db, {"b": section(every="5m")}, now=at(20))

    assert (first, second, third) == (Reconciled(2, 0, 0), Reconciled(0, 1, 0), Reconciled(0, 0, 1))
    (left,) = await list_schedules(db, most=10)
    assert (left.name, left.origin, left.occurrence) == ("b", "config", at(300))


async def test_start_with_the_same_configuration_loses_nothing_that_is_due(db: Database) -> None:
    await reconcile(db, {"tick": section(catch_up="all", overlap="allow_all")}, now=at(0))

    again = await reconcile(db, {"tick": section(catch_up="all", overlap="allow_all")}, now=at(170))
    await fire(db, at(171))

    assert (again, await seconds_of(db)) == (Reconciled(), [60, 120])


async def test_changed_expression_fires_nothing_and_pause_stays(db: Database) -> None:
    await reconcile(db, {"tick": section()}, now=at(0))
    await pause(db, "tick", actor="test", now=at(5))

    await reconcile(db, {"tick": section(every="7m")}, now=at(1000))

    changed = await row(db)
    assert changed.is_paused
    assert changed.occurrence is not None
    assert changed.occurrence > at(1000)
    assert await events_of(db) == []


async def test_it_is_changed_by_the_configuration_only(db: Database) -> None:
    await reconcile(db, {"tick": section()}, now=at(0))

    for change in (edit(db, "tick", lambda old: old, actor="test"), delete(db, "tick", actor="test")):
        with pytest.raises(ScheduleRefused, match=r"is in the configuration; change \[schedules.tick\]"):
            await change


async def test_one_of_the_api_becomes_the_configurations(db: Database) -> None:
    await make(db)
    await make(db, "other")

    await reconcile(db, {"tick": section()}, now=at(10))
    await reconcile(db, {}, now=at(20))

    assert [found.name for found in await list_schedules(db, most=10)] == ["other"]

"""Places of limit keys and a pure model of them live through the same histories, and agree at every step.

The model knows which jobs wait, stand in line and run, what may be admitted, by limits at once and by rate, and in
which turn, by weight; the tables must come to the same. Tests at the end take one guard away, and must see it fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from jobd.lifecycle import admit as admit_verb
from jobd.lifecycle.admit import NO_KEY, LimitRule, QueueLimits, admit, set_limit
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from jobd.lifecycle.modes import change_mode
from jobd.lifecycle.pause import pause_task
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import Release, release
from jobd.lifecycle.take import Want, take
from jobd.store.postgres import Database
from tests.lifecycle.table_history import Tables
from tests.support.factories import NOW, POLICY, TTL_S, completion, empty, failure, new_job
from tests.unit.test_machine_properties import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob

EVENTS = (
    "submit submit submit take take complete complete fail release snooze cancel reap promote expire clock limit pause"
)
#: The same with slots that are seldom free, so that many stand in line.
CROWDED = EVENTS + " submit" * 12
KEYS = ("a", "b", None)
PERIOD_S = 60.0
WEIGHTS = (0.5, 1.0, 4.0)
#: Jobs of one key in line where keys take turns: few, so that the bound matters.
IN_LINE = 3


@pytest.fixture
def tables(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    monkeypatch.setattr(admit_verb, "TURNS_IN_LINE", IN_LINE)
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        database = Database(url, 2)
        with portal.wrap_async_context_manager(database.opened()):
            yield Tables(portal, database)


class LimitHistory:
    """What the model knows, and the tables beside it."""

    def __init__(self, tables: Tables, limits: QueueLimits) -> None:
        self.tables = tables
        self.limits = {"default": limits}
        self.fair = limits.fair
        self.rules: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        #: The last turn of each key that has jobs in line or held back, the turn of each job in line, and how far the
        #: turns of the queue have come.
        self.last_turn: dict[str, datetime] = {}
        self.turn_of: dict[UUID, datetime] = {}
        self.turned = datetime.min.replace(tzinfo=NOW.tzinfo)
        self.now: datetime = NOW
        self.key_of: dict[UUID, str | None] = {}
        #: Where jobs are held back: key, then place and id.
        self.held: dict[str, set[tuple[datetime, UUID]]] = defaultdict(set)
        self.places: dict[str, set[tuple[datetime, UUID]]] = defaultdict(set)
        self.starts: dict[str, list[datetime]] = defaultdict(list)
        self.in_line: set[UUID] = set()
        self.running: dict[UUID, ClaimedJob] = {}
        self.place_of: dict[UUID, datetime] = {}
        self.task_of: dict[UUID, str] = {}
        self.expires: dict[UUID, datetime] = {}
        self.delayed: dict[UUID, datetime] = {}
        self.paused: set[UUID] = set()
        self.is_paused = False
        tables.call(empty, tables.database)
        tables.call(change_mode, tables.database, "default", "direct", mode_no=1)

    def call(self, verb: Any, *arguments: Any, **named: Any) -> Any:
        return self.tables.call(verb, self.tables.database, *arguments, now=self.now, **named)

    # What happens

    def submit(self, random: Random) -> None:
        key, delay_s = random.choice(KEYS), random.choice([0.0, 0.0, 0.0, 30.0])
        if self.fair and key is None:
            key = NO_KEY  # as the engine does
        expires_in_s = random.choice([None, None, delay_s + 40.0])
        priority, task = random.randint(0, 2), random.choice(["chat", "embed"])
        job = new_job(limit_key=key, delay_s=delay_s, priority=priority, task=task, expires_in_s=expires_in_s)
        self.call(enqueue, [job])
        self.key_of[job.id], self.task_of[job.id] = key, task
        run_after = self.now + timedelta(seconds=delay_s)
        self.place_of[job.id] = run_after - timedelta(minutes=priority)
        if expires_in_s is not None:
            self.expires[job.id] = self.now + timedelta(seconds=expires_in_s)
        if delay_s:
            self.delayed[job.id] = run_after
        else:
            self._wait(job.id)

    def _wait(self, job_id: UUID) -> None:
        """Its time has come: into the line, or held back by its key."""
        key = self.key_of[job_id]
        if key is None:
            self.in_line.add(job_id)
        else:
            self.held[key].add((self.place_of[job_id], job_id))

    def _leave(self, job_id: UUID) -> None:
        """It neither stands in line nor runs any more."""
        self.in_line.discard(job_id)
        self.running.pop(job_id, None)
        key = self.key_of[job_id]
        if key is not None:
            self.places[key] = {place for place in self.places[key] if place[1] != job_id}
            self.held[key] = {place for place in self.held[key] if place[1] != job_id}

    def take(self, random: Random) -> None:
        most = random.randint(1, 3)
        claims = self.call(take, [Want("default", ["w"] * most)], ttl_s=TTL_S)
        may = {
            job_id
            for job_id in self.in_line
            if not (self.is_paused and self.task_of[job_id] == "chat")
            and (job_id not in self.expires or self.expires[job_id] > self.now)
        }
        first = sorted(may, key=lambda job_id: (self.order_of(job_id), job_id))[:most]
        assert [claimed.job_id for claimed in claims] == first
        for claimed in claims:
            self.in_line.discard(claimed.job_id)
            self.running[claimed.job_id] = claimed
            self.expires.pop(claimed.job_id, None)
            key = self.key_of[claimed.job_id]
            if key is not None:
                self.starts[key].append(self.now)
                self._check_rate(key)
                if self.fair:
                    self.turned = max(self.turned, self.turn_of[claimed.job_id])

    def order_of(self, job_id: UUID) -> datetime:
        return self.turn_of[job_id] if self.fair else self.place_of[job_id]

    def _check_rate(self, key: str) -> None:
        rate = self.limits["default"].rate
        window = [start for start in self.starts[key] if start > self.now - timedelta(seconds=PERIOD_S)]
        assert not rate or key == NO_KEY or len(window) <= rate, f"{len(window)} starts of {key}"

    def some_running(self, random: Random) -> ClaimedJob | None:
        return random.choice(list(self.running.values())) if self.running else None

    def complete(self, claimed: ClaimedJob) -> None:
        self.call(complete, [completion(claimed)])
        self._leave(claimed.job_id)

    def fail(self, claimed: ClaimedJob) -> None:
        self.call(fail, [failure(claimed)], policy=POLICY, jitter=1.0)
        self._leave(claimed.job_id)
        if claimed.attempt_count < claimed.max_attempts:
            self._delay(claimed.job_id, 8.0 * 2 ** (claimed.attempt_count - 1))

    def _delay(self, job_id: UUID, seconds: float) -> None:
        priority = self._priority(job_id)
        self.delayed[job_id] = self.now + timedelta(seconds=seconds)
        self.place_of[job_id] = self.delayed[job_id] - timedelta(minutes=priority)

    def _priority(self, job_id: UUID) -> int:
        row = self.tables.call(self.tables.database.fetchval, "SELECT priority FROM jobs WHERE id = $1", job_id)
        return int(str(row))

    def release(self, claimed: ClaimedJob, delay_s: float = 0.0) -> None:
        proof: dict[str, Any] = {
            "job_id": claimed.job_id,
            "attempt_id": claimed.attempt_id,
            "lease_token": claimed.lease_token,
        }
        self.call(release, [Release(**proof, delay_s=delay_s)])
        if delay_s:
            self._leave(claimed.job_id)
            self._delay(claimed.job_id, delay_s)
        elif (self.limits["default"].rate or self.fair) and self.key_of[claimed.job_id] is not None:
            self._leave(claimed.job_id)
            self._wait(claimed.job_id)
        else:
            del self.running[claimed.job_id]
            self.in_line.add(claimed.job_id)

    def cancel(self, random: Random) -> None:
        waiting = [*self.in_line, *self.delayed, *self.paused, *(job for some in self.held.values() for _, job in some)]
        if waiting:
            job_id = random.choice(sorted(waiting))
            self.call(cancel, [job_id])
            self._gone(job_id)

    def _gone(self, job_id: UUID) -> None:
        self._leave(job_id)
        self.delayed.pop(job_id, None)
        self.paused.discard(job_id)
        self.expires.pop(job_id, None)

    def reap(self) -> None:
        for job in self.call(reap, policy=POLICY, jitter=1.0, most=100):
            claimed = self.running[job.job_id]
            self._leave(job.job_id)
            if job.status == "queued":
                self._delay(job.job_id, 8.0 * 2 ** (claimed.attempt_count - 1))

    def promote(self) -> None:
        promoted = set(self.call(promote_due))
        assert promoted == {job_id for job_id, due in self.delayed.items() if due <= self.now}
        for job_id in promoted:
            del self.delayed[job_id]
            self._wait(job_id)

    def expire(self) -> None:
        expired = set(self.call(expire))
        assert expired == {job_id for job_id, at in self.expires.items() if at <= self.now}
        for job_id in expired:
            self._gone(job_id)

    def pause(self) -> None:
        self.is_paused = not self.is_paused
        self.call(pause_task, "chat", paused=self.is_paused)
        if self.is_paused:
            aside = {job_id for job_id in self.in_line if self.task_of[job_id] == "chat"}
            for job_id in aside:
                self._leave(job_id)
            self.paused |= aside
        else:
            back, self.paused = self.paused, set()
            for job_id in back:
                self._wait(job_id)

    def limit(self, random: Random) -> None:
        key, running = random.choice("ab"), random.randint(0, 3)
        rate = self.limits["default"]
        self.weights[key] = random.choice(WEIGHTS)
        self.rules[key] = running
        rule = LimitRule(
            queue="default",
            key=key,
            running=running,
            rate=rate.rate,
            rate_s=rate.rate_s,
            weight=self.weights[key],
        )
        self.call(set_limit, rule)

    # Admission

    def admit(self) -> None:
        self.call(admit, self.limits)
        for key in self.held:
            self._displace(key)
        if self.fair and not self.in_line:
            self.turned = max(self.turned, self.now)
        for key, waiting in self.held.items():
            is_forgotten = not waiting and not self.of_key_in_line(key)
            for place in sorted(waiting)[: self.room(key)]:
                waiting.discard(place)
                self.places[key].add(place)
                self.in_line.add(place[1])
                self._give_turn(key, place[1])
            if is_forgotten:
                self.last_turn.pop(key, None)

    def _displace(self, key: str) -> None:
        """Jobs in line that are less urgent than one that is held go back: as many as are, or all with turns."""
        if not self.held[key]:
            return
        in_line = sorted(place for place in self.places[key] if place[1] in self.in_line)
        back = [place for place in in_line if place > min(self.held[key])]
        if not self.fair and back:
            urgent = sum(place <= in_line[-1] for place in self.held[key])
            back = back[-urgent:]
        for place in back:
            self.places[key].discard(place)
            self.in_line.discard(place[1])
            self.held[key].add(place)
        if self.fair and back:
            unit = timedelta(milliseconds=1) / self.weights.get(key, 1.0)
            self.last_turn[key] = min(self.turn_of[job_id] for _, job_id in back) - unit

    def _give_turn(self, key: str, job_id: UUID) -> None:
        """One unit after the last turn of its key, and not before what has started already."""
        unit = timedelta(milliseconds=1) / self.weights.get(key, 1.0)
        turn = max(self.last_turn[key] + unit, self.turned) if key in self.last_turn else self.turned
        self.last_turn[key] = self.turn_of[job_id] = turn

    def of_key_in_line(self, key: str) -> int:
        return sum(job_id in self.in_line for _, job_id in self.places[key])

    def room(self, key: str) -> int:
        rooms = [IN_LINE - self.of_key_in_line(key)] if self.fair else []
        if key != NO_KEY:
            rooms += self._limited_room(key)
        return max(0, min(rooms)) if rooms else 10**6

    def _limited_room(self, key: str) -> list[int]:
        running = self.rules.get(key, self.limits["default"].running)
        rooms = [running - len(self.places[key])] if running else []
        rate = self.limits["default"].rate
        if rate:
            window = [start for start in self.starts[key] if start > self.now - timedelta(seconds=PERIOD_S)]
            rooms.append(rate - len(window) - self.of_key_in_line(key))
        return rooms

    # What is promised

    def check(self) -> None:
        rows = self.tables.call(
            self.tables.database.fetch,
            "SELECT id, status, held, order_at, limit_key FROM jobs WHERE finished_at IS NULL",
        )
        in_line = {row["id"]: row["order_at"] for row in rows if row["order_at"] is not None}
        held = {row["id"] for row in rows if row["held"] == "limited"}
        assert in_line.keys() == self.in_line
        if self.fair:
            assert in_line == {job_id: self.turn_of[job_id] for job_id in self.in_line}
        assert {row["id"] for row in rows if row["status"] == "running"} == self.running.keys()
        assert held == {job_id for some in self.held.values() for _, job_id in some}
        places = self.tables.call(self.tables.database.fetch, "SELECT job_id, key FROM limit_places")
        assert Counter((row["job_id"], row["key"]) for row in places) == Counter(
            (row["id"], row["limit_key"])
            for row in rows
            if row["limit_key"] is not None and (row["order_at"] is not None or row["status"] == "running")
        )


LIMITS = [
    QueueLimits(running=1),
    QueueLimits(running=2),
    QueueLimits(rate=2, rate_s=PERIOD_S),
    QueueLimits(fair=True),
    QueueLimits(running=1, rate=3, rate_s=PERIOD_S),
    QueueLimits(fair=True, running=2),
    QueueLimits(fair=True, rate=2, rate_s=PERIOD_S),
    QueueLimits(running=3),
    QueueLimits(),
]


def wander(tables: Tables, random: Random, steps: int, limits: QueueLimits) -> None:
    history = LimitHistory(tables, limits)
    events = random.choice([EVENTS, CROWDED]).split()
    for _ in range(steps):
        event = random.choice(events)
        claimed = history.some_running(random)
        if event in ("submit", "take", "cancel"):
            getattr(history, event)(random)
        elif event == "limit" and not limits.rate:
            history.limit(random)
        elif event in ("reap", "promote", "expire", "pause"):
            getattr(history, event)()
        elif event == "clock":
            history.now += timedelta(seconds=random.choice([1, 10, 25, 61]))
        elif claimed is not None and event in ("complete", "fail", "release"):
            getattr(history, event)(claimed)
        elif claimed is not None and event == "snooze":
            history.release(claimed, 20.0)
        if random.random() < 0.7:
            history.admit()
        history.check()
    history.admit()
    history.check()


@pytest.mark.timeout(180)
def test_tables_and_model_agree_on_who_may_run_in_any_history(tables: Tables) -> None:
    @settings(SETTINGS, max_examples=25)
    @given(seed=st.integers(0, 10**6), limits=st.sampled_from(LIMITS), steps=st.integers(1, 60))
    def any_history(seed: int, limits: QueueLimits, steps: int) -> None:
        wander(tables, Random(seed), steps, limits)

    any_history()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_and_model_agree_in_very_many_histories(tables: Tables) -> None:
    for seed in range(2000):
        wander(tables, Random(seed), 100, LIMITS[seed % len(LIMITS)])


# A guard less

BREAKS = {
    "places are not counted": ("running - places, ", ""),
    "jobs in line do not count for the rate": ("rate - in_line - starts", "rate - starts"),
    "starts do not count for the rate": ("rate - in_line - starts", "rate - in_line"),
    "the least urgent first": (
        "ORDER BY held_place(jobs.run_after, jobs.priority), jobs.id LIMIT",
        "ORDER BY held_place(jobs.run_after, jobs.priority) DESC, jobs.id LIMIT",
    ),
    "a place is not noted": (
        "SELECT id, queue, limit_key, has_rate, attempt_no FROM moved",
        "SELECT id, queue, limit_key, has_rate, attempt_no FROM moved WHERE id IS NULL",
    ),
    "one too many": ("FROM found WHERE nth <= room ORDER BY id", "FROM found ORDER BY id"),
    "any number in line where keys take turns": (", CASE WHEN has_turns THEN $7::integer - in_line END", ""),
    "weights do not count": ("interval '1 millisecond' / r.weight", "interval '1 millisecond'"),
    "a key has its last turn again": ("greatest(last_turn + unit, ", "greatest(last_turn, "),
    "jobs of one key have the same turn": ("turn_at + (nth - 1) * unit ELSE", "turn_at ELSE"),
    "the last turn is not remembered": ("THEN turn_at + (number - 1) * unit END", "THEN turn_at END"),
    "turns that have started do not count": (
        "(SELECT max(n.turn_at) FROM nudged n WHERE n.queue = q.queue),",
        "NULL,",
    ),
    "how far turns have come is not remembered": (
        "SELECT queue, '*', NULL, turn_at FROM turned",
        "SELECT queue, '*', NULL, NULL FROM turned",
    ),
    "a key that was idle has saved turns": ("IS NOT TRUE THEN moment.now", "IS NOT TRUE THEN NULL::timestamptz"),
    "a last turn is never forgotten": ("USING keyed WHERE NOT is_kept AND", "USING keyed WHERE false AND"),
}
BROKEN_DISPLACEMENTS = {
    "nobody is overtaken": ("WHERE (s.place, s.id) > (h.place, h.id)", "WHERE false"),
    "who is more urgent goes back, too": ("WHERE (s.place, s.id) > (h.place, h.id)", ""),
    "the most urgent first": ("ORDER BY s.place DESC, s.id DESC) AS nth", "ORDER BY s.place, s.id) AS nth"),
    "only some of those that take turns": ("WHERE s.has_turns OR s.nth <=", "WHERE s.nth <="),
    "the key does not have its turns again": (
        "FROM displaced WHERE has_turns GROUP",
        "FROM displaced WHERE false GROUP",
    ),
    "its turns are one too early": ("SET turn_at = d.turn_at - interval", "SET turn_at = d.turn_at - 2 * interval"),
}
BROKEN_NOTES = {
    "a start is not counted": ("WHERE o.has_rate AND", "WHERE false AND"),
    "what has started stands in line": ("SET in_line = false, ", "SET "),
    "no key is nudged": ("AS k (key) GROUP BY", "AS k (key) WHERE false GROUP BY"),
}
TRIGGER = "SELECT prosrc FROM pg_proc WHERE proname = 'note_limited'"
BROKEN_TRIGGERS = {
    "a place is not freed": ("WHERE job_id = NEW.id RETURNING", "WHERE false RETURNING"),
    "a start is not noted": ("noted < NEW.attempt_no", "false"),
    "no nudge is left": ("CASE WHEN NEW.held = 'limited' THEN NEW.id END);", "NULL); DELETE FROM jobd.limit_nudges;"),
    "nobody is seen to come": ("CASE WHEN NEW.held = 'limited' THEN NEW.id END", "NULL"),
}


def find_out(tables: Tables) -> None:
    with pytest.raises((AssertionError, asyncpg.PostgresError)):
        for seed in range(80):
            wander(tables, Random(seed), 60, LIMITS[seed % 8])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("broken", BREAKS)
def test_an_admission_without_one_of_its_guards_is_found_out(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    words, others = BREAKS[broken]
    assert admit_verb.ADMIT_JOBS.count(words) == 1
    monkeypatch.setattr(admit_verb, "ADMIT_JOBS", admit_verb.ADMIT_JOBS.replace(words, others))

    find_out(tables)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("broken", BROKEN_DISPLACEMENTS)
def test_a_displacement_without_one_of_its_parts_is_found_out(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    words, others = BROKEN_DISPLACEMENTS[broken]
    assert admit_verb.DISPLACE_JOBS.count(words) == 1
    monkeypatch.setattr(admit_verb, "DISPLACE_JOBS", admit_verb.DISPLACE_JOBS.replace(words, others))

    find_out(tables)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("broken", BROKEN_NOTES)
def test_a_note_of_starts_without_one_of_its_parts_is_found_out(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    words, others = BROKEN_NOTES[broken]
    assert admit_verb.NOTE_STARTS.count(words) == 1
    monkeypatch.setattr(admit_verb, "NOTE_STARTS", admit_verb.NOTE_STARTS.replace(words, others))

    find_out(tables)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("broken", BROKEN_TRIGGERS)
def test_a_trigger_that_forgets_something_is_found_out(tables: Tables, broken: str) -> None:
    source = str(tables.call(tables.database.fetchval, TRIGGER))
    assert source.count(BROKEN_TRIGGERS[broken][0]) == 1
    create = "CREATE OR REPLACE FUNCTION jobd.note_limited() RETURNS trigger LANGUAGE plpgsql AS $body$ {} $body$"

    tables.call(tables.database.execute, create.format(source.replace(*BROKEN_TRIGGERS[broken])))
    try:
        find_out(tables)
    finally:
        tables.call(tables.database.execute, create.format(source))

"""When to start a failed service again: a pure decision over a failure level that decays.

Each failure adds one to the level, and the level halves every `half_life_s`. A rare failure therefore restarts at
once for ever, a burst backs off, and a needed service that cannot live is given up within about half a minute. The cap
on the delay must stay well below the half-life, or the level could never climb to `give_up` (a test holds that).
"""

from __future__ import annotations

import math

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    #: Up to this level a restart is immediate.
    free: float = 2.5
    #: At this level the supervisor stops trying.
    give_up: float = 8.0
    half_life_s: float = 60.0
    base_s: float = 0.25
    cap_s: float = 5.0


class Failures(msgspec.Struct, frozen=True):
    level: float = 0.0
    #: When `level` was true, on the caller's monotonic clock.
    at: float = 0.0


class Restart(msgspec.Struct, frozen=True):
    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    level: float


def level_at(policy: RestartPolicy, failures: Failures, now: float) -> float:
    age = max(0.0, now - failures.at)
    return failures.level * math.pow(0.5, age / policy.half_life_s)


def after_failure(
    policy: RestartPolicy, failures: Failures, *, now: float, unit: float, patient: bool = False
) -> tuple[Failures, Restart | GiveUp]:
    """Decide about one more failure. `unit` in [0, 1) is the jitter; a `patient` failure (of a server that is
    away and may come back, of a service that is not needed) backs off like any other but never ends in giving up."""
    level = level_at(policy, failures, now) + 1.0
    seen = Failures(level, now)
    if level >= policy.give_up and not patient:
        return seen, GiveUp(level)
    if level <= policy.free:
        return seen, Restart(0.0)
    ceiling = min(policy.cap_s, policy.base_s * 2.0 ** min(level - policy.free, 30.0))
    return seen, Restart(ceiling * (0.5 + unit / 2))

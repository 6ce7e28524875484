"""Attempts and backoff: what follows an attempt that did not succeed.

The wait before retry n (0, 1, 2, …) is drawn evenly from 0 to base * 2^n, capped: jobs that failed together must not
come back together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jobd.job.status import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bounds of a snooze in seconds. A shorter one counts as the least, so that a handler which always puts its job off
#: does not keep a worker busy with that; at most 366 days, as for the delay of a new job.
SHORTEST_SNOOZE_S: Final = 1.0
LONGEST_SNOOZE_S: Final = 366 * 86_400

#: 2.0 ** 1024 overflows a double; any cap is reached long before.
_LARGEST_EXPONENT: Final = 1023


class RetryPolicy(Struct, frozen=True, kw_only=True):
    base_s: float = 1.0
    cap_s: float = 300.0
    #: Interruptions after which a job is run again; one more makes it a dead letter.
    max_interruptions: int = 10


#: Policies of tasks that have one of their own: none.
NO_POLICIES: Final[Mapping[str, RetryPolicy]] = {}


class Requeue(Struct, frozen=True):
    delay_s: float


class DeadLetter(Struct, frozen=True):
    reason: DeadLetterReason


def as_arrays(policies: Mapping[str, RetryPolicy]) -> tuple[list[str], list[float], list[float]]:
    """Names, bases and caps, as statements take them; a reaper takes `most_interruptions` besides."""
    return (
        list(policies),
        [policy.base_s for policy in policies.values()],
        [policy.cap_s for policy in policies.values()],
    )


def most_interruptions(policies: Mapping[str, RetryPolicy]) -> list[int]:
    return [policy.max_interruptions for policy in policies.values()]


def backoff_s(policy: RetryPolicy, retry: int, jitter: float) -> float:
    """The wait before this retry (the first is 0), for a `jitter` drawn by the caller from 0 to 1."""
    return min(policy.cap_s, policy.base_s * 2.0 ** min(retry, _LARGEST_EXPONENT)) * jitter


def requeue_or_dead_letter(
    policy: RetryPolicy, *, attempt_count: int, max_attempts: int, retryable: bool, jitter: float
) -> Requeue | DeadLetter:
    """What follows the failure of the newest of `attempt_count` charged attempts."""
    if not retryable:
        return DeadLetter(DeadLetterReason.NOT_RETRYABLE)
    if attempt_count >= max_attempts:
        return DeadLetter(DeadLetterReason.ATTEMPTS_EXHAUSTED)
    return Requeue(backoff_s(policy, attempt_count - 1, jitter))


def requeue_or_give_up(policy: RetryPolicy, *, interruptions: int, jitter: float) -> Requeue | DeadLetter:
    """What follows the newest of `interruptions`: a job that takes its node down with it must not do so for ever."""
    if interruptions > policy.max_interruptions:
        return DeadLetter(DeadLetterReason.INTERRUPTIONS_EXHAUSTED)
    return Requeue(backoff_s(policy, interruptions - 1, jitter))

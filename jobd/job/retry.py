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

#: 2.0 ** 1024 overflows a double; any cap is reached long before.
_LARGEST_EXPONENT: Final = 1023


class RetryPolicy(Struct, frozen=True, kw_only=True):
    base_s: float = 1.0
    cap_s: float = 300.0


#: Policies of tasks that have one of their own: none.
NO_POLICIES: Final[Mapping[str, RetryPolicy]] = {}


class Requeue(Struct, frozen=True):
    delay_s: float


class DeadLetter(Struct, frozen=True):
    reason: DeadLetterReason


def as_arrays(policies: Mapping[str, RetryPolicy]) -> tuple[list[str], list[float], list[float]]:
    """Names, bases and caps, as statements take them."""
    return (
        list(policies),
        [policy.base_s for policy in policies.values()],
        [policy.cap_s for policy in policies.values()],
    )


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

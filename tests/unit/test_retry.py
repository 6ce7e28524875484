from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobd.job.retry import DeadLetter, Requeue, RetryPolicy, backoff_s, requeue_or_dead_letter
from jobd.job.status import DeadLetterReason

POLICY = RetryPolicy(base_s=1.0, cap_s=300.0)
POLICIES = st.builds(
    RetryPolicy,
    base_s=st.floats(min_value=0, max_value=1e6),
    cap_s=st.floats(min_value=0, max_value=1e9),
)
JITTER = st.floats(min_value=0, max_value=1)


@pytest.mark.parametrize(
    ("retry", "longest_s"), [(0, 1), (1, 2), (2, 4), (8, 256), (9, 300), (1024, 300), (10_000, 300)]
)
def test_wait_doubles_up_to_the_cap(retry: int, longest_s: float) -> None:
    assert backoff_s(POLICY, retry, 1.0) == longest_s


@settings(deadline=None)
@given(policy=POLICIES, retry=st.integers(0, 10_000), jitter=JITTER)
def test_wait_lies_between_zero_and_the_cap(policy: RetryPolicy, retry: int, jitter: float) -> None:
    assert 0 <= backoff_s(policy, retry, jitter) <= policy.cap_s


@settings(deadline=None)
@given(policy=POLICIES, retry=st.integers(0, 9_999), jitter=JITTER)
def test_wait_never_shrinks_from_one_retry_to_the_next(policy: RetryPolicy, retry: int, jitter: float) -> None:
    assert backoff_s(policy, retry, jitter) <= backoff_s(policy, retry + 1, jitter)


def test_jitter_covers_the_whole_wait() -> None:
    assert [backoff_s(POLICY, 3, jitter) for jitter in (0.0, 0.25, 1.0)] == [0.0, 2.0, 8.0]


def test_first_failure_waits_up_to_the_base() -> None:
    verdict = requeue_or_dead_letter(POLICY, attempt_count=1, max_attempts=3, retryable=True, jitter=1.0)

    assert verdict == Requeue(1.0)


def test_failure_of_the_last_attempt_is_a_dead_letter() -> None:
    verdict = requeue_or_dead_letter(POLICY, attempt_count=3, max_attempts=3, retryable=True, jitter=1.0)

    assert verdict == DeadLetter(DeadLetterReason.ATTEMPTS_EXHAUSTED)


@pytest.mark.parametrize("attempt_count", [1, 3])
def test_failure_that_is_not_retryable_is_a_dead_letter_at_once(attempt_count: int) -> None:
    verdict = requeue_or_dead_letter(POLICY, attempt_count=attempt_count, max_attempts=3, retryable=False, jitter=1.0)

    assert verdict == DeadLetter(DeadLetterReason.NOT_RETRYABLE)

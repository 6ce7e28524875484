"""W3C Trace Context: what is read of a request's headers, and what is ignored."""

from __future__ import annotations

import pytest

from jobd.wire.trace import NO_TRACE, TraceContext, trace_in

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


def read(*headers: tuple[str, str]) -> TraceContext:
    return trace_in([(name.encode(), value.encode("latin-1")) for name, value in headers])


def test_a_trace_is_read_with_its_state() -> None:
    assert read(("traceparent", GOOD), ("tracestate", "a=1")) == (GOOD, "a=1")


def test_tracestate_headers_are_joined_in_their_order() -> None:
    assert read(("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2")) == (GOOD, "a=1,b=2")


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read(("traceparent", f"cc-{TRACE}-{PARENT}-01-what-comes-then")) == (GOOD, None)


@pytest.mark.parametrize(
    "bad",
    [
        *("", "x", GOOD[:-1], GOOD + "0", GOOD + "-more", GOOD.upper(), "ff" + GOOD[2:], GOOD.replace("-", "_")),
        *(f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[:-1]}-{PARENT}-01", "é" * 55),
        f"cc-{TRACE}-{PARENT}-01.what",
    ],
)
def test_a_malformed_traceparent_is_ignored_and_the_state_with_it(bad: str) -> None:
    assert read(("traceparent", bad), ("tracestate", "a=1")) == NO_TRACE


def test_two_traceparents_are_none() -> None:
    assert read(("traceparent", GOOD), ("traceparent", GOOD)) == NO_TRACE


@pytest.mark.parametrize("state", ["", " ", "a=" + "x" * 511, "a=\x01", "a=é"])
def test_a_state_that_cannot_be_handed_on_is_left_out(state: str) -> None:
    assert read(("traceparent", GOOD), ("tracestate", state)) == (GOOD, None)


def test_a_state_of_512_characters_is_handed_on() -> None:
    state = "a=" + "x" * 510

    assert read(("traceparent", GOOD), ("tracestate", state)).tracestate == state

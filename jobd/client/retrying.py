"""Sending a request until it is answered: again after a cut line or a busy jobd, as long as it cannot do harm."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jobd.client.errors import PASSING, ApiProblem, BadAnswer, ClientError, error_of
from jobd.client.sansio import Flow, Pause, Reply, Send

if TYPE_CHECKING:
    from jobd.client.sansio import ApiRequest, CallSettings, Lost

#: Seconds before the second try; doubled for each further one, with jitter.
FIRST_PAUSE_S = 0.1
#: Longest pause between two tries in seconds.
LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class Patience:
    """How long to go on after things began to fail: pauses that grow, with jitter, for at most `give_up_s`."""

    def __init__(self, give_up_s: float) -> None:
        self._give_up_s = give_up_s
        self._until: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def saw_life(self) -> None:
        """The other side is there; whether it gets anywhere is another question, so pauses stay as they are."""
        self._until = None

    def saw_progress(self) -> None:
        self._until, self._pause_s = None, FIRST_PAUSE_S

    def next_pause_s(self, error: ClientError) -> float | None:
        """How long to wait before the next try, at least what the other side asked for; None: it is time to give up."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._give_up_s
        asked_s = error.retry_after_s or 0.0 if isinstance(error, ApiProblem) else 0.0
        pause_s = asked_s + self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return pause_s if now + pause_s <= self._until else None


def answered(settings: CallSettings, request: ApiRequest, kind: type[T], patience: Patience | None = None) -> Flow[T]:
    """The answer to the request; raises ClientError."""
    patience = patience or Patience(settings.patience_s)
    while True:
        reply: Reply | Lost = yield Send(request)
        if isinstance(reply, Reply) and 200 <= reply.status < 300:
            return decoded(settings, request, reply.body, kind)
        yield from pause_or_raise(settings, request, reply, patience)


def pause_or_raise(settings: CallSettings, request: ApiRequest, reply: Reply | Lost, patience: Patience) -> Flow[None]:
    """Return when it is time for another try; raises ClientError when none would help, or patience is at its end."""
    error = error_of(settings, request, reply)
    pause_s = patience.next_pause_s(error) if _may_try_again(request, reply, error) else None
    if pause_s is None:
        raise error
    yield Pause(pause_s)


def _may_try_again(request: ApiRequest, reply: Reply | Lost, error: ClientError) -> bool:
    if not isinstance(reply, Reply):
        return request.is_repeatable or reply.is_unsent
    if reply.status == 429:  # refused before anything was done; but a bad token does not get better
        return error.code != "too_many_attempts"
    return request.is_repeatable and reply.status in PASSING


def decoded(settings: CallSettings, request: ApiRequest, body: bytes | str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(
            f"{request.what}: what {settings.url} answered is not what this client reads ({error}); "
            "check the URL, or take the client of that jobd's version"
        ) from None

"""The line to jobd: one call at a time is simple, and what is common to all of them is here.

A call that failed is not sent again here, since only its sender knows whether it still makes sense; but the next call
of anyone waits for its moment (see `pace`). The log says once that jobd went away, and once that it came back.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jobd.client import ApiProblem, AsyncClient, ClientError
from jobd.client.retrying import Patience, answered
from jobd.client.sansio import ApiRequest
from jobd.worker.pace import LONGEST_PAUSE_S, Pace

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

PATH = "/internal/worker/"
#: Statuses that refuse what was sent; jobd itself is well.
ABOUT_THE_BODY = frozenset({400, 413, 422})
#: While jobd is away, pauses are short enough for this many tries within a lease.
TRIES_IN_LEASE = 6

T = TypeVar("T")


class WorkerSession(AsyncClient):
    def __init__(self, url: str | None, token: str | None, verify: ssl.SSLContext | bool = True) -> None:
        super().__init__(url, token, verify=verify)
        #: Whether the last call was answered; None: no call yet.
        self.is_up: bool | None = None
        #: Whether any call was ever answered.
        self.was_up = False
        #: Whether jobd knows the calls for several reports; one that was away may have come back as a newer version.
        self.takes_batches = True
        #: The shortest lease that jobd has granted: pauses must leave room for its renewals.
        self.lease_s = LONGEST_PAUSE_S * TRIES_IN_LEASE
        self._pace = Pace(lambda: self.lease_s / TRIES_IN_LEASE)
        self._down_since = time.monotonic()

    @property
    def url(self) -> str:
        """As it may be shown."""
        return self._settings.url

    async def turn(self) -> float:
        """Wait until a call may be made, which is now; as time.monotonic() has it."""
        return await self._pace.wait()

    async def post(
        self,
        verb: str,
        body: object,
        kind: type[T],
        hold_s: float = 0.0,
        *,
        is_urgent: bool = False,
        is_new: bool = False,
    ) -> T:
        """The answer; raises ClientError. `hold_s`: how much longer than usual it may take. `is_new`: an older jobd,
        which is well, may not know the call.
        """
        called_at = await self._pace.wait(is_urgent=is_urgent)
        try:
            answer = await self.post_at_once(verb, body, kind, hold_s)
        except ClientError as error:
            if not is_about_the_body(error) and not (is_new and error.code == "not_found"):
                self._saw_failure(error, called_at)
            raise
        self._saw_success()
        return answer

    async def post_at_once(self, verb: str, body: object, kind: type[T], hold_s: float = 0.0) -> T:
        """Likewise, whenever it was that the last call failed."""
        request = ApiRequest(what=verb, method="POST", path=PATH + verb, body=msgspec.json.encode(body), hold_s=hold_s)
        return await self._run(answered(self._settings, request, kind, Patience(0)))

    def _saw_success(self) -> None:
        self._pace.saw_success()
        if self.is_up is None:
            log.info("connected to jobd at %s", self.url)
        elif not self.is_up:
            log.info("connected to jobd at %s again, after %.1f s", self.url, time.monotonic() - self._down_since)
            self.takes_batches = True
        self.is_up = self.was_up = True

    def _saw_failure(self, error: ClientError, called_at: float) -> None:
        asked_s = error.retry_after_s or 0.0 if isinstance(error, ApiProblem) else 0.0
        self._pace.saw_failure(called_at, asked_s)
        if self.is_up:
            log.warning("lost jobd at %s: %s; running jobs go on, and it is tried again", self.url, error)
        elif self.is_up is None:
            log.warning("waiting for jobd at %s: %s", self.url, error)
        if self.is_up is not False:
            self.is_up, self._down_since = False, time.monotonic()


def is_about_the_body(error: ClientError) -> bool:
    """What was sent is refused, and would be again; jobd is well."""
    return isinstance(error, ApiProblem) and (error.status in ABOUT_THE_BODY or error.code == "result_not_kept")

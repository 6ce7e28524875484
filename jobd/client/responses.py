"""Calls of the OpenAI interface that `jobd chat` needs: models, and responses that run in the background.

Programs use OpenAI's own client for it. Written as in `calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from jobd.client.answers import ChatModel, ChatResponse, Event
from jobd.client.following import MEDIA_TYPE, SILENCE_S, StreamFollower
from jobd.client.retrying import answered, decoded
from jobd.client.sansio import ApiRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.client.following import EventFlow
    from jobd.client.sansio import CallSettings, Flow
    from jobd.wire.sse import SseMessage

PATH = "/v1/responses"
#: Types of the events that end a response.
LAST_RESPONSE_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
#: Seconds for which a stream that was cut is opened again before it is given up: a restart of jobd takes less.
GIVE_UP_S = 60.0


class _Models(msgspec.Struct, frozen=True):
    data: list[ChatModel]


class _Numbered(msgspec.Struct, frozen=True):
    type: str
    sequence_number: int = -1


def models(settings: CallSettings) -> Flow[list[ChatModel]]:
    """The models that this jobd knows."""
    answer = yield from answered(settings, ApiRequest(what="models", path="/v1/models"), _Models)
    return answer.data


def respond(
    settings: CallSettings,
    text: str,
    *,
    model: str | None = None,
    instructions: str | None = None,
    previous_response_id: str | None = None,
) -> Flow[ChatResponse]:
    """Ask a model in the background; its answer goes on though nobody reads it."""
    given = {"model": model, "instructions": instructions, "previous_response_id": previous_response_id}
    body = {"input": text, "background": True, **{name: value for name, value in given.items() if value is not None}}
    request = ApiRequest(what="response", method="POST", path=PATH, body=msgspec.json.encode(body), is_repeatable=False)
    return answered(settings, request, ChatResponse)


def response(settings: CallSettings, response_id: str) -> Flow[ChatResponse]:
    """A response as it stands."""
    return answered(settings, ApiRequest(what=_named(response_id), path=_path(response_id)), ChatResponse)


def cancel_response(settings: CallSettings, response_id: str) -> Flow[ChatResponse]:
    """End a response; one that has ended stays as it is."""
    request = ApiRequest(what=_named(response_id), method="POST", path=f"{_path(response_id)}/cancel")
    return answered(settings, request, ChatResponse)


def response_events(settings: CallSettings, response_id: str, after: int | None = None) -> EventFlow:
    """Follow a response to its end, through cut lines and restarts of jobd, from behind the event of this number on."""
    last = None if after is None else str(after)
    return ResponseFollower(settings, _path(response_id), _named(response_id), last, GIVE_UP_S).run()


class ResponseFollower(StreamFollower):
    """Its events are numbered from 0, and the number is in their data."""

    def _request(self) -> ApiRequest:
        since = {} if self._last is None else {"starting_after": self._last}
        headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity"}
        query: dict[str, Any] = {"stream": "true", **since}
        return ApiRequest(what=self._what, path=self._path, query=query, headers=headers, hold_s=SILENCE_S)

    def _new_events(self, request: ApiRequest, message: SseMessage) -> Iterator[Event]:
        found = decoded(self._settings, request, message.data, _Numbered)
        if found.sequence_number >= 0 and self._is_new(str(found.sequence_number)):
            data = decoded(self._settings, request, message.data, dict)
            yield Event(id=str(found.sequence_number), type=found.type, ts=0, step="", data=data)

    def _is_new(self, event_id: str) -> bool:
        return self._last is None or int(event_id) > int(self._last)

    def _is_end(self, event: Event) -> bool:
        return event.type in LAST_RESPONSE_EVENTS


def _path(response_id: str) -> str:
    return f"{PATH}/{quote(response_id, safe='')}"


def _named(response_id: str) -> str:
    return f"response {response_id}"

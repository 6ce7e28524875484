"""The output of a response: what its job's attempts emitted, folded into items, and each step as stream events. Pure.

The same pieces in the same order give the same events with the same sequence numbers, so a stream can be read again
from any number, at any time and from any node. Nothing else counts: not when a piece came, nor in which chunk of the
event log it is kept.

An item is a message, the reasoning before it, or a function call. A piece of another kind opens the next item, and ends
an open message or reasoning. Function calls stay open until the attempt ends, since servers may send theirs in turns.

More than one attempt
---------------------
An attempt can be cut after its first piece (jobd was killed, or handed the job back), and the job then runs again. What
readers have seen stands. While the next attempt says the same, nothing is sent; what it says beyond that continues the
items. With the first difference, the items that are still open end as `incomplete`, and all that the new attempt has
said so far, and says from then on, goes into new items behind them. These, the last *thread*, are the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind: TypeAlias = Literal["text", "reasoning", "call"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]

#: Prefix of the id of an item of each kind, as OpenAI has it.
PREFIXES: dict[Kind, str] = {"text": "msg", "reasoning": "rs", "call": "fc"}
#: What the events about the text of an item are called.
TEXT_EVENTS: dict[Kind, str] = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}


class OutputPiece(NamedTuple):
    """A part of an answer, as an attempt emitted it."""

    kind: Kind
    #: Of the message or the reasoning, or of the arguments of a function call.
    text: str
    #: Number of the function call in its attempt.
    call: int = 0
    #: Given by the server with the first piece of a function call.
    call_id: str = ""
    name: str = ""


class StreamEvent(NamedTuple):
    type: str
    data: dict[str, Any]


class OutputItem:
    def __init__(self, response_hex: str, index: int, kind: Kind, call_id: str = "", name: str = "") -> None:
        #: Its place in the output of the response.
        self.index = index
        self.kind = kind
        self.id = f"{PREFIXES[kind]}_{response_hex}_{index}"
        self.call_id = call_id
        self.name = name
        self.status: ItemStatus = "in_progress"
        self.size = 0
        self._pieces: list[str] = []

    def append(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def is_open(self) -> bool:
        return self.status == "in_progress"

    def part(self, text: str) -> dict[str, Any]:
        """The one content part of a message or of reasoning."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def as_json(self, *, is_new: bool = False) -> dict[str, Any]:
        """The item as it stands; `is_new`: as it is announced, with nothing in it."""
        if self.kind == "call":
            call = {"call_id": self.call_id, "name": self.name, "arguments": "" if is_new else self.text}
            return {"type": "function_call", "id": self.id, "status": self.status, **call}
        content = [] if is_new else [self.part(self.text)]
        if self.kind == "reasoning":
            return {"type": "reasoning", "id": self.id, "status": self.status, "summary": [], "content": content}
        return {"type": "message", "id": self.id, "status": self.status, "role": "assistant", "content": content}


class _Said:
    """How far the current attempt has come with the item at the same place of the thread."""

    def __init__(self, piece: OutputPiece) -> None:
        self.kind = piece.kind
        self.call = piece.call
        self.call_id = piece.call_id
        self.name = piece.name
        self.size = 0


class ResponseOutput:
    def __init__(self, response_hex: str) -> None:
        self._hex = response_hex
        #: All that were ever announced.
        self.items: list[OutputItem] = []
        #: Those of the answer that counts.
        self.thread: list[OutputItem] = []
        self._said: list[_Said] = []

    def begin(self) -> None:
        """Another attempt has begun, and says everything again."""
        self._said = []

    def add(self, piece: OutputPiece) -> Iterator[StreamEvent]:
        place = self._place(piece)
        if place == len(self._said):
            if not self._opens_as_before(place, piece):
                yield from self._part_ways()
            self._said.append(_Said(piece))
        if not self._continues(place, piece.text):
            yield from self._part_ways()
        if place == len(self.thread):
            yield from self._open(piece)
        item, said = self.thread[place], self._said[place]
        if new := piece.text[item.size - said.size :]:
            item.append(new)
            yield self._delta(item, new)
        said.size += len(piece.text)

    def complete(self, *, is_cut: bool = False) -> Iterator[StreamEvent]:
        """End the output with what the current attempt has said; `is_cut`: it was stopped in its last item."""
        if not self._is_all_said():
            yield from self._part_ways()
        if not self.thread:
            yield from self._open(OutputPiece("text", ""))
        *others, last = self.thread
        yield from self._close(others, "completed")
        yield from self._close([last], "incomplete" if is_cut else "completed")

    def abandon(self) -> Iterator[StreamEvent]:
        """End the output without an answer: what is open stays incomplete."""
        yield from self._close(self.thread, "incomplete")

    def as_json(self) -> list[dict[str, Any]]:
        return [item.as_json() for item in self.items]

    # -- one attempt and those before it --------------------------------------------------------------------------

    def _place(self, piece: OutputPiece) -> int:
        """Which item of the thread the piece belongs to; the number of those said so far: the next."""
        if piece.kind == "call":
            known = (at for at, said in enumerate(self._said) if said.kind == "call" and said.call == piece.call)
            return next(known, len(self._said))
        is_last = bool(self._said) and self._said[-1].kind == piece.kind
        return len(self._said) - is_last

    def _opens_as_before(self, place: int, piece: OutputPiece) -> bool:
        """Whether an item of this kind can stand at this place, as far as readers know."""
        if place and self._said[-1].kind != "call" and self._said[-1].size < self.thread[place - 1].size:
            return False  # the one before it ends sooner than it did
        if place == len(self.thread):
            return True
        item = self.thread[place]
        return item.kind == piece.kind and item.name == piece.name

    def _continues(self, place: int, text: str) -> bool:
        """Whether the text is what was sent of the item, or more than that of an open one."""
        if place == len(self.thread):
            return True
        item, size = self.thread[place], self._said[place].size
        if size == item.size:
            return item.is_open or not text
        sent = item.text[size : size + len(text)]
        return sent == text or (item.is_open and text.startswith(sent))

    def _is_all_said(self) -> bool:
        """Whether the attempt has said all of the thread."""
        sizes = [said.size for said in self._said]
        return sizes == [item.size for item in self.thread]

    def _part_ways(self) -> Iterator[StreamEvent]:
        """Leave the thread as it is and begin another with what this attempt has said so far."""
        texts = [item.text[: said.size] for item, said in zip(self.thread, self._said, strict=False)]
        yield from self._close(self.thread, "incomplete")
        self.thread = []
        for said, text in zip(self._said, texts, strict=False):
            yield from self._open(OutputPiece(said.kind, "", said.call, said.call_id, said.name))
            if text:
                self.thread[-1].append(text)
                yield self._delta(self.thread[-1], text)

    # -- events ---------------------------------------------------------------------------------------------------

    def _open(self, piece: OutputPiece) -> Iterator[StreamEvent]:
        """Announce the next item, after the end of an open message or reasoning."""
        yield from self._close([item for item in self.thread if item.kind != "call"], "completed")
        index = len(self.items)
        call_id = self._unused(piece.call_id or f"call_{self._hex}_{index}") if piece.kind == "call" else ""
        item = OutputItem(self._hex, index, piece.kind, call_id, piece.name)
        self.items.append(item)
        self.thread.append(item)
        added = {"output_index": item.index, "item": item.as_json(is_new=True)}
        yield StreamEvent("response.output_item.added", added)
        if piece.kind != "call":
            yield StreamEvent("response.content_part.added", {**_place_of(item), "part": item.part("")})

    def _unused(self, call_id: str) -> str:
        """Clients take two calls of one id for the same; servers that count from 0 give each attempt the same ids."""
        used = {item.call_id for item in self.items}
        return call_id if call_id not in used else f"{call_id}_{len(self.items)}"

    def _delta(self, item: OutputItem, text: str) -> StreamEvent:
        more: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
        return StreamEvent(f"{TEXT_EVENTS[item.kind]}.delta", {**_place_of(item), "delta": text, **more})

    def _close(self, items: Iterable[OutputItem], status: ItemStatus) -> Iterator[StreamEvent]:
        for item in items:
            if not item.is_open:
                continue
            item.status = status
            if item.kind == "call":
                # A client may run the function on this event: not with arguments that were cut.
                if status == "completed":
                    done = {"name": item.name, "arguments": item.text}
                    yield StreamEvent(f"{TEXT_EVENTS['call']}.done", {**_place_of(item), **done})
            else:
                more: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
                yield StreamEvent(f"{TEXT_EVENTS[item.kind]}.done", {**_place_of(item), "text": item.text, **more})
                yield StreamEvent("response.content_part.done", {**_place_of(item), "part": item.part(item.text)})
            yield StreamEvent("response.output_item.done", {"output_index": item.index, "item": item.as_json()})


def _place_of(item: OutputItem) -> dict[str, Any]:
    place = {"item_id": item.id, "output_index": item.index}
    return place if item.kind == "call" else {**place, "content_index": 0}

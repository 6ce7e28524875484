"""A strict reader of a response's events: it fails at the first that does not follow from those before it."""

from __future__ import annotations

from typing import Any

#: The events with the text of an item, by the item's type.
TEXT_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class Reader:
    def __init__(self) -> None:
        #: Items as they stand.
        self.items: list[dict[str, Any]] = []
        #: Indexes of items that are announced and not done.
        self.open: set[int] = set()
        self._with_part: set[int] = set()
        self._with_text_done: set[int] = set()

    def take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "response.output_item.added":
            self._added(data)
            return
        index = data["output_index"]
        assert index in self.open, f"{kind} for item {index}, which is not open"
        item = self.items[index]
        if kind == "response.output_item.done":
            self._done(index, item, data["item"])
            return
        assert data["item_id"] == item["id"]
        name = TEXT_EVENTS[item["type"]]
        if kind == "response.content_part.added":
            assert item["type"] != "function_call" and index not in self._with_part and data["part"]["text"] == ""
            self._with_part.add(index)
            item["content"].append(dict(data["part"]))
        elif kind == f"{name}.delta":
            assert data["delta"], "an empty delta"
            assert index not in self._with_text_done
            self._append(index, item, data["delta"])
        elif kind == f"{name}.done":
            self._with_text_done.add(index)
            assert data["arguments" if "arguments" in data else "text"] == self._text(item)
        else:
            assert kind == "response.content_part.done", kind
            assert index in self._with_text_done and data["part"] == item["content"][0]

    def _added(self, data: dict[str, Any]) -> None:
        index, item = data["output_index"], data["item"]
        assert index == len(self.items), "an index was left out"
        assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
        self.items.append({**item, "content": []} if "content" in item else dict(item))
        self.open.add(index)

    def _done(self, index: int, item: dict[str, Any], final: dict[str, Any]) -> None:
        assert final["status"] in ("completed", "incomplete")
        if item["type"] != "function_call" or final["status"] == "completed":
            assert index in self._with_text_done, "the text did not end before the item"
        item["status"] = final["status"]
        assert final == item, "the item is not what its events said"
        self.open.discard(index)

    def _append(self, index: int, item: dict[str, Any], text: str) -> None:
        if item["type"] == "function_call":
            item["arguments"] += text
        else:
            assert index in self._with_part
            item["content"][0]["text"] += text

    def _text(self, item: dict[str, Any]) -> str:
        return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])

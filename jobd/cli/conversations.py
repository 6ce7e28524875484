"""The conversations of `jobd chat`, in a file of the user's state folder: which response was the last of each.

What was said is kept by jobd alone; the file has ids, and the first words of a conversation to know it by.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.host.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Conversations that are remembered; the oldest go first.
MOST = 200
#: Characters of the first message that are kept.
TITLE_CHARS = 60
#: Largest file in bytes that is read.
MAX_BYTES = 1 << 20


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    #: The ids of its responses, oldest first.
    responses: list[str]
    model: str
    #: The address of its jobd.
    url: str
    title: str = ""
    #: System message that every response of it gets.
    system: str | None = None
    #: When it was last added to, in ms since 1970.
    at_ts: int = 0

    @property
    def last(self) -> str:
        return self.responses[-1]


class Conversations:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        home = environ.get("XDG_STATE_HOME", "")
        folder = Path(home) if home.startswith("/") else Path("~/.local/state").expanduser()
        self._path = folder / "jobd" / "conversations.json"

    def all(self) -> list[Conversation]:
        """The newest last; none if the file is missing or damaged."""
        try:
            data = self._path.read_bytes()
            return msgspec.json.decode(data, type=list[Conversation]) if len(data) <= MAX_BYTES else []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return []

    def newest(self, url: str, model: str | None) -> Conversation | None:
        """The newest one with this jobd, and with this model if one is named."""
        fitting = [each for each in self.all() if each.url == url and model in (None, each.model)]
        return fitting[-1] if fitting else None

    def with_response(self, response_id: str) -> Conversation | None:
        return next((each for each in reversed(self.all()) if response_id in each.responses), None)

    def keep(self, conversation: Conversation) -> Conversation:
        """Put it at the end, in place of what it was before."""
        kept = msgspec.structs.replace(
            conversation, title=conversation.title[:TITLE_CHARS], at_ts=int(time.time() * 1000)
        )
        with self._locked():
            others = [each for each in self.all() if each.responses[0] != kept.responses[0]]
            write_whole(self._path, msgspec.json.encode([*others, kept][-MOST:]))
        return kept

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two terminals may talk at once: neither forgets what the other has written."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

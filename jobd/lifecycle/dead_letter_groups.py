"""Groups of dead letters: what failed in the same way, by the code of the error and the task.

The groups are made of a bounded stretch, the newest letters, so that the cost does not grow with their number.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.lifecycle.read import STRETCH
from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.session import Session

GROUP_DEAD_LETTERS = statement("group_dead_letters")

#: Groups in one answer: codes are what workers say, so there may be as many as letters.
MOST_GROUPS = 100
#: Characters of the message of a group's newest letter: enough to recognise it, whatever a model server said.
MESSAGE_CHARS = 500


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    #: Empty: the errors have none.
    code: str
    task: str
    number: int
    #: Those that do not run again yet.
    open: int
    first_at: datetime
    last_at: datetime
    #: The newest of them, and what its error says.
    example_id: UUID
    message: str


class LetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    #: The one with the newest letter first.
    groups: list[LetterGroup]
    #: False: only the newest letters were looked at, or there are more groups than are listed.
    is_whole: bool


async def group_dead_letters(session: Session, *, stretch: int = STRETCH, most: int = MOST_GROUPS) -> LetterGroups:
    rows = await session.fetch(GROUP_DEAD_LETTERS, stretch, most, MESSAGE_CHARS)
    groups = [LetterGroup(**{name: row[name] for name in LetterGroup.__struct_fields__}) for row in rows]
    is_whole = not rows or (rows[0]["looked_at"] < stretch and rows[0]["groups"] == len(rows))
    return LetterGroups(groups=groups, is_whole=is_whole)

"""Under which names the jobds of a data directory have held leases: the newest is this one, all others are dead.

Whoever holds the lock of the data directory is the only one that lives. A name is written down before it is used, and
struck out only when nothing is held under it any more, so a crash at any point leaves it in the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.host.files import write_whole
from jobd.store.leader import Names

if TYPE_CHECKING:
    from pathlib import Path

FILE = "owners"


class Owners:
    """To be made by whoever holds the lock."""

    def __init__(self, data_dir: Path, owner_id: str) -> None:
        self._path = data_dir / FILE
        self.owner_id = owner_id
        try:
            before = self._path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            before = []
        self._dead = [name for name in before if name and name != owner_id]
        self._write([*self._dead, owner_id])

    def dead(self) -> list[str]:
        return list(self._dead)

    def names(self) -> Names:
        return Names(self.owner_id, tuple(self._dead))

    def bury(self) -> None:
        """Nothing is held under the old names any more."""
        if self._dead:
            self._dead = []
            self._write([self.owner_id])

    def _write(self, names: list[str]) -> None:
        write_whole(self._path, "".join(f"{name}\n" for name in names).encode())

"""The owner_ids under which the incarnations of a node have held leases: the newest is alive, the others are dead.

Only the process that holds the lock of the data directory is alive. An owner_id is written to the file before it is
used, and removed only when no lease has it any more, so it is in the list whenever the process crashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.host.files import write_whole
from jobd.store.leader import OwnerNames

if TYPE_CHECKING:
    from pathlib import Path

FILE = "owners"


class Owners:
    """Only for the process that holds the lock of the data directory."""

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

    def names(self) -> OwnerNames:
        return OwnerNames(self.owner_id, tuple(self._dead))

    def bury(self) -> None:
        """Forget the dead owner_ids: no lease has them any more."""
        if self._dead:
            self._dead = []
            self._write([self.owner_id])

    def _write(self, names: list[str]) -> None:
        write_whole(self._path, "".join(f"{name}\n" for name in names).encode())

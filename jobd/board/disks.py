"""What was written to the disks of the board, and how worn an eMMC is: flash ends after so many writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.wire.board import DiskObject

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

#: Devices without a medium of their own, or whose writes are counted again by the disk below; and parts of an eMMC.
NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "nbd")
#: Bytes of a sector in /sys/block/*/stat, whatever the disk itself has.
SECTOR_BYTES = 512
#: Place of the sectors written in /sys/block/*/stat, from 0.
WRITTEN_PLACE = 6


class Disks:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._disks: dict[str, float | None] = {}

    def discover(self) -> None:
        names = (path.split("/")[3] for path in self._files.find("/sys/block/*/stat"))
        self._disks = {
            name: self._life_used(name)
            for name in names
            if not name.startswith(NO_DISKS) and not ("boot" in name or "rpmb" in name)
        }

    def read(self) -> list[DiskObject]:
        found = []
        for name, life_used in self._disks.items():
            fields = (self._files.read(f"/sys/block/{name}/stat") or "").split()
            if len(fields) > WRITTEN_PLACE and fields[WRITTEN_PLACE].isdigit():
                written = int(fields[WRITTEN_PLACE]) * SECTOR_BYTES
                found.append(DiskObject(disk=name, written_bytes=written, life_used=life_used))
        return found

    def _life_used(self, name: str) -> float | None:
        """An eMMC names tenths of its life for its two kinds of cells, 0x01 for the first tenth; 0x00: not known."""
        text = self._files.once(f"/sys/block/{name}/device/life_time") or ""
        try:
            tenths = max((int(part, 16) for part in text.split()), default=0)
        except ValueError:
            return None
        return min(1.0, tenths / 10) if tenths else None

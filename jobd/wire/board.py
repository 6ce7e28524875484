"""The board under a jobd, as `/v1/board` shows it: temperatures, power, memory, disks, and what follows from them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

HeatLevel: TypeAlias = Literal["none", "soft", "hard"]
ModelServerState: TypeAlias = Literal["stopped", "starting", "ready", "stopping", "failed"]


class ZoneObject(msgspec.Struct, frozen=True, kw_only=True):
    """A temperature sensor."""

    zone: str
    celsius: float
    #: From here on the kernel slows the board down; null: it does not say.
    passive_celsius: float | None = None
    #: From here on the board is switched off.
    critical_celsius: float | None = None


class RailObject(msgspec.Struct, frozen=True, kw_only=True):
    """A power rail."""

    rail: str
    watts: float
    #: Null: only the power is measured.
    volts: float | None = None
    amperes: float | None = None
    #: Whether it is what the board takes as a whole, with all other rails in it.
    is_total: bool = False


class GpuObject(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    #: Share of the time that it was busy, from 0 to 1; null: its driver does not say.
    load: float | None = None
    hertz: int | None = None
    max_hertz: int | None = None


class MemoryPressure(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the last ten seconds, from 0 to 1, in which processes waited for memory."""

    #: At least one of them.
    some: float
    #: All of them.
    full: float


class MemoryObject(msgspec.Struct, frozen=True, kw_only=True):
    total_bytes: int
    #: What processes can have without swapping, by the kernel, or less if a cgroup limits jobd.
    available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    pressure: MemoryPressure | None = None
    #: Promised to running jobs of tasks with `needs_memory_mb`, as far as their processes do not have it yet.
    reserved_bytes: int = 0
    #: Never promised to a job: `board.memory_floor_mb`.
    floor_bytes: int = 0
    #: What a job that needs memory may still have; 0: none starts now.
    free_bytes: int = 0


class DiskObject(msgspec.Struct, frozen=True, kw_only=True):
    disk: str
    #: Since the start of the board.
    written_bytes: int
    #: Share of the life of an eMMC or SD card that is used, by its own estimate in steps of 0.1; null: it does not say.
    life_used: float | None = None


class HeatObject(msgspec.Struct, frozen=True, kw_only=True):
    """What the temperatures mean for queues with `hot = true`."""

    #: `soft`: half of their slots start jobs; `hard`: none does.
    level: HeatLevel = "none"
    #: The zone that is nearest to its limits; null: there is none.
    zone: str | None = None
    celsius: float | None = None
    soft_celsius: float | None = None
    hard_celsius: float | None = None


class ModelServerObject(msgspec.Struct, frozen=True, kw_only=True):
    """A model server that jobd starts itself: a table [models.NAME] with `argv`."""

    model: str
    state: ModelServerState
    #: Of a failed one: why.
    reason: str | None = None
    #: Of the servers of one group at most one runs; null: it is in none.
    swap_group: str | None = None
    pid: int | None = None
    #: Jobs that it answers now.
    jobs: int = 0
    #: Jobs that hold a slot and wait for it.
    waiting: int = 0
    #: Since the start of jobd.
    starts: int = 0
    #: Seconds that its last start took until it could be asked; null: it was never ready.
    load_s: float | None = None


class BoardObject(msgspec.Struct, frozen=True, kw_only=True):
    """What was last measured; what cannot be measured here is null or missing."""

    #: When; null: nothing was measured yet, or `board.enabled` is false.
    taken_ts: int | None = None
    model: str | None = None
    kind: Literal["jetson", "raspberry_pi", "other"] = "other"
    #: Of a Jetson: the release of its Linux (L4T), such as 36.4.3.
    release: str | None = None
    power_mode: str | None = None
    zones: list[ZoneObject] = []
    rails: list[RailObject] = []
    gpus: list[GpuObject] = []
    #: Null: there is no /proc/meminfo, and tasks with `needs_memory_mb` do not start.
    memory: MemoryObject | None = None
    disks: list[DiskObject] = []
    #: Why the board is slowed down at the moment, in words; empty: it is not.
    throttled_by: list[str] = []
    heat: HeatObject = HeatObject()
    #: Model servers that jobd starts itself, in the order of its configuration.
    model_servers: list[ModelServerObject] = []

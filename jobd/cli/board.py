"""`jobd board`: what the board under a jobd measures of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from jobd.cli.show import one_line
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd import Client
    from jobd.wire.board import BoardObject, HeatObject, MemoryObject


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@client_options
def board(client: Client, as_json: bool) -> None:
    """Show the board under a jobd: temperatures, power, GPU, memory, disks, and whether it is slowed down.

    \b
    Examples:
      jobd board
      jobd board --url http://jetson.local:7433
      jobd board --json | jq .memory.free_bytes
    """
    found = client.board()
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    for name, text in lines(found):
        click.echo(f"{name:12}{one_line(text)}")


def lines(board: BoardObject) -> Iterator[tuple[str, str]]:
    if board.taken_ts is None:
        yield "board", "not measured (board.enabled)"
        return
    release = f", L4T {board.release}" if board.release else ""
    yield "board", f"{board.model or 'unknown'}{release}"
    if board.power_mode:
        yield "power mode", board.power_mode
    for zone in board.zones:
        limits = ((zone.passive_celsius, "slowed down at"), (zone.critical_celsius, "off at"))
        said = "".join(f", {words} {celsius:g}" for celsius, words in limits if celsius is not None)
        yield "temperature", f"{zone.zone} {zone.celsius:.1f} C{said}"
    for rail in board.rails:
        yield "power", f"{rail.rail} {rail.watts:.2f} W{' (all)' if rail.is_total else ''}"
    for gpu in board.gpus:
        load = "load unknown" if gpu.load is None else f"{gpu.load:.0%} busy"
        speed = "" if gpu.hertz is None else f", {gpu.hertz / 1e6:.0f} MHz"
        most = "" if gpu.max_hertz is None else f" of {gpu.max_hertz / 1e6:.0f}"
        yield "GPU", f"{gpu.gpu} {load}{speed}{most}"
    yield "memory", "unknown: jobs that need memory do not start" if board.memory is None else memory_text(board.memory)
    if board.memory is not None and board.memory.pressure is not None:
        pressure = board.memory.pressure
        yield "pressure", f"{pressure.some:.1%} of the time some processes waited for memory, {pressure.full:.1%} all"
    for disk in board.disks:
        life = "" if disk.life_used is None else f", {disk.life_used:.0%} of its life used"
        yield "disk", f"{disk.disk} {size(disk.written_bytes)} written{life}"
    yield "throttled", ", ".join(board.throttled_by) or "no"
    yield "heat", heat_text(board.heat)


def memory_text(memory: MemoryObject) -> str:
    return (
        f"{size(memory.available_bytes)} of {size(memory.total_bytes)} available; {size(memory.free_bytes)} for jobs,"
        f" {size(memory.reserved_bytes)} reserved, {size(memory.floor_bytes)} kept free"
    )


def heat_text(heat: HeatObject) -> str:
    meaning = {
        "none": "none",
        "soft": "soft: half of the slots of hot queues",
        "hard": "hard: hot queues start nothing",
    }
    if heat.zone is None:
        return "unknown"
    limits = f"limits {heat.soft_celsius:g} and {heat.hard_celsius:g} C"
    return f"{meaning[heat.level]} ({heat.zone} {heat.celsius:.1f} C, {limits})"


def size(number: int) -> str:
    """In powers of 1024, as kernels count memory."""
    amount = float(number)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit in ("B", "KB", "MB") else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"

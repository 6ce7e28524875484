// The board under this jobd: temperatures, power, GPU, memory, disks, and whether it is slowed down.

import { h } from "./dom.js";
import { bytes } from "./words.js";
import { read } from "./api.js";
import { bar, card, chip, empty, facts, figure, table } from "./parts.js";
import { room } from "./shell.js";

const HEAT_WORDS = { none: "cool enough", soft: "half of the slots of hot queues start jobs", hard: "hot queues start no job" };
const degrees = (number) => (number === null ? "–" : `${number.toFixed(1)} °C`);
const percent = (share) => `${Math.round(share * 100)} %`;

const ZONE_COLUMNS = [
  { name: "Zone", class: "wrap", cell: ({ zone }) => zone },
  { name: "Now", right: true, cell: ({ celsius }) => degrees(celsius) },
  { name: "Slowed down at", right: true, cell: (zone) => degrees(zone.passive_celsius) },
  { name: "Off at", right: true, narrow: false, cell: (zone) => degrees(zone.critical_celsius) },
];
const RAIL_COLUMNS = [
  { name: "Rail", class: "wrap", cell: ({ rail, is_total: isTotal }) => [rail, isTotal ? " (all)" : null] },
  { name: "Power", right: true, cell: ({ watts }) => `${watts.toFixed(2)} W` },
  { name: "Voltage", right: true, narrow: false, cell: ({ volts }) => (volts === null ? "–" : `${volts.toFixed(2)} V`) },
];
const DISK_COLUMNS = [
  { name: "Disk", cell: ({ disk }) => disk },
  { name: "Written since the start", right: true, cell: (disk) => bytes(disk.written_bytes) },
  { name: "Life used", right: true, cell: (disk) => (disk.life_used === null ? "–" : percent(disk.life_used)) },
];

function memoryCard(memory) {
  if (!memory) return card("Memory", {}, empty("It cannot be measured here: jobs that need memory do not start."));
  const used = 1 - memory.available_bytes / memory.total_bytes;
  return card("Memory", {}, bar(used, `${percent(used)} used`), facts([["Available", `${bytes(memory.available_bytes)} of ${bytes(memory.total_bytes)}`], ["For jobs that need some", bytes(memory.free_bytes)],
    ["Reserved", bytes(memory.reserved_bytes)], ["Kept free", bytes(memory.floor_bytes)], ["Swap", memory.swap_total_bytes ? `${bytes(memory.swap_free_bytes)} of ${bytes(memory.swap_total_bytes)} free` : null],
    ["Processes waited for it", memory.pressure ? `${percent(memory.pressure.some)} of the time` : null]]));
}

function gpuFigure({ gpu, load, hertz }) {
  return figure(gpu, load === null ? "–" : percent(load), { note: hertz === null ? "" : `${Math.round(hertz / 1e6)} MHz` });
}

function boardView(board) {
  const { heat, throttled_by: by } = board, total = board.rails.find((rail) => rail.is_total);
  return [
    h("p", { class: "faint" }, [board.model || "Unknown board", board.release ? `L4T ${board.release}` : null, board.power_mode].filter(Boolean).join(", ")),
    h("div", { class: "figures" }, figure("Hottest", degrees(heat.celsius), { note: heat.zone || "no sensor", kind: heat.level === "none" ? "" : "bad" }),
      total ? figure("Power", `${total.watts.toFixed(1)} W`, { note: total.rail }) : null, board.gpus.map(gpuFigure)),
    card("Heat", {}, facts([["Level", [chip(heat.level, { none: "done", soft: "paused", hard: "error" }[heat.level]), " ", HEAT_WORDS[heat.level]]], ["Limits", heat.zone ? `${degrees(heat.soft_celsius)}, ${degrees(heat.hard_celsius)}` : null],
      ["Slowed down", by.length ? by.join(", ") : "no"]]), board.zones.length ? table("Temperatures", ZONE_COLUMNS, board.zones, ({ zone }) => zone) : null),
    memoryCard(board.memory),
    board.rails.length ? card("Power", {}, table("Power rails", RAIL_COLUMNS, board.rails, ({ rail }) => rail)) : null,
    board.disks.length ? card("Disks", {}, table("Disks", DISK_COLUMNS, board.disks, ({ disk }) => disk)) : null];
}

room({
  name: "board",
  title: "Board",
  icon: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  every_s: 3,
  stream: () => null,
  load: () => read("v1/board"),
  view: (board) => [h("header", { class: "head" }, h("h1", {}, "Board")), !board ? empty("Asking jobd…") : board.taken_ts === null ? empty("The board is not measured (board.enabled).") : boardView(board)],
});

// Is it well, and why is it slow: the state in words, what runs now, every queue, and what failed last.

import { h } from "./dom.js";
import { bytes, count, now, plural, rate, shortId, span } from "./words.js";
import { query, read, write } from "./api.js";
import { bar, button, card, chip, empty, figure, note, redraw, sparkline, table, when } from "./parts.js";
import { hear, may, refollow, reload, room, to } from "./shell.js";

// Minutes that the lines show, and seconds for which what was read of them is used.
const MINUTES = 60, FRESH_S = 20;
// Answers that are read of them at most; one has 2 000 points.
const ROLLUP_PAGES = 5;
// Characters of a running job's text that are shown.
const TAIL_CHARS = 600;
// Share of the memory below which it counts as short: what is left is soon needed for files in use.
const LOW_MEMORY = 0.05;
// No clock that is right shows an earlier time: 2026-01-01, in ms since 1970. EARLIEST in jobd/store/clock_eras.py is the same.
const EARLIEST = 1767225600000;
const PAUSED_NOTE = "paused: its jobs wait until it is resumed";

// Jobs that ended in each of the last minutes, oldest first, by queue; from the rollups, so they outlive a restart.
const minutes = { readAt: 0, queues: new Map() };
// The running job whose text is shown: its id, the cursor of its last event, and the text.
const focus = { id: null, cursor: "", text: "" };

async function loadOverview() {
  const [ready, stats, workers, dead] = await Promise.all([
    read("readyz", { accepts: 503 }), read("v1/stats"), read(query("v1/workers", { limit: 100, held: 20 })), read("v1/dlq?limit=5"), readMinutes()]);
  if (!workers.held.some((job) => job.job_id === focus.id)) watch(workers.held.length ? workers.held[0].job_id : null);
  return { ready, stats, workers, dead: dead.letters };
}

async function readMinutes() {
  if (Math.abs(now() - minutes.readAt) < FRESH_S * 1000) return;  // also after the clock was set back
  const first = Math.max(0, Math.floor(now() / 60000) - MINUTES + 1), queues = new Map();
  for (let page = 0, since = first * 60000; since !== null && page < ROLLUP_PAGES; page += 1) {
    const { points, next_ts } = await read(query("v1/rollups", { since_ts: since }));
    for (const { ts, queue, done, error, canceled } of points) {
      if (!queues.has(queue)) queues.set(queue, Array(MINUTES).fill(0));
      queues.get(queue)[Math.min(Math.floor(ts / 60000) - first, MINUTES - 1)] += done + error + canceled;
    }
    since = next_ts;
  }
  Object.assign(minutes, { readAt: now(), queues });
}

// -- the state in words --

function stateWords({ ready, stats }) {
  const bad = Object.entries(ready.services).filter(([, said]) => !["ready", "standing by"].includes(said)).map(([name, said]) => `${name} is ${said}`);
  if (ready.status === "draining") return ["draining", "Draining", "It takes no new jobs and lets the running ones finish."];
  if (ready.status === "starting") return ["starting", "Starting", bad.join(", ")];
  if (ready.status === "degraded") return ["degraded", "Degraded", bad.join(", ") || "Redis is away: jobs run, live events may come late."];
  const reasons = slowReasons(stats);
  return reasons.length ? ["slow", "Ready, with something to see to", reasons.join(" ")] : ["ready", "Ready", stats.totals.running ? "All is well." : "All is well, nothing runs."];
}

function slowReasons({ queues, outbox_age_s, paused, paused_tasks, disk, memory }) {
  const reasons = paused ? ["Everything is paused: no job starts."] : [];
  if (now() < EARLIEST) reasons.push(`The clock of the server shows ${new Date(now()).toISOString().slice(0, 10)}, which cannot be right: set it, or wait for time synchronisation. Until then no schedule fires.`);
  if (paused_tasks.length) reasons.push(`Paused: ${plural(paused_tasks.length, "task")} (${paused_tasks.join(", ")}).`);
  if (disk && disk.free_bytes < disk.min_free_bytes) reasons.push(`The disk is nearly full: ${bytes(disk.free_bytes)} are left, and no new jobs are taken.`);
  if (memory && memory.available_bytes < memory.total_bytes * LOW_MEMORY) reasons.push(`Memory is short: ${bytes(memory.available_bytes)} are left.`);
  for (const queue of queues) {
    const waiting = plural(queue.queued, "job waits", "jobs wait");
    if (queue.paused && queue.queued) reasons.push(`Queue ${queue.name} is paused; ${waiting}.`);
    else if (queue.queued && queue.head_waits_s > 30 && !queue.running) reasons.push(`Nobody works on queue ${queue.name}; ${waiting}${queue.slots ? "" : ", and it has no slots here"}.`);
    else if (queue.head_waits_s > 60) reasons.push(`Queue ${queue.name} is behind by ${span(queue.head_waits_s)}.`);
  }
  if (outbox_age_s > 10) reasons.push(`Redis lags behind by ${span(outbox_age_s)}.`);
  return reasons;
}

function oldest(queues) {
  const waits = queues.map((queue) => queue.head_waits_s).filter((wait) => wait !== null);
  return waits.length ? Math.max(...waits) : null;
}

function figures({ stats, workers }) {
  const { totals, queues } = stats, known = queues.filter((queue) => queue.drain_per_s !== null);
  return h("div", { class: "figures" },
    figure("Waiting", count(totals.queued), { to: to({ view: "jobs", q: "status:queued" }) }),
    figure("Running", count(totals.running), { kind: totals.running ? "running" : "", to: to({ view: "jobs", q: "status:running" }) }),
    figure("Rate", known.length ? rate(known.reduce((sum, queue) => sum + queue.drain_per_s, 0)) : "–", { note: "in the last minute" }),
    figure("Oldest waiting", span(oldest(queues)), { note: oldest(queues) === null ? "none is due" : "" }),
    figure("Dead letters", count(totals.error), { kind: totals.error ? "error" : "", note: "of the jobs kept", to: to({ view: "dead_letters" }) }),
    figure("Workers", count(workers.total), { note: "hold jobs", to: to({ view: "workers" }) }));
}

// Disk and memory in use, with the limit drawn in.
function roomCard({ stats: { disk, memory } }) {
  if (!disk && !memory) return null;
  const line = (name, free, total, limit) => h("li", { key: name }, h("div", { class: "line" }, h("span", { class: "grow" }, name), h("span", { class: "right" }, `${bytes(free)} of ${bytes(total)} free`)),
    bar(1 - free / total, `${name}: ${Math.round((1 - free / total) * 100)} % in use`, free < total * limit ? "bad" : "", 1 - limit));
  return card("Disk and memory", { class: "space" }, h("ul", {}, disk ? line("Disk", disk.free_bytes, disk.total_bytes, disk.min_free_bytes / disk.total_bytes) : null,
    memory ? line("Memory", memory.available_bytes, memory.total_bytes, LOW_MEMORY) : null));
}

// -- what runs --

function watch(id) {
  if (focus.id === id) return;
  Object.assign(focus, { id, cursor: "", text: "" });
  refollow();
  redraw();
}

function heardLive(event) {
  if (event.id) focus.cursor = event.id;
  if (event.type === "token") focus.text = (focus.text + tokenText(event)).slice(-TAIL_CHARS);
  if (event.type === "hello" || event.type === "token") redraw();
  else hear();
  return false;
}

export function tokenText({ data }) {
  const inside = data.data || data;
  return String(inside.text ?? inside.token ?? "");
}

function runningCard({ workers, stats }) {
  const { held } = workers, more = stats.totals.running - held.length;
  return card("Running now", { class: "now" }, held.length ? h("ul", { class: "running" }, held.map(runningJob)) : empty("Nothing runs just now. ", may("client") && h("a", { href: to({ view: "submit" }) }, "Submit a job")),
    more > 0 ? h("p", { class: "faint" }, h("a", { href: to({ view: "jobs", q: "status:running" }) }, `and ${count(more)} more`)) : null);
}

function runningJob(job) {
  const isFocus = focus.id === job.job_id;
  return h("li", { key: job.job_id, class: isFocus ? "focus" : null },
    h("div", { class: "line" }, h("a", { href: to({ view: "job", id: job.job_id }), "data-row": true }, h("b", {}, job.task), " ", h("code", {}, shortId(job.job_id))),
      h("span", { class: "faint" }, job.queue, job.attempt > 1 ? `, attempt ${job.attempt}` : ""), job.cancel_requested ? chip("stopping", "canceled") : null,
      h("span", { class: "grow faint" }, job.step), h("span", { class: "right" }, when(job.started_ts)),
      h("button", { class: "plain small", "aria-pressed": String(isFocus), onclick: () => watch(isFocus ? null : job.job_id) }, isFocus ? "watching" : "watch")),
    job.progress === null ? null : bar(job.progress, `${Math.round(job.progress * 100)} % done`),
    isFocus && focus.text ? h("p", { class: "live" }, focus.text) : null);
}

// -- queues --

const QUEUE_COLUMNS = [
  { name: "Queue", cell: (queue) => [h("a", { href: to({ view: "jobs", q: `queue:${queue.name}` }), "data-row": true }, queue.name), queue.paused ? h("span", { title: PAUSED_NOTE }, " ", chip("paused")) : null] },
  { name: "Ended", narrow: false, cell: (queue) => sparkline(minutes.queues.get(queue.name) || [0, 0], `jobs of ${queue.name} that ended in each of the last ${MINUTES} minutes`) },
  { name: "Waiting", right: true, cell: (queue) => count(queue.queued) },
  { name: "Running", right: true, cell: (queue) => [count(queue.running), queue.slots ? h("span", { class: "faint" }, `/${queue.slots}`) : null] },
  { name: "Oldest", right: true, cell: (queue) => span(queue.head_waits_s) },
  { name: "Rate", right: true, narrow: false, cell: (queue) => rate(queue.drain_per_s) },
  { name: "Done", right: true, narrow: false, cell: (queue) => count(queue.done) },
  { name: "Failed", right: true, narrow: false, cell: (queue) => (queue.error ? h("a", { class: "error", href: to({ view: "jobs", q: `status:error queue:${queue.name}` }) }, count(queue.error)) : "0") },
];

function pauseColumn() {
  return { name: "Action", head: h("span", { class: "unseen" }, "Action"), right: true, cell: (queue) => (queue.slots === null ? null : button(queue.paused ? "Resume" : "Pause", () => setPaused(queue, !queue.paused),
    { kind: "small", key: `pause ${queue.name}`, label: `${queue.paused ? "Resume" : "Pause"} queue ${queue.name}` })) };
}

async function setPaused(queue, paused) {
  await write(`v1/queues/${encodeURIComponent(queue.name)}/${paused ? "pause" : "resume"}`);
  note(paused ? `Queue ${queue.name} is paused` : `Queue ${queue.name} goes on`);
  await reload();
}

function queuesCard({ stats }) {
  const columns = may("admin") ? [...QUEUE_COLUMNS, pauseColumn()] : QUEUE_COLUMNS;
  return card("Queues", {}, table("Queues", columns, stats.queues, (queue) => queue.name));
}

// -- what failed --

const REASONS = { not_retryable: "failed for good", attempts_exhausted: "all attempts failed", interruptions_exhausted: "stopped its node too often" };

function deadCard({ dead }) {
  return card("Failed last", {}, dead.length ? h("ul", { class: "lines" }, dead.map((letter) => h("li", { key: letter.job_id },
    h("a", { href: to({ view: "job", id: letter.job_id }), "data-row": true }, h("b", {}, letter.task), " ", h("code", {}, shortId(letter.job_id))),
    h("span", { class: "grow faint" }, REASONS[letter.reason], letter.redriven_to ? ", runs again" : ""), when(letter.at_ts)))) : empty("Nothing has failed for good."));
}

room({
  name: "overview",
  title: "Overview",
  icon: "M4 13h6V4H4zM14 9h6V4h-6zM14 20h6v-7h-6zM4 20h6v-3H4z",
  every_s: 3,
  load: loadOverview,
  stream: () => (focus.id ? query(`v1/jobs/${focus.id}/events`, { after: focus.cursor }) : "v1/events"),
  heard: heardLive,
  leave: () => Object.assign(focus, { id: null, cursor: "", text: "" }),
  view: (data) => {
    if (!data) return h("p", { class: "empty" }, "Asking jobd…");
    const [kind, title, why] = stateWords(data);
    return [h("header", { class: `state ${kind}` }, h("span", { class: "dot", "aria-hidden": "true" }), h("h1", {}, title), h("p", {}, why)),
      figures(data), h("div", { class: "columns" }, runningCard(data), h("div", { class: "room" }, roomCard(data), deadCard(data))), queuesCard(data)];
  },
});

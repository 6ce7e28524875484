// One job: where it stands in words, its attempts on one axis, its text as it grows, its log, payload and result.

import { h } from "./dom.js";
import { absolute, ago, count, now, ordinal, plural, pretty, shortId, span } from "./words.js";
import { query, read, write } from "./api.js";
import { ask, bar, button, card, chip, empty, facts, fold, json, redraw, when } from "./parts.js";
import { tokenText } from "./overview.js";
import { STATUSES, term } from "./search.js";
import { labelLinks } from "./jobs.js";
import { go, hear, may, refollow, reload, room, to } from "./shell.js";

// Characters of the text that are kept, of one piece of it (only the last is drawn again), and of a JSON text before it
// is asked for; lines of the log that are kept, and characters of one.
const TEXT_CHARS = 60000, PIECE_CHARS = 4000, JSON_CHARS = 20000, LOG_LINES = 500, LINE_CHARS = 2000;

// What the events have said, up to the one with the id `cursor`: stays while the page is hidden or jobd is away.
const live = { id: null };
function begin(id) { Object.assign(live, { id, cursor: "0-0", pieces: [], made: 0, chars: 0, cut: 0, log: [], logCut: 0, share: null, step: "", isOver: false }); }

async function loadJob({ id }) {
  const job = await read(`v1/jobs/${encodeURIComponent(id)}`);
  if (job.status === "error") {
    // Dead letters are listed from below an id: from below the next one, this one comes first.
    const next = (BigInt(`0x${id.replaceAll("-", "")}`) + 1n).toString(16).padStart(32, "0").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
    const [letter] = (await read(query("v1/dlq", { limit: 1, before: next }))).letters;
    if (letter && letter.job_id === id) job.redriven_to = letter.redriven_to;
  }
  return job;
}

// -- events --

function isAfter(id, other) {
  const [attempt, number] = id.split("-").map(Number), [otherAttempt, otherNumber] = other.split("-").map(Number);
  return attempt > otherAttempt || (attempt === otherAttempt && number > otherNumber);
}

function heardOne({ id, type, data }) {
  if (!id || !isAfter(id, live.cursor)) return false;
  live.cursor = id;
  const inside = data.data, isOwn = STATUSES.includes(type);
  if (type === "token") addText(tokenText({ data }));
  else if (type === "gap") addText("Some of it is missing here: the worker fell silent.", true);
  else if (type === "dropped") addText(`${plural(inside.count, "event was", "events were")} dropped here.`, true);
  else if (type === "running" && live.pieces.length) addText(`Attempt ${inside.attempt}`, true);
  else if (type === "progress") Object.assign(live, { step: data.step, share: inside.progress ?? (inside.percent / 100 || live.share) });
  else if (!isOwn) addLine(id, data.ts, inside.level, [data.step, type === "log" && inside.line !== undefined ? inside.line : `${type} ${pretty(inside)}`].filter(Boolean).join(": "));
  if (isOwn) hear();
  redraw();
  live.isOver = isOwn && type !== "queued" && type !== "running";
  return live.isOver;
}

function addText(text, isMark = false) {
  const last = live.pieces.at(-1);
  if (last && !last.isMark && !isMark && last.text.length < PIECE_CHARS) last.text += text;
  else live.pieces.push({ key: live.made += 1, text, isMark });
  live.chars += text.length;
  while (live.chars > TEXT_CHARS + PIECE_CHARS) {
    const { length } = live.pieces.shift().text;
    Object.assign(live, { chars: live.chars - length, cut: live.cut + length });
  }
}

function addLine(key, ts, level, text) {
  live.log.push({ key, ts, level, text: text.length > LINE_CHARS ? `${text.slice(0, LINE_CHARS)}…` : text });
  if (live.log.length > LOG_LINES) { live.log.shift(); live.logCut += 1; }
}

// -- in words --

function inWords(job) {
  const { status, attempts = [], queue, finished_ts: ended } = job;
  if (status === "queued") return waitingWords(job, job.waiting || {});
  if (status === "running") return `${job.cancel_requested ? "It is to stop: attempt" : "Attempt"} ${job.attempt_count} of ${job.max_attempts} has been running for ${span((now() - attempts.at(-1).started_ts) / 1000)} in queue ${queue}.`;
  return `${{ done: "Done", error: "Failed for good", canceled: "Canceled" }[status]} ${ago(ended)}, after ${plural(attempts.length, "attempt")} and ${span((ended - job.created_ts) / 1000)}.`;
}

function waitingWords({ queue, task, run_after_ts: due, attempt_count: tried }, { reason, position, eta_s: eta, paused, limit_key: key, until_ts: until, depends_on: before, detail }) {
  const place = Number.isFinite(position) ? `${ordinal(position + 1)} in line` : "behind more than 10 000 others", start = Number.isFinite(eta) ? `, about ${span(eta)} until it begins` : "";
  if (reason === "in_line") return `It is ${place} in queue ${queue}${start}.`;
  if (reason === "paused") return `${{ all: "Everything", task: `Task ${task}` }[paused] || `Queue ${queue}`} is paused: it waits${Number.isFinite(position) ? `, ${place},` : ""} until somebody resumes it.`;
  if (reason === "delayed") return `It is to begin ${ago(due)}, at ${absolute(due)}.`;
  if (reason === "retry_backoff") return `Attempt ${tried} failed; the next one begins ${ago(due)}.`;
  if (reason === "snoozed") return `Its handler has put it off; it begins again ${ago(due)}.`;
  if (reason === "limited") return `Its key ${key} has no room: jobs with this key are limited${until ? `, perhaps until ${absolute(until)}` : ""}.`;
  if (reason === "model_swap") return `It waits for its model to be loaded: ${detail}.`;
  if (reason === "memory" || reason === "heat") return `It waits for ${reason === "heat" ? "the board to cool down" : "memory"}: ${detail}.`;
  if (reason === "depends") return `It waits for ${before && before.length < 100 ? plural(before.length, "job or group", "jobs or groups") : "other jobs"} to end.`;
  return `It waits: ${String(reason).replaceAll("_", " ")}${start}.`;
}

function errorText(error) {
  return error.message === undefined ? pretty(error) : [h("b", {}, h("bdi", {}, error.code)), " ", h("bdi", {}, error.message)];
}

// -- what can be done --

function actions(job) {
  const { status, cancel_requested: isStopping, job_id: id } = job;
  return may("client") && h("div", { class: "buttons" }, status === "queued" || status === "running" ? button("Cancel", () => cancel(job), { kind: "danger", disabled: isStopping }) : null,
    status === "error" ? button("Retry", () => retry(job), { kind: "primary" }) : null, h("a", { class: "act", href: to({ view: "submit", from: id }) }, "Replay with edits"), h("a", { class: "act", href: to({ view: "groups", job: id }) }, "Graph"));
}

async function cancel({ task, job_id: id }) {
  if (!await ask(`Cancel ${task} ${shortId(id)}?`, { text: "It is stopped if it runs. This cannot be undone.", yes: "Cancel the job", kind: "danger" })) return;
  await write(`v1/jobs/${id}/cancel`);
  await reload();
}

async function retry({ redriven_to: other, job_id: id }) {
  if (other && !await ask("Run it once more?", { text: "It was run again already, as another job.", yes: "Run it once more" })) return;
  go({ view: "job", id: (await write(`v1/jobs/${id}/retry`)).job_id });
}

// -- parts --

// A text that grows at its end, which stays in sight; `cut` says what is not shown of its beginning.
function growing(title, cut, kind, lines) {
  return lines.length ? card(title, {}, cut ? h("p", { class: "faint" }, `${cut} at the beginning not shown.`) : null, h("div", { class: `live ${kind}`, tabindex: 0, role: "log", "aria-live": "off", "aria-label": title }, h("div", {}, lines))) : null;
}

function progressLine({ status }) {
  if (live.share === null || status !== "running") return null;
  const text = `${Math.round(live.share * 100)} %`;
  return h("div", {}, bar(live.share, `${text} done`), h("span", { class: "faint" }, text, " ", h("bdi", {}, live.step)));
}

function attemptsCard({ attempts = [], created_ts: made, finished_ts: ended }) {
  const end = ended || now(), at = (ts) => ((ts - made) / Math.max(end - made, 1)) * 1000;
  const line = ({ number, outcome, owner_id: owner, error, started_ts: begun, ended_ts: over }) => {
    const x = Math.min(Math.max(at(begun), 0), 992), kind = outcome || "running", took = span(((over || end) - begun) / 1000);
    return h("li", { key: number }, h("div", { class: "line" }, h("b", {}, number), chip(kind), h("bdi", { class: "grow faint", title: owner }, owner), h("span", { class: "right" }, took)),
      h("svg", { class: "bar axis", viewBox: "0 0 1000 6", preserveAspectRatio: "none", role: "img", "aria-label": `attempt ${number}: ${kind}, ${took}` }, h("rect", { width: 1000, height: 6, class: "under" }), h("rect", { class: kind, x, width: Math.max(at(over || end) - x, 8), height: 6 })),
      error ? h("p", { class: "error" }, errorText(error)) : null);
  };
  return card("Attempts", {}, attempts.length ? [h("ol", { class: "attempts" }, attempts.map(line)), h("p", { class: "line faint" }, h("span", { class: "grow" }, "made ", when(made)), h("span", {}, ended ? ["ended ", when(ended)] : "now"))] : empty("None yet."));
}

function folded(name, id, value, more) {
  return fold(name, () => {
    const text = pretty(value), rest = text.length - JSON_CHARS;
    return [json(text.slice(0, JSON_CHARS)), rest > 0 ? fold(`${count(rest)} more characters`, () => json(text.slice(JSON_CHARS)), { key: `rest of ${name} ${id}` }) : null, more];
  }, { key: `${name} ${id}` });
}

function contents({ job_id: id, status, payload, result, result_ref: file }) {
  const link = h("a", { href: `v1/jobs/${id}/result`, target: "_blank", rel: "noopener" }, file ? "Open the result, which is large" : "Open it alone");
  return h("section", { class: "card", "aria-label": "Contents" }, folded("Payload", id, payload), status !== "done" ? null : file ? link : folded("Result", id, result, link));
}

function about(job) {
  const link = (id) => id && h("a", { href: to({ view: "job", id }) }, h("code", {}, shortId(id))), found = (name, value) => value && h("a", { href: to({ view: "jobs", q: term(name, value) }) }, h("bdi", {}, value));
  const time = (ts) => ts && when(ts), code = (text) => text && h("code", {}, text);
  return card("About", {}, facts([["Task", found("task:", job.task)], ["Queue", found("queue:", job.queue)], ["Priority", job.priority], ["Owner", found("owner:", job.owner)], ["Made", time(job.created_ts)], ["Begun", time(job.started_ts)], ["Ended", time(job.finished_ts)],
    ["Attempts", `${job.attempt_count} of ${job.max_attempts}`], ["Interrupted", job.interruptions ? `${plural(job.interruptions, "time")} by the stop of its node` : null], ["Time limit", span(job.timeout_s)], ["Retry of", link(job.redriven_from)], ["Retried as", link(job.redriven_to)], ["Labels", Object.keys(job.labels).length ? labelLinks(job.labels, 16) : null],
    ["Id", code(job.job_id)], ["Trace", code(job.traceparent)]]));
}

room({
  name: "job",
  title: "Job",
  parent: "jobs",
  load: loadJob,
  stream: ({ id }) => {
    if (live.id !== id) begin(id);
    return live.isOver ? null : query(`v1/jobs/${encodeURIComponent(id)}/events`, { after: live.cursor });
  },
  heard: heardOne,
  // The cursor is ahead of the job: the board was restored from a backup.
  restart: ({ id }) => { begin(id); refollow(); },
  view: (job) => {
    if (!job) return empty("Asking jobd…");
    const { cut, logCut, pieces, log } = live, isRunning = job.status === "running";
    return [h("header", { class: "head" }, h("h1", {}, h("bdi", {}, job.task), " ", h("code", {}, shortId(job.job_id))), chip(isRunning && job.cancel_requested ? "stopping" : job.status, job.status), actions(job)),
      h("p", { class: "lead" }, inWords(job)), job.error ? h("p", { class: "problem" }, errorText(job.error)) : null, progressLine(job),
      growing("Text", cut && plural(cut, "character"), "tall", pieces.map(({ key, text, isMark }) => h("span", { key, class: isMark && "cut" }, text))),
      h("div", { class: "columns" }, attemptsCard(job), about(job)), contents(job),
      growing("Log", logCut && plural(logCut, "line"), "log", log.map(({ key, ts, level, text }) => h("p", { key, class: level === "error" && "error" }, h("time", { title: absolute(ts) }, new Date(ts).toLocaleTimeString()), " ", text)))];
  },
});

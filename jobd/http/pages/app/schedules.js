// Schedules: when each is due next, here and in its own zone, its last jobs, and what was missed.

import { h } from "./dom.js";
import { absolute, count, plural, shortId } from "./words.js";
import { query, read, write } from "./api.js";
import { button, card, chip, empty, facts, fold, json, note, table, when } from "./parts.js";
import { may, reload, room, to } from "./shell.js";

const schedulePath = (name, verb = "") => `v1/schedules/${encodeURIComponent(name)}${verb}`;

async function loadSchedules({ name, after }) {
  if (!name) return read(query("v1/schedules", { after }));
  const [one, { jobs }] = await Promise.all([read(schedulePath(name)), read(query("v1/jobs", { schedule: name, limit: 10 }))]);
  return { one, jobs };
}

// A moment in the zone of the schedule.
function inZoneOf(ts, zone) {
  return new Date(ts).toLocaleString(undefined, { timeZone: zone, dateStyle: "medium", timeStyle: "short" });
}

function nextTimes({ upcoming_ts, timezone, name }) {
  return table(`Next times of ${name}`, [
    { name: "In", cell: when }, { name: "Here", cell: absolute }, { name: timezone, cell: (ts) => inZoneOf(ts, timezone) },
  ], upcoming_ts, (ts) => ts);
}

const timingWords = ({ cron, every, timezone }) => (every ? `every ${every}` : [h("code", {}, cron), ` ${timezone}`]);

function scheduleState({ paused, paused_why, next_ts }) {
  return h("span", { title: paused_why }, chip(paused ? "paused" : next_ts ? "active" : "ended", paused ? "paused" : next_ts ? "done" : "canceled"));
}

// -- acting --

async function turnSchedule({ name, paused }) {
  await write(schedulePath(name, paused ? "/resume" : "/pause"));
  note(`Schedule ${name} ${paused ? "goes on" : "is paused"}`);
  await reload();
}

async function runNow({ name }) {
  const { job_id } = await write(schedulePath(name, "/run"));
  note(`Job ${shortId(job_id)} of schedule ${name} was made`);
  await reload();
}

function scheduleButtons(one) {
  const word = one.paused ? "Resume" : "Pause";
  return may("client") ? [
    button("Run now", () => runNow(one), { kind: "small", key: `run ${one.name}`, label: `Run schedule ${one.name} now` }), " ",
    button(word, () => turnSchedule(one), { kind: "small", key: `turn ${one.name}`, label: `${word} schedule ${one.name}` })] : null;
}

// -- views --

const SCHEDULE_COLUMNS = [
  { name: "Schedule", cell: (one) => [h("a", { href: to({ view: "schedules", name: one.name }), "data-row": true }, one.name), " ", scheduleState(one)] },
  { name: "When", narrow: false, cell: timingWords },
  { name: "Next", cell: (one) => (one.next_ts ? fold(when(one.next_ts), () => nextTimes(one), { key: `times ${one.name}` }) : "–") },
  { name: "Task", narrow: false, cell: (one) => one.task },
  { name: "Started", right: true, cell: (one) => count(one.started_count) },
  { name: "Missed", right: true, narrow: false, cell: (one) => (one.missed_count ? h("span", { class: "error" }, count(one.missed_count)) : "0") },
  { name: "Action", head: h("span", { class: "unseen" }, "Action"), right: true, cell: scheduleButtons },
];

function scheduleList({ schedules, next }) {
  return card("Schedules", {}, schedules.length ? table("Schedules", SCHEDULE_COLUMNS, schedules, (one) => one.name)
    : empty("No schedules yet. ", h("code", {}, "jobd schedule create"), " makes one."),
  next ? h("a", { href: to({ view: "schedules", after: next }) }, "More") : null);
}

function scheduledJob({ job_id, status, scheduled_for_ts, finished_ts }) {
  return h("li", { key: job_id }, h("a", { href: to({ view: "job", id: job_id }) }, h("code", {}, shortId(job_id))), " ", chip(status), " for ", absolute(scheduled_for_ts), finished_ts ? [", ended ", when(finished_ts)] : null);
}

function scheduleView({ one, jobs }) {
  return [card(one.name, {}, h("p", {}, scheduleState(one), " ", one.paused_why, " ", scheduleButtons(one)),
    facts([["When", timingWords(one)], ["Task", one.task], ["Queue", one.queue], ["Overlap", one.overlap], ["Catch up", one.catch_up], ["Made by", one.origin === "config" ? "the configuration" : one.created_by],
      ["So far", `${plural(one.started_count, "job")}, ${count(one.skipped_count)} skipped, ${count(one.missed_count)} missed`], ["Waiting", one.buffered_ts.length || null]]),
    fold("Payload", () => json(one.payload), { key: `payload ${one.name}` })),
  card("Next five times", {}, one.upcoming_ts.length ? nextTimes(one) : empty("There are none.")),
  card("Last jobs", {}, jobs.length ? h("ul", {}, jobs.map(scheduledJob)) : empty("It has made none yet.")),
  one.events.length ? card("Missed, skipped, delayed", {}, h("ul", {}, one.events.map((event, index) => h("li", { key: index }, when(event.at_ts), ` ${event.kind} ${count(event.number)}: ${event.detail}`)))) : null];
}

room({
  name: "schedules",
  title: "Schedules",
  icon: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18",
  load: loadSchedules,
  view: (data) => (data === null ? null : data.one ? scheduleView(data) : scheduleList(data)),
});

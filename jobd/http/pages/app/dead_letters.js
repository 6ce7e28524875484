// Dead letters by error and task: how many, what the newest says, and running all of a group again, in batches.

import { h } from "./dom.js";
import { count, plural, shortId } from "./words.js";
import { read, write } from "./api.js";
import { ask, bar, button, card, chip, empty, note, redraw, when } from "./parts.js";
import { may, reload, room, to } from "./shell.js";
import { term } from "./search.js";

// Jobs that one call runs again: each call is one commit, and progress shows in between.
const RETRY_BATCH = 200;

// What is run again just now: how many of how many, and whether a person wants it to stop.
const retrying = { total: 0, changed: 0, isOn: false, isStopped: false };

async function runAgain(filter, total, what) {
  const text = "Each runs as a new job, and only once: those that run again already are left out.";
  if (!await ask(`Run ${what} again?`, { text, yes: "Run again" })) return;
  Object.assign(retrying, { total, changed: 0, isOn: true, isStopped: false });
  let before;
  try {
    do {
      const answer = await write("v1/jobs/retry", { ...filter, status: "error", limit: RETRY_BATCH, before });
      retrying.changed += answer.changed;
      before = answer.next || undefined;
      redraw();
    } while (before && !retrying.isStopped);
    note(`${plural(retrying.changed, "job runs", "jobs run")} again${before ? "; the rest was left" : ""}`);
  } finally {
    retrying.isOn = false;
    await reload();
  }
}

function progressCard() {
  if (!retrying.isOn) return null;
  const { changed, total } = retrying;
  return h("div", { class: "card", role: "status" }, h("div", { class: "line" }, h("span", { class: "grow" }, `${count(changed)} of ${count(total)} run again`),
    h("button", { class: "small", disabled: retrying.isStopped, onclick: () => { retrying.isStopped = true; redraw(); } }, "Stop")), bar(changed / Math.max(total, 1)));
}

function groupCard(group, isExact) {
  const { error, task, open } = group, again = group.count - open, known = `${isExact ? "" : "at least "}${plural(open, "job")}`;
  return h("li", { key: `${error} ${task}`, class: "card" },
    h("div", { class: "line" }, chip(error || "no code", "error"), h("b", { class: "grow" }, task), h("span", { class: "right" }, when(group.last_ts))),
    h("p", { class: "said" }, group.message || empty("It says nothing.")),
    h("div", { class: "line" }, h("span", { class: "grow faint" }, plural(group.count, "dead letter"), again ? `, ${count(again)} run again` : ""),
      h("a", { href: to({ view: "job", id: group.example_id }), "data-row": true, "aria-label": `Newest: job ${shortId(group.example_id)}` }, h("code", {}, shortId(group.example_id))),
      error ? h("a", { href: to({ view: "jobs", q: `status:error ${term("error:", error)} task:${task}` }) }, "show all") : null,
      may("client") && open && error ? button(`Run ${count(open)} again`, () => runAgain({ error, task }, open, known), { kind: "small", key: `again ${error} ${task}`, label: `Run ${count(open)} of ${task} with ${error} again`, disabled: retrying.isOn }) : null));
}

room({
  name: "dead_letters",
  title: "Dead letters",
  icon: "M12 3l9 16H3zM12 10v4M12 17v0",
  every_s: 15,
  load: () => read("v1/dlq/groups"),
  view: (data) => {
    if (!data) return empty("Asking jobd…");
    const open = data.groups.reduce((sum, group) => sum + group.open, 0), known = `${data.exact ? "all" : "at least"} ${plural(open, "job")}`;
    return [h("header", { class: "head" }, h("h1", {}, "Dead letters"), may("client") && open ? h("span", { class: "act-right" }, button(`Run ${known} again`, () => runAgain({}, open, known), { key: "again all", disabled: retrying.isOn })) : null,
      data.exact ? null : h("p", { class: "faint" }, "Only the newest 10 000 were looked at.")),
    progressCard(), data.groups.length ? h("ul", { class: "stack" }, data.groups.map((group) => groupCard(group, data.exact))) : card("All is well", {}, empty("Nothing has failed for good."))];
  },
});

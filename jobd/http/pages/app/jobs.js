// Every job: found by terms, page by page, live without jumping, and changed one by one or all that fit.

import { h } from "./dom.js";
import { count, plural, shortId } from "./words.js";
import { query, read, write } from "./api.js";
import { ask, bar, button, chip, empty, note, redraw, table, when } from "./parts.js";
import { STATUSES, parse, suggestions, term } from "./search.js";
import { go, hear, may, reload, room, to } from "./shell.js";

// Jobs of a page, and how many pages are asked for before people are: a rare kind of job may be far back.
const PAGE = 50, ROUNDS = 4;
// Jobs of one call that changes them: few enough to see it go on, and to stop it.
const BATCH = 100;

// What was found for the text `q`: rows newest first, where the next page begins, and how many new jobs are held back.
const found = { q: null, rows: [], next: null, fresh: 0, isLoaded: false };
// The ids that are selected; `all`: everything that fits, { filter, count, exact }.
const chosen = { ids: new Set(), all: null };
const box = { q: null, text: "" };
const names = { "queue:": [], "task:": [], isKnown: false };

// -- finding --

async function loadJobs({ q = "" }) {
  if (found.q !== q) {
    Object.assign(found, { q, rows: [], next: null, fresh: 0, isLoaded: false });
    choose([]);
  }
  const { filter, id, problem } = parse(q);
  if (problem) return { problem };
  try {
    const page = id ? { jobs: [await read(`v1/jobs/${id}`)], next: null } : await pages(filter, null);
    if (found.q === q) merge(page, filter || {}, false);
  } catch (error) {
    if (![400, 404, 410, 422].includes(error.status)) throw error;
    return { problem: error.message };
  }
  if (!names.isKnown) {
    const [{ queues }, { tasks }] = await Promise.all([read("v1/queues"), read("v1/tasks")]);
    Object.assign(names, { "queue:": queues.map(({ name }) => name), "task:": tasks.map(({ name }) => name), isKnown: true });
  }
  return {};
}

// Jobs that fit and are older than `before`: a page of them, or fewer if they are rare.
async function pages({ labels = {}, ...terms }, before) {
  const jobs = [], label = Object.entries(labels).map((pair) => pair.join(":"));
  for (let round = 0; round < ROUNDS && jobs.length < PAGE; round += 1) {
    const page = await read(query("v1/jobs", { ...terms, label, limit: PAGE - jobs.length, before }));
    jobs.push(...page.jobs);
    before = page.next;
    if (before === null) break;
  }
  return { jobs, next: before };
}

// Takes over the newest page. While somebody is at the list, known rows change in place and new ones wait.
function merge({ jobs, next }, { status }, isWanted) {
  const rows = new Map(found.rows.map((row) => [row.job_id, row])), isInUse = scrollY > 60 || chosen.ids.size || chosen.all || document.querySelector(".jobs tbody:hover, .jobs tbody :focus");
  if (isInUse && rows.size && !isWanted) {
    for (const job of jobs) Object.assign(rows.get(job.job_id) || {}, job);
    found.fresh = jobs.filter((job) => !rows.has(job.job_id)).length;
  } else {
    const older = next ? found.rows.filter((row) => row.job_id < next && (!status || status === row.status)) : [];
    Object.assign(found, { rows: [...jobs, ...older], next: older.length ? found.next : next, fresh: 0 });
  }
  found.isLoaded = true;
}

async function showFresh() {
  const { filter } = parse(found.q);
  merge(await pages(filter, null), filter, true);
  scrollTo(0, 0);
}

async function loadMore() {
  const { q, next } = found, page = await pages(parse(q).filter, next);
  if (found.q === q && found.next === next) Object.assign(found, { rows: [...found.rows, ...page.jobs], next: page.next });
}

function heardOfJob({ type, data }) {
  const row = STATUSES.includes(type) && found.rows.find(({ job_id }) => job_id === data.job_id);
  if (row) Object.assign(row, { status: type, attempt_count: Math.max(row.attempt_count, data.attempt || 0) });
  if (type !== "hello") hear();
  redraw();
}

// -- the box --

// Values by term: names of this jobd, and what the rows have.
function known() {
  const values = { "status:": STATUSES, ...names };
  const add = (name, value) => { if (value && !(values[name] ??= []).includes(value)) values[name].push(value); };
  for (const { owner, labels } of found.rows) {
    add("owner:", owner);
    for (const name of Object.keys(labels)) add(`label.${name}:`, labels[name]);
  }
  return values;
}

function searchBox(q, problem) {
  if (box.q !== q) Object.assign(box, { q, text: q });
  const search = (event) => {
    event.preventDefault();
    const { id } = parse(box.text);
    event.target.elements.q.blur();
    go(id ? { view: "job", id } : { view: "jobs", q: box.text.trim() });
  };
  return h("form", { class: "search", role: "search", onsubmit: search },
    h("input", { name: "q", type: "search", list: "terms", value: box.text, placeholder: "status:error task:chat label.user:ann age<2d", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-label": "Search jobs",
      "aria-invalid": problem && "true", "aria-describedby": problem && "search-problem", oninput: (event) => { box.text = event.target.value; redraw(); } }),
    h("datalist", { id: "terms" }, suggestions(box.text, known()).map((text) => h("option", { key: text, value: text }))),
    problem && h("p", { id: "search-problem", class: "problem", role: "alert" }, problem));
}

function statusLinks(q) {
  const { filter = {} } = parse(q), rest = q.replace(/(^|\s)status:\S*/gi, "").trim();
  return h("div", { class: "filters" }, ["", ...STATUSES].map((status) => h("a", { key: status, href: to({ view: "jobs", q: `${status && `status:${status} `}${rest}`.trim() }), "aria-current": (filter.status || "") === status && "true" }, status || "all")));
}

// -- the list --

function choose(ids) {
  Object.assign(chosen, { ids: new Set(ids), all: null });
  redraw();
}

function checkbox(label, checked, set) { return h("input", { type: "checkbox", "aria-label": label, checked, onchange: (event) => set(event.target.checked) }); }

function selectColumn() {
  const { ids, all } = chosen, shown = found.rows.map((row) => row.job_id);
  return { name: "select", class: "select", head: checkbox("Select all that are shown", Boolean(all) || shown.every((id) => ids.has(id)), (isOn) => choose(isOn ? shown : [])),
    cell: ({ job_id: id }) => checkbox(`Select job ${shortId(id)}`, Boolean(all) || ids.has(id), (isOn) => choose(isOn ? [...ids, id] : (all ? shown : [...ids]).filter((other) => other !== id))) };
}

export function labelLinks(labels, most) {
  const all = Object.keys(labels), link = (name) => h("a", { key: name, class: "label", href: to({ view: "jobs", q: term(`label.${name}:`, labels[name]) }) }, h("bdi", { class: "faint" }, name), " ", h("bdi", {}, labels[name]));
  return [all.slice(0, most).map(link), all.length > most ? ` +${all.length - most}` : null];
}

const COLUMNS = [
  { name: "Status", class: "status", cell: (row) => chip(row.status) },
  { name: "Job", class: "name", cell: (row) => h("a", { href: to({ view: "job", id: row.job_id }), "data-row": true }, h("b", {}, row.task), " ", h("code", {}, shortId(row.job_id))) },
  { name: "Queue", class: "queue", cell: (row) => row.queue },
  { name: "Labels", class: "labels", cell: (row) => labelLinks(row.labels, 4) },
  { name: "Attempts", class: "tries", right: true, cell: (row) => `${row.attempt_count}/${row.max_attempts}` },
  { name: "Age", class: "age", right: true, cell: (row) => when(row.created_ts) },
];

function jobTable(q) {
  const { rows, next } = found;
  if (rows.length) return table("Jobs", may("client") ? [selectColumn(), ...COLUMNS] : COLUMNS, rows, (row) => row.job_id, (row) => ({ class: (chosen.all || chosen.ids.has(row.job_id)) && "chosen" }));
  return next ? empty("None so far.") : q ? empty("No job fits. ", h("a", { href: to({ view: "jobs" }) }, "Show all jobs")) : empty("There are no jobs yet. ", may("client") && h("a", { href: to({ view: "submit" }) }, "Submit the first"));
}

// An id begins with the time at which it was made: that far back was looked.
function moreLine({ rows, next }) {
  return next && h("p", { class: "line" }, button("Load more", loadMore), rows.length % PAGE ? h("span", { class: "faint" }, "looked back to ", when(parseInt(next.replace("-", "").slice(0, 12), 16))) : null);
}

// -- changing --

const ACTIONS = {
  cancel: { name: "Cancel", past: "Canceled", among: ["queued", "running"], kind: "danger", warning: "Waiting jobs end, running ones are stopped. This cannot be undone." },
  retry: { name: "Retry", past: "Retried", among: ["error"], kind: "", warning: "Each dead letter runs again as a new job, once." },
  // Only for all that fit: the API deletes by a filter.
  delete: { name: "Delete", past: "Deleted", among: ["done", "error", "canceled"], kind: "danger", warning: "Finished jobs, their results and events are removed. This cannot be undone." },
};
// The change that is under way.
const bulk = { action: null, isStopped: false, total: 0, changed: 0, skipped: 0, said: "" };

function amount({ count: number, exact }) { return `${exact ? "" : "at least "}${plural(number, "job")}`; }

async function selectAll() {
  const { filter } = parse(found.q);
  chosen.all = { filter, ...await write("v1/jobs/count", filter) };
}

async function change(action) {
  const { name, kind, among, warning } = ACTIONS[action], { all } = chosen;
  const ids = found.rows.filter((row) => chosen.ids.has(row.job_id) && among.includes(row.status)).map((row) => row.job_id);
  const total = all ? await write("v1/jobs/count", { ...all.filter, action }) : { count: ids.length, exact: true }, title = `${name} ${amount(total)}`;
  if (!total.count) return note(`None of them is ${among.join(" or ")}`);
  if (!await ask(`${title}?`, { text: `${all ? `All that fit: ${found.q || "every job"}. ` : ""}${warning}`, yes: title, kind })) return;
  await carryOut(action, total.count, all ? batches(action, all.filter) : singles(action, ids));
}

// Takes step after step until all are changed or somebody stops it.
async function carryOut(action, total, steps) {
  Object.assign(bulk, { action, isStopped: false, total, changed: 0, skipped: 0, said: "" });
  let end = "";
  try {
    for await (const { changed, skipped } of steps) {
      Object.assign(bulk, { changed: bulk.changed + changed, skipped: bulk.skipped + skipped });
      redraw();
      if (bulk.isStopped) break;
    }
  } catch (error) { end = `: ${error.message}`; }
  bulk.action = null;
  choose([]);
  if (bulk.isStopped || end) end = `, then stopped${end}`;
  note(`${ACTIONS[action].past} ${plural(bulk.changed, "job")}${bulk.skipped ? `, ${count(bulk.skipped)} needed nothing` : ""}${end}`, end && "bad");
  await reload();
}

async function* batches(action, filter) {
  let before;
  do {
    const answer = await patiently(() => write(`v1/jobs/${action}`, { ...filter, all: true, limit: BATCH, before }));
    yield answer;
    before = answer.next;
  } while (before);
}

async function* singles(action, ids) {
  for (const id of ids) {
    const act = () => (action === "retry" ? write("v1/dlq/retry", { ids: [id] }) : write(`v1/jobs/${id}/cancel`));
    yield await patiently(() => act().then((answer) => ({ changed: answer.retried ? answer.retried.length : 1, skipped: 0 }), (error) => {
      if (error.status !== 409 && error.status !== 410) throw error;
      return { changed: 0, skipped: 1 };
    }));
  }
}

// Again every 2 s while jobd is away or its queue is full. What a call changed whose answer was lost is then skipped.
async function patiently(act) {
  for (;;) {
    try { return await act(); } catch (error) {
      if (!(error.isAway || error.status === 429) || bulk.isStopped) throw error;
      bulk.said = ` – waiting: ${error.message}`;
      redraw();
      await new Promise((resolve) => setTimeout(resolve, 2000));
      bulk.said = "";
    }
  }
}

function can(action) {
  const { among } = ACTIONS[action], { ids, all } = chosen;
  if (!all) return action !== "delete" && found.rows.some((row) => ids.has(row.job_id) && among.includes(row.status));
  return (!all.filter.status || among.includes(all.filter.status)) && (action !== "cancel" || !(all.filter.error || all.filter.text));
}

function selectionBar() {
  const { ids, all } = chosen, { action, changed, skipped, total, said, isStopped } = bulk;
  if (action) {
    return h("div", { class: "selection", role: "status" }, h("span", { class: "grow" }, `${ACTIONS[action].past} ${count(changed)} of ${plural(total, "job")}${said}`, bar((changed + skipped) / total)),
      button("Stop", () => { bulk.isStopped = true; }, { kind: "small", disabled: isStopped }));
  }
  if (!ids.size && !all) return null;
  const more = !all && found.rows.every((row) => ids.has(row.job_id));
  return h("div", { class: "selection", role: "region", "aria-label": "Selection" },
    h("span", { class: "grow" }, all ? `All that fit: ${amount(all)} ` : `${count(ids.size)} selected `, more ? button("Select all that fit", selectAll, { kind: "plain" }) : null),
    Object.keys(ACTIONS).filter(can).map((name) => button(ACTIONS[name].name, () => change(name), { kind: `small ${ACTIONS[name].kind}` })), button("Clear", () => choose([]), { kind: "small" }));
}

room({
  name: "jobs",
  title: "Jobs",
  icon: "M4 6h16M4 12h16M4 18h10",
  load: loadJobs,
  heard: heardOfJob,
  view: (data, { q = "" }) => {
    const problem = data && data.problem, { isLoaded, fresh } = found;
    return [h("header", { class: "head" }, h("h1", {}, "Jobs"), may("client") && h("a", { class: "act primary", href: to({ view: "submit" }) }, "New job")),
      searchBox(q, problem), statusLinks(q), problem ? null : h("section", { class: "card jobs", "aria-label": "Jobs that fit" },
        fresh ? h("p", {}, button(`Show ${plural(fresh, "new job")}`, showFresh, { key: "fresh", kind: "small" })) : null, isLoaded && found.q === q ? [jobTable(q), moreLine(found)] : empty("Searching…")), selectionBar()];
  },
});

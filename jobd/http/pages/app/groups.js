// Groups with their counters and members; and, with ?job=, the graph of what a job waits for and what waits for it.

import { h } from "./dom.js";
import { count, plural, shortId } from "./words.js";
import { query, read, write } from "./api.js";
import { ask, button, card, chip, empty, facts, figure, note, table, when } from "./parts.js";
import { may, reload, room, to } from "./shell.js";

// Size of a node, and the room between two.
const NODE_W = 132, NODE_H = 34, GAP_X = 48, GAP_Y = 12;

async function loadGroups({ id, job, before }) {
  if (job) return { graph: await read(`v1/jobs/${encodeURIComponent(job)}/graph`), job };
  if (!id) return { list: await read(query("v1/groups", { before })) };
  const [one, { jobs }] = await Promise.all([read(`v1/groups/${encodeURIComponent(id)}`), read(query("v1/jobs", { group: id, limit: 50 }))]);
  return { one, jobs };
}

const groupName = ({ name, group_id: id }) => name || shortId(id);
const jobLink = (id) => h("a", { href: to({ view: "job", id }), "data-row": true }, h("code", {}, shortId(id)));

// -- acting --

// Changes members batch by batch, until none is left.
async function changeMembers({ group_id: id }, verb) {
  let changed = 0, before;
  do {
    const answer = await write(`v1/groups/${id}/${verb}`, { before });
    changed += answer.changed;
    before = answer.next;
  } while (before);
  note(`${verb}: ${plural(changed, "job")}`);
  await reload();
}

async function cancelMembers(one) {
  if (await ask(`Cancel ${plural(one.pending, "job")}?`, { text: "This cannot be undone.", yes: "Cancel the group", kind: "danger" })) await changeMembers(one, "cancel");
}

function groupButtons(one) {
  if (!may("client")) return null;
  return h("div", { class: "buttons" }, one.pending ? button("Cancel", () => cancelMembers(one), { kind: "danger" }) : null,
    one.error && one.error + one.canceled > one.retried ? button("Retry failed", () => changeMembers(one, "retry"), { kind: "primary" }) : null);
}

// -- views --

const GROUP_COLUMNS = [
  { name: "Group", cell: (one) => [h("a", { href: to({ view: "groups", id: one.group_id }), "data-row": true }, h("bdi", {}, groupName(one))), " ", chip(one.status)] },
  { name: "Members", right: true, cell: (one) => count(one.members) },
  { name: "Pending", right: true, cell: (one) => count(one.pending) },
  { name: "Failed", right: true, cell: (one) => (one.error ? h("span", { class: "error" }, count(one.error)) : "0") },
];

function groupList({ groups, next }) {
  return card("Groups", {}, groups.length ? table("Groups", GROUP_COLUMNS, groups, (one) => one.group_id) : empty("No groups yet. ", h("code", {}, "jobd group create"), " makes one."),
    next ? h("a", { href: to({ view: "groups", before: next }) }, "More") : null);
}

function groupView({ one, jobs }) {
  return [card(groupName(one), {}, h("p", {}, chip(one.status), one.sealed ? null : " open for more members"), groupButtons(one),
    h("div", { class: "figures" }, ["members", "pending", "done", "error", "canceled"].map((name) => figure(name, count(one[name])))),
    facts([["Made", when(one.created_ts)], ["Finished", when(one.finished_ts)], ["Callback", one.callback_id && jobLink(one.callback_id)]])),
  card("Members", {}, jobs.length ? table("Members", [{ name: "Job", cell: (job) => jobLink(job.job_id) }, { name: "Task", cell: (job) => job.task }, { name: "Status", cell: (job) => chip(job.status) }], jobs, (job) => job.job_id) : empty("It has none yet."))];
}

// The column of each node: one behind the last that it waits for.
function layers({ nodes, edges }) {
  const at = new Map(nodes.map(({ id }) => [id, 0]));
  for (let round = 0, moved = true; moved && round < nodes.length; round += 1) {
    moved = false;
    for (const { from, to: end } of edges) if (at.get(end) <= at.get(from)) { at.set(end, at.get(from) + 1); moved = true; }
  }
  return at;
}

function graphView({ graph, job }) {
  const at = layers(graph), filled = [], place = new Map();
  for (const { id } of graph.nodes) {
    const layer = at.get(id), row = (filled[layer] = (filled[layer] ?? -1) + 1);
    place.set(id, [layer * (NODE_W + GAP_X) + 1, row * (NODE_H + GAP_Y) + 1]);
  }
  const width = filled.length * (NODE_W + GAP_X) - GAP_X + 2, height = (Math.max(...filled) + 1) * (NODE_H + GAP_Y) - GAP_Y + 2;
  const line = ({ from, to: end, on }) => {
    const [x, y] = place.get(from), [u, v] = place.get(end), a = x + NODE_W, b = y + NODE_H / 2, d = v + NODE_H / 2;
    return h("path", { key: `${from} ${end}`, class: on, d: `M${a} ${b}C${a + GAP_X / 2} ${b} ${u - GAP_X / 2} ${d} ${u} ${d}` });
  };
  const node = ({ id, kind, title, status }) => {
    const [x, y] = place.get(id), label = `${title || kind} ${shortId(id)}, ${status || "deleted"}`;
    return h("a", { key: id, class: `${status || ""}${id === job ? " here" : ""}`, href: to(kind === "group" ? { view: "groups", id } : { view: "job", id }), "aria-label": label },
      h("rect", { x, y, width: NODE_W, height: NODE_H, rx: 6 }), h("text", { x: x + 8, y: y + 14 }, (title || kind).slice(0, 18)), h("text", { x: x + 8, y: y + 27, class: "faint" }, `${shortId(id)} ${status || "deleted"}`));
  };
  return card("Graph", {}, graph.is_cut ? h("p", { class: "faint" }, "Only the 100 nearest are shown.") : null,
    h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Graph of jobs" }, h("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}` }, graph.edges.map(line), graph.nodes.map(node))));
}

room({
  name: "groups",
  title: "Groups",
  icon: "M4 5h6v5H4zM14 14h6v5h-6zM7 10v7h7",
  load: loadGroups,
  view: (data) => (data === null ? null : data.graph ? graphView(data) : data.one ? groupView(data) : groupList(data.list)),
});

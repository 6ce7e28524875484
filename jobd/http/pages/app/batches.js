// Batches: files of calls, how far each has come, and what it ended with.

import { h } from "./dom.js";
import { count } from "./words.js";
import { query, read, write } from "./api.js";
import { ask, bar, button, card, chip, empty, facts, figure, note, table, when } from "./parts.js";
import { may, reload, room, to } from "./shell.js";

// How a status looks, in the words of jobs.
const BATCH_KINDS = { validating: "queued", in_progress: "running", finalizing: "running", completed: "done", failed: "error", expired: "error", cancelling: "canceled", cancelled: "canceled" };

async function loadBatches({ id, after }) {
  return id ? { one: await read(`v1/batches/${encodeURIComponent(id)}`) } : { list: await read(query("v1/batches", { after })) };
}

const batchChip = ({ status }) => chip(status.replace("_", " "), BATCH_KINDS[status] || "");
// The API has seconds.
const at = (seconds) => when(seconds && seconds * 1000);
// The group of a batch has its id, with dashes.
const groupOf = ({ id }) => id.slice(6).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");

function batchProgress({ request_counts: { total, completed, failed } }) {
  const ended = completed + failed;
  return total ? bar(ended / total, `${count(ended)} of ${count(total)} lines have ended`) : null;
}

async function cancelBatch(one) {
  if (!(await ask("Cancel the batch?", { text: "What is done is kept; all other lines are not run.", yes: "Cancel the batch", kind: "danger" }))) return;
  await write(`v1/batches/${one.id}/cancel`);
  note("The batch is being cancelled");
  await reload();
}

const BATCH_COLUMNS = [
  { name: "Batch", cell: (one) => [h("a", { href: to({ view: "batches", id: one.id }), "data-row": true }, h("code", {}, one.id.slice(-8))), " ", batchChip(one)] },
  { name: "Model", class: "wrap", cell: (one) => h("bdi", {}, one.model || "–") },
  { name: "Progress", cell: batchProgress },
  { name: "Lines", right: true, cell: (one) => count(one.request_counts.total) },
  { name: "Failed", right: true, cell: ({ request_counts: { failed } }) => (failed ? h("span", { class: "error" }, count(failed)) : "0") },
  { name: "Made", cell: (one) => at(one.created_at) },
];

function batchList({ data, has_more: more, last_id: after }) {
  return card("Batches", {}, data.length ? table("Batches", BATCH_COLUMNS, data, (one) => one.id) : empty("No batches yet. ", h("code", {}, "POST /v1/batches"), " makes one."),
    more ? h("a", { href: to({ view: "batches", after }) }, "More") : null);
}

function batchView(one) {
  const { total, completed, failed } = one.request_counts, open = ["validating", "in_progress"].includes(one.status);
  const file = (id) => id && h("a", { href: `v1/files/${id}/content`, download: `${id}.jsonl` }, h("code", {}, id));
  const faults = one.errors ? one.errors.data : [];
  return [card("Batch", {}, h("p", {}, batchChip(one), " ", h("code", {}, one.id)), batchProgress(one),
    open && may("client") ? h("div", { class: "buttons" }, button("Cancel", () => cancelBatch(one), { kind: "danger" })) : null,
    h("div", { class: "figures" }, figure("lines", count(total)), figure("completed", count(completed)), figure("failed", count(failed), { kind: failed ? "error" : "" })),
    facts([["Endpoint", one.endpoint], ["Model", one.model && h("bdi", {}, one.model)], ["Made", at(one.created_at)], ["Expires", open ? at(one.expires_at) : null],
      ["Ended", at(one.completed_at || one.failed_at || one.expired_at || one.cancelled_at)], ["Input", file(one.input_file_id)], ["Output", file(one.output_file_id)],
      ["Errors", file(one.error_file_id)], ["Jobs", one.in_progress_at && h("a", { href: to({ view: "groups", id: groupOf(one) }) }, "Group of its jobs")]])),
  faults.length ? card("Why it failed", {}, table("Faults", [{ name: "Line", right: true, cell: (fault) => fault.line ?? "–" }, { name: "Fault", class: "wrap", cell: (fault) => [h("code", {}, fault.code), " ", fault.message] }], faults, (fault) => `${fault.line} ${fault.code}`)) : null];
}

room({
  name: "batches",
  title: "Batches",
  icon: "M5 4h10l4 4v12H5zM8 12h8M8 16h8",
  load: loadBatches,
  every_s: 3,
  view: (data) => (data === null ? null : data.one ? batchView(data.one) : batchList(data.list)),
});

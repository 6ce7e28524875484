// Who holds which jobs, when each was last heard of, and the slots of this jobd.

import { h } from "./dom.js";
import { count, now, shortId } from "./words.js";
import { query, read } from "./api.js";
import { bar, card, chip, empty, table, when } from "./parts.js";
import { room, to } from "./shell.js";

const WORKER_KINDS = { slots: "slots of jobd", http: "HTTP", redis: "Redis" };

async function loadWorkers() {
  const [workers, queues] = await Promise.all([read(query("v1/workers", { limit: 200, held: 100 })), read("v1/queues")]);
  return { ...workers, queues: queues.queues.filter(({ slots }) => slots) };
}

const WORKER_COLUMNS = [
  { name: "Worker", class: "wrap", cell: (worker) => h("code", {}, worker.worker_id) },
  { name: "Kind", narrow: false, cell: ({ kind }) => WORKER_KINDS[kind] },
  { name: "Jobs", right: true, cell: ({ jobs }) => count(jobs) },
  { name: "Heartbeat", right: true, cell: (worker) => [worker.lease_expires_ts < now() ? [chip("silent", "error"), " "] : null, when(worker.last_heartbeat_ts)] },
  { name: "Lease ends", right: true, narrow: false, cell: (worker) => when(worker.lease_expires_ts) },
];
const HELD_COLUMNS = [
  { name: "Job", cell: (job) => h("a", { href: to({ view: "job", id: job.job_id }), "data-row": true }, h("b", {}, job.task), " ", h("code", {}, shortId(job.job_id))) },
  { name: "Worker", class: "wrap", narrow: false, cell: ({ worker_id }) => h("code", {}, worker_id) },
  { name: "Queue", narrow: false, cell: ({ queue }) => queue },
  { name: "Attempt", right: true, narrow: false, cell: ({ attempt }) => attempt },
  { name: "Step", class: "wrap", cell: ({ step, progress, cancel_requested }) => [cancel_requested ? chip("stopping", "canceled") : null, step, progress === null ? null : bar(progress, `${Math.round(progress * 100)} % done`)] },
  { name: "Since", right: true, cell: (job) => when(job.started_ts) },
];

function slotLine({ name, running, slots, paused }) {
  return h("li", { key: name }, h("span", { class: "grow" }, name, paused ? [" ", chip("paused")] : null), h("span", { class: "slots" }, bar(running / slots, `${running} of ${slots} taken`)), h("span", { class: "right" }, `${running} / ${slots}`));
}

room({
  name: "workers",
  title: "Workers",
  icon: "M9 11a3 3 0 100-6 3 3 0 000 6zM3 20c0-4 3-6 6-6s6 2 6 6M16 5a3 3 0 010 6M18 14c2 1 3 3 3 6",
  every_s: 3,
  load: loadWorkers,
  view: (data) => {
    if (!data) return empty("Asking jobd…");
    return [h("header", { class: "head" }, h("h1", {}, "Workers")),
      card(`Holding jobs: ${count(data.total)}`, {}, data.workers.length ? table("Workers", WORKER_COLUMNS, data.workers, ({ worker_id }) => worker_id) : empty("Nobody holds a job just now. Workers that wait for one are not known.")),
      data.held.length ? card("What they do", {}, table("Jobs that are held", HELD_COLUMNS, data.held, ({ job_id }) => job_id)) : null,
      card("Slots of this jobd", {}, data.queues.length ? h("ul", { class: "lines" }, data.queues.map(slotLine)) : empty("None: its jobs are run by workers."))];
  },
});

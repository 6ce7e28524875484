// What is paused, and how many jobs of a key run at once, start in a period, or have a turn: read and set while jobd runs.

import { h } from "./dom.js";
import { count, span } from "./words.js";
import { read, write } from "./api.js";
import { acting, ask, button, card, chip, empty, note, table } from "./parts.js";
import { may, reload, room } from "./shell.js";

async function loadLimits() {
  const [stats, tasks, { queues }] = await Promise.all([read("v1/stats"), read("v1/tasks"), read("v1/queues")]);
  const named = queues.filter(({ slots }) => slots !== null).map(({ name }) => name);
  const limits = await Promise.all(named.map((name) => read(`v1/queues/${encodeURIComponent(name)}/limits`)));
  return { isPaused: stats.paused, pausedTasks: new Set(stats.paused_tasks), tasks: tasks.tasks, limits };
}

// -- pauses --

async function pauseAll(isPaused) {
  if (!isPaused && !(await ask("Pause everything?", { text: "No node starts a job until you resume; what runs goes on.", yes: "Pause everything" }))) return;
  await write(isPaused ? "v1/resume" : "v1/pause");
  note(isPaused ? "Jobs start again" : "Everything is paused");
  await reload();
}

async function pauseTask(name, isPaused) {
  await write(`v1/tasks/${encodeURIComponent(name)}/${isPaused ? "resume" : "pause"}`);
  note(`Task ${name} ${isPaused ? "goes on" : "is paused"}`);
  await reload();
}

function taskLine(name, isPaused) {
  return h("li", { key: name }, h("span", { class: "grow" }, name, isPaused ? [" ", chip("paused")] : null),
    may("admin") ? button(isPaused ? "Resume" : "Pause", () => pauseTask(name, isPaused), { kind: "small", key: `pause task ${name}`, label: `${isPaused ? "Resume" : "Pause"} task ${name}` }) : null);
}

function pausesCard({ isPaused, pausedTasks, tasks }) {
  return card("Pauses", {},
    h("div", { class: "head" }, h("p", {}, isPaused ? "Everything is paused: no node starts a job." : "Paused tasks wait until they are resumed; queues are paused on the overview."),
      may("admin") ? button(isPaused ? "Resume everything" : "Pause everything", () => pauseAll(isPaused), { key: "pause all" }) : null),
    h("ul", { class: "lines" }, tasks.map(({ name }) => taskLine(name, pausedTasks.has(name)))));
}

// -- limits --

function rateWords({ rate, rate_s }) {
  if (rate === null) return "as for all";
  return rate ? `${count(rate)} in ${span(rate_s)}` : "any";
}

function runningWords({ running }) {
  return running === null ? "as for all" : running ? count(running) : "any";
}

async function dropLimit(queue, key) {
  await write(`v1/queues/${encodeURIComponent(queue)}/limits/drop`, { key });
  note(`Key ${key} of queue ${queue} is limited as all keys are`);
  await reload();
}

function limitColumns(queue) {
  const columns = [
    { name: "Key", class: "wrap", cell: ({ key }) => (key === "*" ? "* (all keys)" : h("code", {}, key)) },
    { name: "At once", right: true, cell: runningWords },
    { name: "Starts", right: true, cell: rateWords },
    { name: "Weight", right: true, narrow: false, cell: ({ weight }) => weight ?? "1" }];
  const drop = { name: "Action", head: h("span", { class: "unseen" }, "Action"), right: true, cell: ({ key }) => button("Drop", () => dropLimit(queue, key), { kind: "small", key: `drop ${queue} ${key}`, label: `Drop the limits of key ${key}` }) };
  return may("admin") ? [...columns, drop] : columns;
}

function limitForm(queue) {
  const submit = (event) => {
    event.preventDefault();
    const form = event.target, body = { key: form.elements.key.value.trim() };
    for (const name of ["running", "rate", "rate_s", "weight"]) if (form.elements[name].value !== "") body[name] = Number(form.elements[name].value);
    acting(`limit ${queue}`, async () => {
      await write(`v1/queues/${encodeURIComponent(queue)}/limits`, body);
      note(`The limits of key ${body.key} are set`);
      form.reset();
      await reload();
    });
  };
  const field = (name, label, props) => h("label", {}, label, h("input", { name, ...props }));
  const number = { type: "number", min: 0, step: "any", inputmode: "decimal" };
  return h("form", { class: "limit", "aria-label": `Limits of a key of queue ${queue}`, onsubmit: submit },
    field("key", "Key, or * for all", { required: true, autocomplete: "off", maxlength: 200 }), field("running", "At once", { ...number, step: 1 }),
    field("rate", "Starts", { ...number, step: 1 }), field("rate_s", "in seconds", number), field("weight", "Weight", number), h("button", { class: "primary" }, "Set"));
}

function limitsCard({ queue, configured, limits }) {
  const usual = [configured.running ? `${count(configured.running)} at once` : null, configured.rate ? `${count(configured.rate)} starts in ${span(configured.rate_s)}` : null, configured.fair ? "keys take turns" : null].filter(Boolean);
  return card(`Queue ${queue}`, { key: queue }, h("p", { class: "faint" }, `Every key, by the configuration: ${usual.length ? usual.join(", ") : "no limit"}.`),
    limits.length ? table(`Limits of queue ${queue}`, limitColumns(queue), limits, ({ key }) => key) : empty("No key has limits of its own."),
    may("admin") ? limitForm(queue) : null);
}

room({
  name: "limits",
  title: "Limits",
  icon: "M4 18a8 8 0 1116 0M12 18l4-6",
  load: loadLimits,
  view: (data) => {
    if (!data) return empty("Asking jobd…");
    return [h("header", { class: "head" }, h("h1", {}, "Limits and pauses")), pausesCard(data), data.limits.map(limitsCard)];
  },
});

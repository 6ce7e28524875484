// A new job: a form made from the task's JSON schema, or its payload as JSON. What was typed stays until the job is made.

import { h } from "./dom.js";
import { pretty, shortId } from "./words.js";
import { exactNumber, read, write } from "./api.js";
import { button, card, empty, problem, redraw } from "./parts.js";
import { plain, seconds, split, term } from "./search.js";
import { go, may, room, to } from "./shell.js";

// What was typed: the payload as a value, `raw` as JSON if it is edited so, `typed` by field what is not a value yet;
// `faults` by field. `sent` and `key`: the last body, and its Idempotency-Key.
const draft = {};
function clear() { Object.assign(draft, { task: "", payload: {}, raw: null, typed: {}, options: {}, faults: {}, refused: null, from: null, sent: "", key: "", isTouched: false }); }
clear();

async function loadSubmit({ task, from }) {
  const [{ tasks }, { queues }] = await Promise.all([read("v1/tasks"), read("v1/queues")]);
  if (from && draft.from !== from) {
    const job = await read(`v1/jobs/${encodeURIComponent(from)}`), labels = Object.keys(job.labels).map((name) => term(`${name}:`, job.labels[name])).join(" ");
    clear();
    Object.assign(draft, { from, task: job.task, payload: job.payload, options: { queue: job.queue, priority: job.priority, max_attempts: job.max_attempts, labels } });
  }
  draft.task ||= task || (tasks.length ? tasks[0].name : "");
  return { tasks, queues: queues.filter(({ slots }) => slots !== null) };
}

// -- fields --

// The schema without references and null, and `kind`: object, enum, string, integer, number, boolean, or json for the rest.
function simple({ $ref, anyOf, oneOf, allOf, ...own }, root, depth = 0) {
  const inner = $ref ? [$ref.split("/").slice(1).reduce((at, name) => (at || {})[name], root) || {}] : (anyOf || oneOf || allOf || []).filter(({ type }) => type !== "null");
  if (inner.length > 1 || depth > 8) return { ...own, kind: "json" };
  if (inner.length) return simple({ ...inner[0], ...own }, root, depth + 1);
  const type = [own.type].flat().filter((name) => name !== "null").join();
  if (type === "object" && own.properties) return { ...own, kind: type, fields: Object.keys(own.properties).map((name) => ({ name, isNeeded: (own.required || []).includes(name), ...simple(own.properties[name], root, depth + 1) })) };
  return { ...own, kind: own.enum ? "enum" : ["string", "integer", "number", "boolean"].includes(type) ? type : "json" };
}

function schemaOf(tasks) {
  const { payload_schema: root } = tasks.find(({ name }) => name === draft.task) || {}, schema = root && simple(root, root);
  return schema && schema.kind === "object" ? schema : null;
}

function valueAt(path) { return path.reduce((at, name) => (at && typeof at === "object" ? at[name] : undefined), draft.payload); }

// Sets a value of the payload; undefined takes it out, and the objects that it leaves empty.
function setValue(path, value) {
  const [name, above] = [path.at(-1), path.slice(0, -1)], holder = valueAt(above);
  if (!holder || typeof holder !== "object") return value === undefined || setValue(above, { [name]: value });
  if (value !== undefined) holder[name] = value;
  else {
    delete holder[name];
    if (above.length && !Object.keys(holder).length) setValue(above, undefined);
  }
}

function typed(key, act) {
  delete draft.faults[key];
  draft.isTouched = true;
  act();
  redraw();
}

// What was typed into a field that holds JSON or a number: a value as soon as it can be read.
function typedJson(path, key, text) {
  draft.typed[key] = text;
  try { setValue(path, text.trim() ? JSON.parse(text, exactNumber) : undefined); } catch { draft.faults[key] = "This is not complete."; }
}

function field(tag, key, label, hint, props, ...more) {
  const fault = draft.faults[key], id = `field-${key}`;
  return h("div", { key, class: "field" }, h("label", { for: id }, label), h(tag, { id, "aria-invalid": fault && "true", "aria-describedby": `${id}-hint`, autocomplete: "off", spellcheck: "false", ...props }, more),
    h("p", { id: `${id}-hint`, class: fault ? "error" : "faint" }, fault || hint));
}

function payloadField(entry, above) {
  const { name, kind, description, minimum, maximum } = entry, path = [...above, name], key = path.join("."), value = valueAt(path), label = [name, entry.isNeeded && h("span", { class: "error", title: "needed" }, " *")];
  if (kind === "object") return h("fieldset", { key }, h("legend", {}, label), h("p", { class: "faint" }, description), entry.fields.map((inner) => payloadField(inner, path)));
  const hint = [description, minimum !== undefined && `at least ${minimum}`, maximum !== undefined && `at most ${maximum}`].filter(Boolean).join(" · "), standard = entry.default ?? "";
  const set = (next) => typed(key, () => setValue(path, next));
  if (kind === "boolean") return h("div", { key, class: "field" }, h("label", { class: "check" }, h("input", { type: "checkbox", checked: Boolean(value ?? standard), onchange: (event) => set(event.target.checked) }), " ", label), h("p", { class: "faint" }, hint));
  if (kind === "enum") {
    const at = entry.enum.findIndex((each) => pretty(each) === pretty(value));
    return field("select", key, label, hint, { value: at < 0 ? "" : String(at), onchange: ({ target }) => set(entry.enum[target.value]) }, h("option", { value: "" }, standard === "" ? "–" : `${pretty(standard)} (default)`), entry.enum.map((each, index) => h("option", { key: index, value: String(index) }, pretty(each))));
  }
  const isText = kind === "string" && (value === undefined || value === null || typeof value === "string"), shown = value === undefined || value === null ? "" : pretty(value);
  const props = { value: isText ? shown : draft.typed[key] ?? shown, placeholder: standard === "" ? "" : pretty(standard), oninput: ({ target }) => (isText ? set(target.value || undefined) : typed(key, () => typedJson(path, key, target.value))) };
  if (kind === "json" || (kind === "string" && !entry.format && !(entry.maxLength < 200))) return field("textarea", key, label, hint || (kind === "json" ? "as JSON" : ""), { ...props, class: "short" });
  return field("input", key, label, hint, { ...props, type: entry.format === "password" || entry.writeOnly ? "password" : "text", inputmode: kind === "string" ? null : "decimal" });
}

function option(name, label, hint, props) {
  return field("input", name, label, hint, { value: draft.options[name] ?? "", oninput: ({ target }) => typed(name, () => { draft.options[name] = target.value; }), ...props });
}

// Between the form and the JSON: both show the same payload.
function modeButton(schema) {
  const turn = () => {
    try { if (draft.raw !== null) draft.payload = JSON.parse(draft.raw, exactNumber); } catch (error) { draft.faults.raw = error.message; return redraw(); }
    Object.assign(draft, { raw: draft.raw === null ? pretty(draft.payload) : null, typed: {}, faults: {} });
    redraw();
  };
  return schema && h("button", { type: "button", class: "small", onclick: turn }, draft.raw === null ? "Edit as JSON" : "Back to the form");
}

function form({ tasks, queues }) {
  const schema = schemaOf(tasks), task = tasks.find(({ name }) => name === draft.task) || {};
  if (!schema) draft.raw ??= pretty(draft.payload);
  const choices = (list) => list.map(({ name }) => h("option", { key: name, value: name }, name));
  const pick = ({ target }) => typed("task", () => Object.assign(draft, { task: target.value, raw: null, typed: {}, faults: {} }));
  return h("form", { class: "submit", novalidate: true, onsubmit: (event) => event.preventDefault() },
    card("Task and payload", {}, field("select", "task", "Task", schema ? schema.description : "It takes any object.", { value: draft.task, onchange: pick }, choices(tasks)),
      draft.raw === null ? schema.fields.map((entry) => payloadField(entry, [])) : field("textarea", "raw", "Payload as JSON", "", { value: draft.raw, oninput: ({ target }) => typed("raw", () => { draft.raw = target.value; }) }), modeButton(schema)),
    card("Options", {}, field("select", "queue", "Queue", "", { value: draft.options.queue ?? "", onchange: ({ target }) => typed("queue", () => { draft.options.queue = target.value; }) }, h("option", { value: "" }, `${task.queue} (of the task)`), choices(queues)),
      option("priority", "Priority", "-1000 to 1000; a point is worth a minute of waiting", { inputmode: "numeric", placeholder: "0" }), option("delay_s", "Begin in", "as in 90s, 10min, 2h", { placeholder: "now" }),
      option("max_attempts", "Attempts", "", { inputmode: "numeric", placeholder: task.max_attempts }), option("labels", "Labels", "name:value, with spaces between", { placeholder: "user:ann run:7" })),
    draft.refused && problem(draft.refused),
    h("div", { class: "buttons" }, draft.isTouched || draft.from ? button("Start over", () => { clear(); go({ view: "submit" }, { replace: true }); }) : null, button("Submit", submit, { kind: "primary" })));
}

// -- sending --

function body() {
  const { queue, delay_s: delay, labels, ...numbers } = draft.options, fields = { task: draft.task, queue: queue || undefined };
  for (const name of Object.keys(numbers)) if (numbers[name] !== "") fields[name] = Number(numbers[name]);
  try { if (delay) fields.delay_s = seconds(delay); } catch (error) { draft.faults.delay_s = error.message; }
  const pairs = split(labels || "").map((part) => /^([^:"]+):(.*)$/s.exec(part));
  if (pairs.includes(null)) draft.faults.labels = "Write each as name:value.";
  else if (pairs.length) fields.labels = Object.fromEntries(pairs.map(([, name, value]) => [name, plain(value)]));
  return `${JSON.stringify(fields).slice(0, -1)},"payload":${draft.raw ?? JSON.stringify(draft.payload)}}`;
}

async function submit() {
  const text = body();
  draft.refused = null;
  if (!Object.keys(draft.faults).length) {
    // The same body again, after an answer that was lost, leads to the same job.
    if (draft.sent !== text) Object.assign(draft, { sent: text, key: [...crypto.getRandomValues(new Uint32Array(4))].join("-") });
    try {
      const { job_id: id } = await write("v1/jobs", text, { headers: { "Idempotency-Key": draft.key } });
      clear();
      return go({ view: "job", id });
    } catch (error) { placeFault(error); }
  }
  redraw();
  setTimeout(() => { const first = document.querySelector("[aria-invalid]"); if (first) first.focus(); }, 50);
}

// Shows what was refused beside the field that it names, else above the button.
function placeFault(error) {
  const text = error.message, at = /`\$\.([^`[]+)/.exec(text), missing = /required field `([^`]+)/.exec(text), key = [at && at[1], missing && missing[1]].filter(Boolean).join(".");
  const isPayload = error.code === "invalid_payload", name = !isPayload ? key.split(".")[0] : draft.raw === null ? key : "raw";
  if (document.getElementById(`field-${name}`)) draft.faults[name] = text.replace(/^payload does.*?: |( - at \x60.*)?; \/v1.*$/g, "");
  else draft.refused = error;
}

addEventListener("beforeunload", (event) => { if (draft.isTouched) event.preventDefault(); });

room({
  name: "submit",
  title: "New job",
  parent: "jobs",
  every_s: 60,
  stream: () => null,
  load: loadSubmit,
  view: (data) => [h("header", { class: "head" }, h("h1", {}, "New job"), draft.from && h("p", { class: "faint" }, "a copy of ", h("a", { href: to({ view: "job", id: draft.from }) }, h("code", {}, shortId(draft.from))))),
    !may("client") ? empty("Your token may only read.") : !data ? empty("Asking jobd…") : data.tasks.length ? form(data) : empty("This jobd has no tasks; its configuration declares them.")],
});

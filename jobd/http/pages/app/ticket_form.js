// Writes a ticket, or changes one that is still NEW.

import { h } from "./dom.js";
import { pretty } from "./words.js";
import { call, exactNumber, read } from "./api.js";
import { acting, card, empty, note, problem } from "./parts.js";
import { go, room, to } from "./shell.js";
import { personField, personIn } from "./tickets.js";

const NEW_TICKET = { title: "", acceptance_criteria: [], task: "", payload: {}, gates: [], blocked_on: [], budget_ms: null, max_runs: 1, repo_ref: null, base_branch: null };
// Of the form that is open: what it began with, what was refused, and the key that keeps a repeated send from making two.
const ticketForm = { data: null, error: null, body: "", key: "" };

// Read once: what another person changes meanwhile must not overwrite what is typed.
async function loadTicketForm({ id }) {
  if (ticketForm.data) return ticketForm.data;
  const [tasks, ticket] = await Promise.all([read("v1/tasks"), id ? read(`v1/tickets/${encodeURIComponent(id)}`) : null]);
  return ticketForm.data = { tasks: tasks.tasks.map(({ name }) => name), ticket: ticket || { ...NEW_TICKET, task: tasks.tasks.length ? tasks.tasks[0].name : "" } };
}

function parsedJson(text, name) {
  try { return JSON.parse(text, exactNumber); } catch (error) { throw new Error(`${name} is no JSON: ${error.message}`); }
}

// The fields of the form as the API takes them; undefined: left empty.
function ticketFields(form, before) {
  const value = (name) => form.elements[name].value.trim(), number = (name) => (value(name) ? Number(value(name)) : undefined);
  const gates = parsedJson(value("gates") || "[]", "Gates"), budget_s = number("budget");
  return {
    title: value("title"), task: value("task"), payload: parsedJson(value("payload") || "{}", "Payload"),
    acceptance_criteria: typeof before.acceptance_criteria === "string" ? value("criteria") : value("criteria").split("\n").map((line) => line.trim()).filter(Boolean),
    gates: form.elements.signOff.checked ? [...gates, { type: "sign_off" }] : gates,
    blocked_on: value("blockers").split(/[\s,]+/).filter(Boolean), budget_ms: budget_s && Math.round(budget_s * 1000),
    max_runs: number("runs"), repo_ref: value("repo_ref") || null, base_branch: value("base_branch") || null,
  };
}

function changedFields(fields, before) {
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => value !== undefined && JSON.stringify(value) !== JSON.stringify(before[name])));
}

function createTicket(fields) {
  const body = JSON.stringify(fields);
  if (body !== ticketForm.body) Object.assign(ticketForm, { body, key: crypto.getRandomValues(new Uint32Array(4)).join("-") });
  return call("POST", "v1/tickets", fields, { headers: { "Idempotency-Key": ticketForm.key } });
}

function saveTicket(event, { ticket }, id) {
  event.preventDefault();
  const form = event.target;
  acting("save ticket", async () => {
    try {
      const fields = ticketFields(form, ticket), by = personIn(form);
      const saved = id ? await call("PATCH", `v1/tickets/${id}`, { ...changedFields(fields, ticket), edited_by: by }) : await createTicket({ ...fields, created_by: by });
      note(id ? "Changed" : "Written: it waits for an approval");
      go({ view: "ticket", id: saved.ticket_id });
    } catch (error) { ticketForm.error = error; }
  });
}

function ticketFormView(data, { id }) {
  const { tasks, ticket } = data, others = ticket.gates.filter(({ type }) => type !== "sign_off");
  const text = (name, label, value, more) => h("label", {}, label, h("input", { name, value: value ?? "", ...more }));
  return h("form", { onsubmit: (event) => saveTicket(event, data, id) }, card(id ? "Change the ticket" : "New ticket", { class: "form" },
    ticketForm.error ? problem(ticketForm.error) : null,
    text("title", "Title", ticket.title, { required: true, maxlength: 500 }),
    h("label", {}, "Acceptance criteria, one a line", h("textarea", { name: "criteria", class: "short", value: [ticket.acceptance_criteria].flat().join("\n") })),
    h("label", {}, "Task", h("select", { name: "task" }, tasks.map((name) => h("option", { value: name, selected: name === ticket.task }, name)))),
    h("label", {}, "Payload (JSON)", h("textarea", { name: "payload", class: "short", spellcheck: "false", value: pretty(ticket.payload) })),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "signOff", checked: ticket.gates.length > others.length }), "A person signs off the output"),
    h("details", { class: "fold" }, h("summary", {}, "More"),
      h("label", {}, "Other gates (JSON)", h("textarea", { name: "gates", class: "short", spellcheck: "false", value: others.length ? pretty(others) : "", placeholder: "[{\"type\": \"minimum\", \"pointer\": \"/score\", \"value\": 0.8}]" })),
      text("blockers", "Waits for tickets (ids)", ticket.blocked_on.join(" ")),
      text("budget", "Budget in seconds", ticket.budget_ms === null ? "" : ticket.budget_ms / 1000, { type: "number", min: 0.001, step: "any", placeholder: "that of the task" }),
      text("runs", "Runs until a failed gate blocks it", ticket.max_runs, { type: "number", min: 1, max: 100 }),
      text("repo_ref", "Repository", ticket.repo_ref), text("base_branch", "Base branch", ticket.base_branch)),
    personField(),
    h("div", { class: "buttons" }, h("a", { class: "act", href: to(id ? { view: "ticket", id } : { view: "tickets" }) }, "Back"), h("button", { class: "primary" }, id ? "Save" : "Write it"))));
}

room({
  name: "ticket_form",
  title: "Ticket",
  parent: "tickets",
  scope: "client",
  every_s: 3600,
  load: loadTicketForm,
  stream: () => null,
  leave: () => Object.assign(ticketForm, { data: null, error: null, body: "", key: "" }),
  view: (data, params) => (data ? ticketFormView(data, params) : empty("Asking jobd…")),
});

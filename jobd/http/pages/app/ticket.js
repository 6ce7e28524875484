// One ticket: what it asks for, what may be decided about it, and its trail as a timeline.

import { h } from "./dom.js";
import { plural, shortId, span } from "./words.js";
import { query, read, write } from "./api.js";
import { acting, card, empty, facts, fold, json, note, openDialog, problem, when } from "./parts.js";
import { may, reload, room, to } from "./shell.js";
import { namedPerson, person, personField, personIn, ticketChip, waitsFor } from "./tickets.js";

// Tickets that this one waits for whose titles are read.
const BLOCKERS_SHOWN = 10;

// Every decision: its button, whether authors may not take it with four eyes, and what it asks.
const DECISIONS = {
  approve: { yes: "Approve", kind: "primary", byAnother: true, text: "It becomes To do and is carried out." },
  "sign-off": { yes: "Sign off", kind: "primary", byAnother: true, text: "The output is accepted." },
  refuse: { yes: "Refuse", kind: "danger", path: "sign-off", more: { accept: false }, text: "The output is not accepted: the gate fails." },
  unblock: { yes: "Unblock", kind: "primary", text: "It goes on." },
  reopen: { yes: "Reopen", kind: "", byAnother: true, text: "It becomes To do and runs again." },
  reject: { yes: "Reject", kind: "danger", text: "It is blocked until a person takes it up again." },
};

// What was typed about a ticket and refused: { id, why }; it is there again when the dialog is opened again.
const unsent = { id: "", why: "" };

function decisionsFor({ status, step, approved_by }) {
  if (status === "NEW") return ["approve", "reject"];
  if (status === "TODO") return ["reject"];
  if (status === "BLOCKED") return approved_by === null ? ["unblock"] : ["unblock", "reject"];
  if (status === "DONE") return ["reopen"];
  return step === "SIGN_OFF" ? ["sign-off", "refuse"] : [];
}

// -- deciding --

function decideAbout(ticket, name) {
  const decision = DECISIONS[name], said = { error: null };
  if (unsent.id !== ticket.ticket_id) Object.assign(unsent, { id: ticket.ticket_id, why: "" });
  const send = (event, close) => {
    event.preventDefault();
    const form = event.target, why = (unsent.why = form.elements.why.value);
    acting(`decide ${name}`, async () => {
      try {
        await write(`v1/tickets/${ticket.ticket_id}/${decision.path || name}`, { by: personIn(form), why, version: ticket.version, ...decision.more });
        unsent.id = "";
        close(true);
        note(`${decision.yes}: done`);
      } catch (error) {
        if (error.status !== 409) { said.error = error; return; }
        close(false);
        const text = error.code === "version_moved" ? "The ticket has changed since you looked at it. Nothing was decided: look at it as it is now, and decide again." : error.message;
        openDialog({ title: "Not decided", view: (shut) => [h("p", { role: "alert" }, text), h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => shut(true) }, "Show it"))], done: () => {} });
      }
      await reload();
    });
  };
  openDialog({ title: `${decision.yes}: ${ticket.title}`, done: () => {}, view: (close) => h("form", { onsubmit: (event) => send(event, close) },
    h("p", { class: "faint" }, decision.text), said.error ? problem(said.error) : null, personField(),
    h("label", {}, "Why", h("textarea", { name: "why", class: "short", maxlength: 20000, value: unsent.why })),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(false) }, "Back"), h("button", { class: `primary ${decision.kind === "danger" ? "danger" : ""}` }, decision.yes))) });
}

function ticketActions(ticket, fourEyes) {
  if (!may("client")) return null;
  const authors = [ticket.created_by, ...ticket.edited_by], isAuthor = fourEyes && authors.includes(person());
  const names = decisionsFor(ticket), isBarred = (name) => isAuthor && DECISIONS[name].byAnother;
  const barred = names.filter(isBarred);
  return [h("div", { class: "actions" }, names.filter((name) => !(isBarred(name) && namedPerson())).map((name) => h("button", { key: name, class: DECISIONS[name].kind, onclick: () => decideAbout(ticket, name) }, DECISIONS[name].yes)),
    ticket.status === "NEW" ? h("a", { class: "act", href: to({ view: "ticket_form", id: ticket.ticket_id }) }, "Edit") : null),
  barred.length ? h("p", { class: "faint eyes" }, `Four eyes: ${person()} wrote or edited this ticket, so somebody else has to ${barred[0].replace("-", " ")} it.`) : null];
}

// -- what it asks for --

function criteria(text) {
  if (!text.length) return empty("None were given.");
  return Array.isArray(text) ? h("ul", { class: "criteria" }, text.map((line) => h("li", {}, line))) : h("p", { class: "said" }, text);
}

function gateWords(gate) {
  if (gate.type === "minimum") return `${gate.pointer || "the output"} is at least ${gate.value}`;
  if (gate.type === "command") return `the command ${gate.name} agrees`;
  return gate.type === "sign_off" ? "a person signs off" : "the output fits a JSON schema";
}

function askedCard(ticket) {
  return card("What it asks for", {}, criteria(ticket.acceptance_criteria), facts([["Task", ticket.task], ["Gates", ticket.gates.length ? h("ul", {}, ticket.gates.map((gate) => h("li", {}, gateWords(gate)))) : "none"],
    ["Budget", span(ticket.budget_ms / 1000)], ["Runs", `${ticket.run_count} of ${ticket.max_runs}`], ["Repository", ticket.repo_ref], ["Base branch", ticket.base_branch]]),
  fold("Payload", () => json(ticket.payload), { key: `payload ${ticket.ticket_id}` }), ticket.gates.length ? fold("Gates in full", () => json(ticket.gates), { key: `gates ${ticket.ticket_id}` }) : null);
}

function blockersCard(ids, blockers) {
  return card("Waits for", {}, h("ul", { class: "lines" }, ids.slice(0, BLOCKERS_SHOWN).map((id, index) => h("li", { key: id }, h("a", { href: to({ view: "ticket", id }), "data-row": true }, blockers[index] ? blockers[index].title : shortId(id)),
    h("span", { class: "grow" }), blockers[index] ? ticketChip(blockers[index].status) : null))), ids.length > BLOCKERS_SHOWN ? h("p", { class: "faint" }, `and ${ids.length - BLOCKERS_SHOWN} more`) : null);
}

// -- the trail --

const DECIDED = { APPROVE: "approved it", REJECT: "rejected it", UNBLOCK: "unblocked it", REOPEN: "reopened it", SIGN_OFF: "signed the output off", REFUSE: "refused the output" };

// Everything that happened, oldest first: { at, key, what, more, kind }.
function happenings({ ticket, events, context_snapshots, workorders, output_bundles, run_records, pause_states, decisions }) {
  const gates = ({ run_id, gate_results }) => (gate_results.length ? fold(plural(gate_results.length, "gate"), () => h("ul", {}, gate_results.map(({ type, result, reason }) => h("li", {}, `${type} ${result}: ${reason}`))), { key: run_id }) : null);
  return [
    { at: ticket.created_at, key: "created", what: [h("b", {}, ticket.created_by), " wrote it"], more: ticket.edited_by.length ? `edited by ${ticket.edited_by.join(", ")}` : null },
    ...decisions.map((entry) => ({ at: entry.decided_at, key: entry.decision_id, kind: ["REJECT", "REFUSE"].includes(entry.kind) ? "bad" : "good", what: [h("b", {}, entry.decided_by), ` ${DECIDED[entry.kind]}`], more: entry.why ? h("q", {}, entry.why) : null })),
    ...events.filter(({ reason }) => reason && reason !== "SCHEDULED").map((entry) => ({ at: entry.processed_at, key: entry.event_id, what: "Not scheduled", more: entry.reason === "BLOCKED" ? "it waits for other tickets" : entry.reason })),
    ...context_snapshots.map((entry) => ({ at: entry.created_at, key: entry.snapshot_id, what: "Scheduled", more: fold("Prompt", () => json(entry.full_prompt_text), { key: entry.snapshot_id }) })),
    ...workorders.map((entry) => ({ at: entry.created_at, key: entry.work_order_id, what: ["Run as job ", h("a", { href: to({ view: "job", id: entry.job_id }) }, shortId(entry.job_id))], more: h("span", { class: "faint" }, entry.branch_name) })),
    ...output_bundles.map((entry) => ({ at: entry.created_at, key: entry.output_id, kind: entry.outcome === "DONE" ? "" : "bad", what: `Output: ${entry.outcome.toLowerCase().replace("_", " ")}`,
      more: entry.error ? fold("Error", () => json(entry.error), { key: entry.output_id }) : fold("Output", () => (entry.output_ref ? h("a", { href: `v1/jobs/${entry.job_id}/result`, download: "" }, "Download the result") : json(entry.output)), { key: entry.output_id }) })),
    ...run_records.map((entry) => ({ at: entry.created_at, key: entry.run_id, kind: entry.gate_result === "PASS" ? "good" : "bad", what: `Gates ${entry.gate_result === "PASS" ? "passed" : "failed"}: ${entry.gate_reason}`, more: gates(entry) })),
    ...pause_states.filter(({ reason }) => reason !== "RUN_COMPLETE").map((entry) => ({ at: entry.created_at, key: entry.pause_id, what: "What to do next", more: h("ul", { class: "criteria" }, entry.prioritized_actions.map((action) => h("li", {}, action))) })),
  ].sort((left, right) => (left.at < right.at ? -1 : left.at > right.at ? 1 : 0));
}

function trailCard(trail) {
  return card("Trail", {}, h("ol", { class: "timeline" }, happenings(trail).map(({ at, key, what, more, kind }) =>
    h("li", { key, class: kind || null }, h("div", { class: "line" }, h("span", {}, what), h("span", { class: "right faint" }, when(Date.parse(at)))), more ? h("div", { class: "more-of-it" }, more) : null))));
}

async function loadTicket({ id }) {
  const path = `v1/tickets/${encodeURIComponent(id)}`;
  const [trail, page] = await Promise.all([read(`${path}/trail`), read("v1/tickets?limit=1")]);
  const ids = trail.ticket.status === "DONE" ? [] : trail.ticket.blocked_on;
  const blockers = await Promise.all(ids.slice(0, BLOCKERS_SHOWN).map((other) => read(`v1/tickets/${other}`).catch(() => null)));
  return { trail, fourEyes: page.four_eyes, ids, blockers };
}

room({
  name: "ticket",
  title: "Ticket",
  parent: "tickets",
  load: loadTicket,
  stream: ({ id }) => query(`v1/tickets/${encodeURIComponent(id)}/events`, { after: "now" }),
  view: (data) => {
    if (!data) return empty("Asking jobd…");
    const { ticket } = data.trail;
    return [h("header", { class: "head" }, h("a", { href: to({ view: "tickets" }) }, "Tickets"), h("h1", {}, ticket.title), ticketChip(ticket.status),
      h("p", { class: "faint" }, `${ticket.created_by}, `, when(Date.parse(ticket.created_at)), ticket.approved_by ? `, approved by ${ticket.approved_by}` : "", waitsFor(ticket) ? `, ${waitsFor(ticket)}` : "")),
    ticketActions(ticket, data.fourEyes),
    h("div", { class: "columns" }, h("div", { class: "room" }, askedCard(ticket), data.ids.length ? blockersCard(data.ids, data.blockers) : null), trailCard(data.trail))];
  },
});

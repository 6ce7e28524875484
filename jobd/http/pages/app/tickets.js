// The board of tickets: a column for each status, the newest first; on a phone one column, chosen by tabs with counts.

import { h } from "./dom.js";
import { plural } from "./words.js";
import { query, read } from "./api.js";
import { empty, redraw, when } from "./parts.js";
import { may, reload, room, state, to } from "./shell.js";

// Tickets of a column that are read at first, by each "more", and at most in one answer.
const TICKETS_MORE = 20, TICKETS_MOST = 100;
const TICKET_COLUMNS = { NEW: "New", TODO: "To do", IN_PROGRESS: "In progress", BLOCKED: "Blocked", DONE: "Done" };
const TICKET_STEPS = { RUN: "its job", GATE: "its gates", SIGN_OFF: "a sign-off" };
// Names that callers without a token share.
const NOBODY = ["", "local", "anonymous"];
const PERSON_KEY = "jobd.person";

const board = { column: "NEW", most: {} };

// -- who decides --

// The person that the token names; "" if none does: then forms ask, and the answer is remembered in this browser.
export function namedPerson() {
  return NOBODY.includes(state.session.name) ? "" : state.session.name;
}

export function person() {
  try { return namedPerson() || localStorage.getItem(PERSON_KEY) || ""; } catch { return ""; }
}

export function personField() {
  return namedPerson() ? null : h("label", {}, "Your name", h("input", { name: "person", required: true, maxlength: 200, autocomplete: "name", value: person() }));
}

// The name that a form gave, for the field of a call; undefined: the token says it.
export function personIn(form) {
  if (!form.elements.person) return undefined;
  const name = form.elements.person.value.trim();
  try { localStorage.setItem(PERSON_KEY, name); } catch { /* a browser that keeps nothing */ }
  return name;
}

// -- words --

export function ticketChip(status) {
  const kind = { NEW: "warn", IN_PROGRESS: "running", BLOCKED: "error", DONE: "done" }[status] || "";
  return h("span", { class: `chip ${kind}` }, TICKET_COLUMNS[status]);
}

// What a ticket waits for, in words; "" for one that is done.
export function waitsFor({ status, step, blocked_reason, blocked_on }) {
  if (status === "NEW") return "waits for an approval";
  if (status === "IN_PROGRESS") return `waits for ${TICKET_STEPS[step]}`;
  if (status === "BLOCKED") return blocked_reason.startsWith("waits for ") ? `waits for ${plural(blocked_on.length, "ticket")}` : blocked_reason;
  return status === "TODO" ? "goes on by itself" : "";
}

// -- the board --

async function loadTickets() {
  const pages = await Promise.all(Object.keys(TICKET_COLUMNS).map(async (status) => {
    const limit = board.most[status] || TICKETS_MORE, page = await read(query("v1/tickets", { status, limit }));
    return [status, { ...page, isCut: page.tickets.length === limit }];
  }));
  return { fourEyes: pages[0][1].four_eyes, columns: Object.fromEntries(pages) };
}

function ticketCount({ tickets, isCut }) {
  return `${tickets.length}${isCut ? "+" : ""}`;
}

function ticketCard(ticket) {
  return h("li", { key: ticket.ticket_id }, h("a", { class: "ticket", href: to({ view: "ticket", id: ticket.ticket_id }), "data-row": true },
    h("b", {}, ticket.title), h("span", { class: "waits" }, waitsFor(ticket)),
    h("span", { class: "faint" }, `${ticket.task} · ${ticket.created_by} · `, when(Date.parse(ticket.created_at)))));
}

async function moreTickets(status) {
  board.most[status] = Math.min((board.most[status] || TICKETS_MORE) + TICKETS_MORE, TICKETS_MOST);
  await reload();
}

function ticketColumn(status, page) {
  const canMore = page.isCut && page.tickets.length < TICKETS_MOST;
  return h("section", { key: status, class: status === board.column ? "chosen" : null, "aria-label": TICKET_COLUMNS[status] },
    h("h2", {}, TICKET_COLUMNS[status], " ", h("span", { class: "faint" }, ticketCount(page))),
    page.tickets.length ? h("ul", {}, page.tickets.map(ticketCard)) : empty("None."),
    canMore ? h("button", { class: "plain", onclick: () => moreTickets(status) }, "older ones") : null);
}

function ticketTabs(columns) {
  return h("div", { class: "tabs", role: "group", "aria-label": "Column" }, Object.entries(columns).map(([status, page]) =>
    h("button", { key: status, "aria-pressed": String(status === board.column), onclick: () => { board.column = status; redraw(); } }, TICKET_COLUMNS[status], " ", h("b", {}, ticketCount(page)))));
}

room({
  name: "tickets",
  title: "Tickets",
  icon: "M4 5h4v14H4zM10 5h4v9h-4zM16 5h4v6h-4z",
  every_s: 5,
  load: loadTickets,
  view: (data) => {
    if (!data) return empty("Asking jobd…");
    return [h("header", { class: "head" }, h("h1", {}, "Tickets"), data.fourEyes ? h("span", { class: "chip", title: "Approve, reopen and sign-off take another person than the authors." }, "four eyes") : null,
      may("client") ? h("a", { class: "act", href: to({ view: "ticket_form" }) }, "New ticket") : null),
    ticketTabs(data.columns), h("div", { class: "board" }, Object.entries(data.columns).map(([status, page]) => ticketColumn(status, page)))];
  },
});

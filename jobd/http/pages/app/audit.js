// The audit log, newest first, in pages.

import { h } from "./dom.js";
import { query, read } from "./api.js";
import { card, empty, table, when } from "./parts.js";
import { room, to } from "./shell.js";

const AUDIT_PAGE = 50;
const AUDIT_COLUMNS = [
  { name: "When", cell: (entry) => when(entry.at_ts) },
  { name: "Who", class: "wrap", cell: ({ actor }) => actor },
  { name: "What", cell: ({ action }) => h("code", {}, action) },
  { name: "Of", class: "wrap", cell: ({ subject }) => subject },
];

room({
  name: "audit",
  title: "Audit",
  scope: "admin",
  icon: "M6 3h9l4 4v14H6zM9 12h7M9 16h7",
  every_s: 30,
  load: ({ before }) => read(query("v1/audit", { limit: AUDIT_PAGE, before })),
  stream: () => null,
  view: (data, { before }) => [h("header", { class: "head" }, h("h1", {}, "Audit")),
    !data ? empty("Asking jobd…") : card(before ? "Older entries" : "Newest entries", {}, data.entries.length ? table("Audit log", AUDIT_COLUMNS, data.entries, ({ id }) => id) : empty("Nothing was changed yet."),
      h("div", { class: "buttons" }, before ? h("a", { class: "act", href: to({ view: "audit" }) }, "Newest") : null, data.next ? h("a", { class: "act", href: to({ view: "audit", before: data.next }) }, "Older") : null))],
});

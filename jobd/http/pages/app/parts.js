// What rooms are built of: chips, times, tables, bars, folds, buttons, dialogs and notes.

import { h } from "./dom.js";
import { absolute, ago, count, now, pretty } from "./words.js";

// -- small --

export function chip(word, kind = word) {
  return h("span", { class: `chip ${kind}` }, word);
}

// A moment: relative, the whole date in its title.
export function when(ts) {
  if (!ts) return h("span", { class: "faint" }, "–");
  return h("time", { datetime: new Date(ts).toISOString(), title: absolute(ts) }, ago(ts));
}

export function card(title, props, ...children) {
  return h("section", { ...props, class: `card ${(props && props.class) || ""}`, "aria-label": title }, h("h2", {}, title), children);
}

// A number with its name; `kind` colours it, `to` makes it a link.
export function figure(name, value, { note, kind = "", to } = {}) {
  const inside = [h("span", { class: "name" }, name), h("span", { class: `value ${kind}` }, value), note ? h("span", { class: "note" }, note) : null];
  return to ? h("a", { class: "figure", href: to }, inside) : h("div", { class: "figure" }, inside);
}

export function empty(text, ...more) {
  return h("p", { class: "empty" }, text, more);
}

export function problem(error) {
  return h("p", { class: "problem", role: "alert" }, error.message);
}

// A part that opens. Its content is made when it is open only: a large payload costs nothing while folded.
export function fold(title, content, { key, open = false } = {}) {
  const state = folds.get(key) ?? open;
  return h("details", { key, class: "fold", open: state, ontoggle: (event) => { folds.set(key, event.target.open); redraw(); } },
    h("summary", {}, title), state ? content() : null);
}
const folds = new Map();

// Characters that turn the direction of what follows are shown by their numbers: a text must not pass for another.
export function json(value) {
  return h("pre", { class: "json", tabindex: 0 }, pretty(value).replace(/[\u202a-\u202e\u2066-\u2069]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16)}`));
}

// -- lists --

// A table. `columns`: { name, cell(row), right, narrow: false = left out on a phone }; `key(row)` says who a row is.
export function table(label, columns, rows, key, rowProps = () => ({})) {
  const kind = (column) => [column.right ? "right" : "", column.narrow === false ? "wide" : "", column.class || ""].join(" ").trim() || null;
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { key: column.name, scope: "col", class: kind(column) }, column.head || column.name)))),
    h("tbody", {}, rows.map((row) => h("tr", { key: key(row), ...rowProps(row) },
      columns.map((column) => h("td", { key: column.name, class: kind(column) }, column.cell(row))))))));
}

// Names and values below each other; pairs whose value is null are left out.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))));
}

// -- drawn --

// A line over the last values, newest at the right.
export function sparkline(values, label) {
  const width = 96, height = 24, most = Math.max(...values, 1e-9), step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    values.length > 1 ? [h("polygon", { points: `0,${height} ${points.join(" ")} ${width},${height}` }), h("polyline", { points: points.join(" ") })] : null);
}

// A share from 0 to 1 as a bar; `limit`: a share that is marked by a line.
export function bar(share, label, kind = "", limit = null) {
  const width = Math.round(Math.min(Math.max(share, 0), 1) * 1000) / 10;
  return h("svg", { class: `bar ${kind}`, viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img", "aria-label": label || `${Math.round(width)} %` },
    h("rect", { width: 100, height: 4, class: "under" }), h("rect", { width, height: 4 }), limit === null ? null : h("rect", { class: "limit", x: Math.min(limit * 100, 99.2), width: 0.8, height: 4 }));
}

// -- acting --

// A button that is busy while what it does is under way, and says what went wrong.
export function button(text, act, { kind = "", key = text, disabled = false, label } = {}) {
  return h("button", { key, type: "button", class: kind, "aria-label": label, disabled: disabled || busy.has(key), onclick: () => acting(key, act) }, text);
}
const busy = new Set();

export async function acting(key, act) {
  if (busy.has(key)) return;
  busy.add(key);
  redraw();
  try { await act(); } catch (error) { note(error.message, "bad"); } finally {
    busy.delete(key);
    redraw();
  }
}

// A line at the edge of the page that goes by itself.
export function note(text, kind = "") {
  const entry = { text, kind, id: (notes.last += 1) };
  notes.list.push(entry);
  setTimeout(() => { notes.list.splice(notes.list.indexOf(entry), 1); redraw(); }, kind === "bad" ? 8000 : 4000);
  redraw();
}
const notes = { list: [], last: 0 };

export function noteList() {
  return h("div", { class: "notes", role: "status", "aria-live": "polite" },
    notes.list.map(({ id, text, kind }) => h("p", { key: id, class: kind }, text)));
}

// Asks before something is done; resolves to whether it shall be. `content` is shown between.
export function ask(title, { text = "", yes = "OK", kind = "", content = () => null } = {}) {
  return new Promise((resolve) => {
    openDialog({ title, view: (close) => [text ? h("p", {}, text) : null, content(),
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close(false) }, "Back"),
        h("button", { type: "button", class: `primary ${kind}`, onclick: () => close(true) }, yes))], done: resolve });
  });
}

// A dialog: `view(close)` makes its content, `done(value)` gets what it was closed with; Esc: false.
export function openDialog(dialog) {
  dialogs.push({ ...dialog, id: (notes.last += 1) });
  redraw();
}
const dialogs = [];

export function dialogList() {
  return dialogs.map((dialog) => {
    const close = (value) => {
      if (!dialogs.includes(dialog)) return;
      dialogs.splice(dialogs.indexOf(dialog), 1);
      dialog.node.close();
      dialog.done(value);
      redraw();
    };
    return h("dialog", { key: dialog.id, "aria-labelledby": `dialog-${dialog.id}`, ref: (node) => { dialog.node = node; queueMicrotask(() => node.showModal()); },
      oncancel: (event) => { event.preventDefault(); if (!dialog.isFirm) close(false); } },
      h("h2", { id: `dialog-${dialog.id}` }, dialog.title), dialog.view(close));
  });
}

// -- drawing --

// Asks the shell to draw the page again in the next frame.
export function redraw() {
  if (drawing.asked || !drawing.draw) return;
  drawing.asked = true;
  requestAnimationFrame(() => { drawing.asked = false; drawing.draw(); });
}
export const drawing = { draw: null, asked: false };

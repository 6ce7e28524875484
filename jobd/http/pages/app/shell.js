// The shell: address, sign-in, the one stream of events, and the frame around the rooms.
//
// A room is one module beside this one that calls `room({...})`, and one entry in ROOMS of jobd/http/page.py:
//
//   room({
//     name: "workers",                    // ?view=workers
//     title: "Workers",                   // of the page, and in the navigation
//     scope: "admin",                     // optional: shown to those only who may do what takes this scope
//     parent: "jobs",                     // optional: the room that Esc leads back to, and that the navigation marks
//     icon: "M4 4h16...",                 // path of a 24 x 24 icon; without one it is not in the navigation
//     every_s: 10,                        // seconds between two loads while nothing happens
//     load: async (params) => data,       // what it shows; called on opening, then and now, and soon after an event
//     view: (data, params) => h(...),     // data is null until the first load; called at each redraw()
//     stream: (params) => "v1/events",    // optional: the stream to follow instead of the firehose, or null for none
//     heard: (event, params) => isOver,   // optional: gets the events; without it an event leads to a load
//     restart: (params) => {},            // optional: when the stream's cursor is ahead of all that has happened
//     leave: () => {},                    // optional: when another room is opened, or the same with other parameters
//   });
//
// `load` throws what `read` throws: the shell says that the board is away, or shows the problem. State that a person
// made (what is typed, selected or open) is kept by the module, which calls redraw(). Addresses: `to({ view, ... })` for
// links, `go({...})` to move. Actions: `button(text, act)`, only where `may("client")`; `ask(...)` before deleting.
// All of the page together must stay within 90 KB, and 30 KB compressed (tests/http/test_page.py).

import { h, render } from "./dom.js";
import { absolute, now, span } from "./words.js";
import { Refused, access, call, listen, read } from "./api.js";
import { acting, dialogList, drawing, empty, noteList, openDialog, problem, redraw } from "./parts.js";

// ms between an event and the load that it leads to, so that a hundred events lead to one.
const SOON_MS = 700;
// Events in a second beyond which the firehose is closed: polling is cheaper for both sides then.
const BUSY_EVENTS = 100;
// Seconds for which it then stays closed, and between two loads meanwhile.
const BUSY_S = 30, BUSY_EVERY_S = 3;
// Seconds between two tries while the board is away.
const RETRY_S = 2;
const MENU = "M4 7h16M4 12h16M4 17h16";

const rooms = [];
export function room(definition) {
  rooms.push({ every_s: 10, stream: () => "v1/events", leave: () => {}, ...definition });
}

// `session`: who the caller is; nobody may do anything until jobd has said. `awaySince`: ms since 1970, or null while the
// board answers.
export const state = { session: { name: "", scopes: [], needsLogin: false, isKnown: false }, awaySince: null, isMenuOpen: false };
// What is open: the room, its parameters, its data, when that was read, and what went wrong.
const here = { room: null, params: {}, data: null, readAt: 0, error: null, visit: 0 };

// -- address --

export function to(params) {
  const pairs = Object.entries(params).filter(([name, value]) => value !== undefined && value !== null && value !== "" && !(name === "view" && value === "overview"));
  return pairs.length ? `./?${new URLSearchParams(pairs)}` : "./";
}

export function go(params, { replace = false } = {}) {
  const address = to(params);
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  arrive(!replace);
}

// Loads the data of the open room again, for example after an action.
export function reload() { return load(); }

function arrive(isNew) {
  const params = Object.fromEntries(new URLSearchParams(location.search));
  const known = rooms.find(({ name }) => name === (params.view || "overview")), found = known || rooms[0];
  if (!known && !furnished.isDone) return furnished.promise.then(() => arrive(isNew));
  if (here.room) here.room.leave();
  const isSame = here.room === found && JSON.stringify(here.params) === JSON.stringify(params);
  Object.assign(here, { room: found, params, error: null, visit: here.visit + 1 });
  if (!isSame) here.data = null;
  state.isMenuOpen = false;
  document.title = found.title === "Overview" ? "jobd" : `${found.title} · jobd`;
  if (isNew) {
    scrollTo(0, 0);
    queueMicrotask(() => { const main = document.querySelector("main"); if (main) main.focus({ preventScroll: true }); });
  }
  load();
  follow();
  redraw();
}

function followLink(event) {
  const link = event.target.closest("a[href^='./?'], a[href='./']");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  arrive(true);
}

// -- data --

let timer = 0, dueAt = 0;

async function load() {
  clearTimeout(timer);
  dueAt = Infinity;
  const { visit, room: opened, params } = here;
  let error = null, data = null;
  try {
    if (!state.session.isKnown) await learnSession();
    data = isBarred(opened) ? null : await opened.load(params);
  } catch (caught) {
    if (caught.name === "AbortError") return;
    error = caught;
  }
  if (visit !== here.visit) return;
  if (error && error.isAway) state.awaySince ??= now();
  else Object.assign(state, { awaySince: null });
  if (!error) Object.assign(here, { data, readAt: now() });
  here.error = error && !error.isAway ? error : null;
  if (error && !(error instanceof Refused)) console.error(error);
  plan(state.awaySince !== null ? RETRY_S : now() < busyUntil ? BUSY_EVERY_S : opened.every_s);
  redraw();
}

// A load in so many seconds, unless an earlier one is planned. A hidden page loads nothing.
function plan(seconds) {
  const at = Date.now() + seconds * 1000;
  if (at >= dueAt && dueAt !== Infinity) return;
  clearTimeout(timer);
  dueAt = at;
  timer = setTimeout(() => { if (!document.hidden) load(); }, seconds * 1000);
}

// -- the stream --

let following = null, busyUntil = 0;

function unfollow() {
  if (following) following.abort();
  following = null;
}

// Follows the stream of the open room anew: its `stream` answers another address now.
export function refollow() { follow(); }

// Follows the stream of the open room until another is opened, the page is hidden or the room says that it is over.
async function follow() {
  unfollow();
  const control = following = new AbortController(), { room: opened, params, visit } = here;
  let isOver = false, pause_s = 1;
  const heard = (event) => {
    if (visit !== here.visit || isOver) return;
    pause_s = 1;
    if (opened.heard) isOver = opened.heard(event, params) === true;
    else if (event.type !== "hello") hear();
    if (isOver) control.abort();
  };
  while (!isOver && !control.signal.aborted && !document.hidden) {
    const path = opened.stream(params), isQuiet = path && path.startsWith("v1/events") && now() < busyUntil;
    try { if (path && !isQuiet) await listen(path, heard, control.signal); } catch (error) {
      if (error.code === "cursor_ahead" && opened.restart) return opened.restart(params);
      if (error instanceof Refused && error.status >= 400 && error.status < 500 && error.status !== 429) return;
    }
    await new Promise((resolve) => setTimeout(resolve, pause_s * 1000));
    pause_s = Math.min(pause_s * 2, 10);
  }
}

// An event leads to a load soon; for rooms that have a `heard` of their own.
const heardIn = { second: 0, events: 0 };
export function hear() {
  const second = Math.floor(now() / 1000);
  if (heardIn.second !== second) Object.assign(heardIn, { second, events: 0 });
  heardIn.events += 1;
  if (heardIn.events > BUSY_EVENTS && now() > busyUntil) {
    busyUntil = now() + BUSY_S * 1000;
    follow();
  }
  plan(now() < busyUntil ? BUSY_EVERY_S : SOON_MS / 1000);
}

function turn() {
  if (document.hidden) return unfollow();
  load();
  follow();
}

// -- who --

// Whether the caller may do what takes this scope.
export function may(scope) {
  const { scopes } = state.session;
  return scopes.includes(scope) || scopes.includes("admin");
}

// Whether a room is for others than the one who has signed in.
function isBarred({ scope }) {
  return Boolean(scope && state.session.name && !may(scope));
}

async function learnSession() {
  const said = await read("v1/session", { isLogin: true });
  state.session = { name: said.name || "", scopes: said.scopes, needsLogin: said.login_needed, isKnown: true };
}

let signingIn = null;
function signIn() {
  signingIn ??= new Promise((resolve) => openDialog({ title: "Sign in", isFirm: true, view: (close) => loginForm(() => { signingIn = null; close(true); follow(); }), done: resolve }));
  return signingIn;
}

const login = { error: null };
function loginForm(done) {
  const submit = (event) => {
    event.preventDefault();
    const token = event.target.elements.secret.value.trim();
    acting("sign in", async () => {
      try {
        await call("POST", "v1/session", { token }, { isLogin: true });
        await learnSession();
        login.error = null;
        done();
        follow();
      } catch (error) { login.error = error; }
    });
  };
  return h("form", { class: "login", onsubmit: submit },
    h("p", {}, state.session.name ? "Your session is over. Sign in again: what you typed is still there, and what you did goes on." : "This jobd asks who you are."),
    h("p", { class: "faint" }, "Paste a token, or open the address that ", h("code", {}, "jobd open"), " prints. ", h("code", {}, "jobd token create"), " makes a token."),
    h("label", {}, "Token", h("input", { name: "secret", type: "password", autocomplete: "current-password", required: true, autofocus: true })),
    login.error ? problem(login.error) : null,
    h("div", { class: "buttons" }, h("button", { class: "primary" }, "Sign in")));
}

async function signOut() {
  // The server cuts the stream of a session that ends.
  unfollow();
  await call("DELETE", "v1/session", undefined, { isLogin: true });
  location.reload();
}

// A one-time code in the fragment (`jobd open` prints such an address) signs in and leaves the address at once.
async function useCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get("login");
  if (!code) return false;
  history.replaceState(null, "", location.pathname + location.search);
  try { await call("POST", "v1/session", { code }, { isLogin: true }); } catch (error) { login.error = error; }
  return true;
}

// -- frame --

function icon(path) {
  return h("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, h("path", { d: path }));
}

function navigation() {
  const listed = rooms.filter((entry) => entry.icon && (!entry.scope || may(entry.scope))), isOpen = (entry) => entry === here.room || entry.name === here.room.parent;
  const link = (entry) => h("a", { key: entry.name, href: to({ view: entry.name }), "aria-current": isOpen(entry) ? "page" : null }, icon(entry.icon), h("span", {}, entry.title));
  return h("nav", { "aria-label": "Rooms", class: state.isMenuOpen ? "open" : null },
    h("a", { class: "mark", href: "./", "aria-label": "jobd, overview" }, h("span", { class: "logo" }, "jobd")),
    h("div", { class: "rooms" }, listed.map(link)),
    listed.length > 5 ? h("button", { class: "more", type: "button", "aria-expanded": String(state.isMenuOpen), onclick: () => { state.isMenuOpen = !state.isMenuOpen; redraw(); } }, icon(MENU), h("span", {}, "More")) : null,
    h("div", { class: "foot" }, h("a", { href: "docs" }, "API"), state.session.needsLogin && state.session.name ? h("button", { class: "plain", onclick: () => acting("sign out", signOut) }, `Sign out ${state.session.name}`) : null));
}

function ageBanner() {
  if (state.awaySince === null) return null;
  const old = here.readAt && here.data ? ` What you see is ${span((now() - here.readAt) / 1000)} old.` : "";
  return h("p", { class: "banner", role: "status", title: absolute(state.awaySince) },
    `jobd has not answered for ${span((now() - state.awaySince) / 1000)}.${old} Trying again.`);
}

function draw() {
  if (!here.room) return;
  const { room: opened, data, params, error } = here;
  render(document.getElementById("app"), [
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); document.querySelector("main").focus(); } }, "Skip to content"),
    navigation(),
    h("main", { id: "main", tabindex: -1, class: state.awaySince === null ? null : "away" }, ageBanner(), error ? problem(error) : null, h("div", { key: opened.name, class: "room" }, isBarred(opened) ? [h("h1", {}, opened.title), empty(`This room takes a token with the scope ${opened.scope}.`)] : opened.view(data, params))),
    noteList(), dialogList()]);
}

// -- keyboard --

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else if (state.isMenuOpen) { state.isMenuOpen = false; redraw(); } else if (here.room.parent) history.length > 1 ? history.back() : go({ view: here.room.parent });
  } else if (isTyping) return;
  else if (event.key === "/") {
    event.preventDefault();
    const box = document.querySelector("[type=search]");
    if (box) box.focus();
    else { go({ view: "jobs" }); setTimeout(() => { const search = document.querySelector("[type=search]"); if (search) search.focus(); }, 100); }
  } else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
}

// Moves the focus to the main link of the next or the previous row.
function step(by) {
  const links = [...document.querySelectorAll("a[data-row]")], at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1)];
  if (next) next.focus();
}

// -- start --

// The second script, with all rooms but the overview; asked for again while jobd is away. A browser may keep that it
// failed, hence the other address.
const furnished = { isDone: false, promise: null };
async function furnish() {
  const { rooms: address } = document.querySelector("script[data-rooms]").dataset;
  for (let tries = 0; !furnished.isDone; tries += 1) {
    try {
      await import(tries ? `${address}&again=${tries}` : address);
      furnished.isDone = true;
    } catch { await new Promise((resolve) => setTimeout(resolve, RETRY_S * 1000)); }
  }
  redraw();
}

export async function start() {
  // A jobd that was upgraded a moment ago sent a second script that belongs to another first one.
  if (document.documentElement.dataset.started) return location.reload();
  document.documentElement.dataset.started = "yes";
  drawing.draw = draw;
  furnished.promise = furnish();
  access.signIn = signIn;
  addEventListener("popstate", () => arrive(false));
  addEventListener("hashchange", async () => { if (await useCode()) location.reload(); });
  addEventListener("click", followLink);
  addEventListener("keydown", pressed);
  document.addEventListener("visibilitychange", turn);
  addEventListener("online", turn);
  // Relative times grow by themselves.
  setInterval(() => { if (!document.hidden) redraw(); }, 1000);
  await useCode();
  arrive(false);
}

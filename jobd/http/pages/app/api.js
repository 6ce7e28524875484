// Calls of the API and streams of events. Addresses are relative, so that the page works behind a proxy with a prefix.

import { learnTime } from "./words.js";

// Seconds without a byte after which a stream counts as dead; the server sends a comment every 15 s.
const SILENT_S = 40;

// What an answer other than success said: `status`, `code` and a text for people. Status 0: no answer at all.
export class Refused extends Error {
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
  get isAway() { return [0, 502, 503, 504].includes(this.status); }
}

// Set by the shell: called at a 401, resolves once somebody has signed in.
export const access = { signIn: null };

// One call; the answer's JSON, or null without a body. Throws `Refused`. `accepts`: a status that is no failure. A body
// that is a string is JSON already.
export async function call(method, path, body, options = {}) {
  const answer = await send(method, path, body, options);
  if (answer.status === 401 && access.signIn && !options.isLogin) {
    await access.signIn();
    return call(method, path, body, { ...options, isLogin: true });
  }
  const text = await answer.text();
  if (!answer.ok && answer.status !== options.accepts) throw refusal(answer, text);
  return text ? JSON.parse(text, exactNumber) : null;
}

// Integers that JavaScript would round stay as they were written, in browsers that can: a payload is shown and sent
// again unchanged.
export function exactNumber(name, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value) || !context || !JSON.rawJSON) return value;
  return /^-?\d+$/.test(context.source) ? JSON.rawJSON(context.source) : value;
}

export function read(path, options) { return call("GET", path, undefined, options); }
export function write(path, body = undefined, options = {}) { return call("POST", path, body, options); }

async function send(method, path, body, { signal, headers } = {}) {
  const request = { method, signal, cache: "no-store", credentials: "same-origin", redirect: "error", headers: { ...headers } };
  if (body !== undefined) {
    request.body = typeof body === "string" ? body : JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  try {
    const answer = await fetch(path, request);
    learnTime(answer.headers.get("date"));
    return answer;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "no_answer", "no answer");
  }
}

function refusal(answer, text) {
  let said = {};
  try { said = JSON.parse(text); } catch { said = {}; }
  const { code, message } = said.error || {}; // of the OpenAI interface
  return new Refused(answer.status, said.code || code || "", said.detail || message || `${answer.status} ${answer.statusText}`);
}

// A path with a query; parameters that are undefined, null or "" are left out, a list is one parameter for each value.
export function query(path, parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((each) => [name, each]))
    .filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
}

// Reads server-sent events until the stream ends; `heard({ id, type, data })` gets each. Throws like `call`.
export async function listen(path, heard, signal) {
  const control = new AbortController(), stop = () => control.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENT_S * 1000);
  try {
    const answer = await send("GET", path, undefined, { signal: control.signal, headers: { Accept: "text/event-stream" } });
    if (!answer.ok) throw refusal(answer, await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENT_S * 1000);
      const blocks = (rest + part.value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) heard(event);
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    control.abort();
  }
}

function parsed(block) {
  const event = { id: "", type: "message", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":"), name = line.slice(0, colon), value = line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") event.type = value;
    else if (name === "id") event.id = value;
    else if (name === "data") event.data += value;
  }
  if (!event.data) return null;
  try { event.data = JSON.parse(event.data); } catch { return null; }
  return event;
}

// The language of the search box: `status:error task:chat label.user:ann age>1h "part of the error"` as a filter of the API.

import { now } from "./words.js";

export const STATUSES = ["queued", "running", "done", "error", "canceled"];
const TERMS = ["status:", "task:", "queue:", "label.", "owner:", "error:", "text:", "age<", "age>", "since:", "until:"];
const SECONDS = { s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

// The parts between spaces, where quotation marks keep spaces together; and a part without its quotation marks.
export function split(text) { return text.match(/(?:"(?:\\.|[^"\\])*"|[^\s"])+/g) || []; }
export function plain(part) { return part.replace(/"((?:\\.|[^"\\])*)"/g, (_, quoted) => quoted.replace(/\\(.)/g, "$1")); }
// A term as it is typed: quoted where it must be.
export function term(name, value) { return name + (/^[^\s"\\]+$/.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`); }

// { filter, id, problem }: the filter as `POST /v1/jobs/count` takes it, or the id of the one job that is meant, or what
// cannot be understood, in words.
export function parse(text) {
  const filter = {}, words = [];
  try {
    if (text.replace(/\\./g, "").split('"').length % 2 === 0) throw new SyntaxError("A quotation mark is not closed.");
    for (const part of split(text)) {
      const found = /^([a-z]+)(\.[^:<>"]+)?([:<>])(.*)$/is.exec(part);
      if (found) take(filter, found[1].toLowerCase(), found[2] || "", found[3], plain(found[4]), part);
      else words.push(plain(part));
    }
    if (words.length === 1 && ID.test(words[0]) && !Object.keys(filter).length) return { id: words[0].toLowerCase() };
    if (words.length) put(filter, "text", words.join(" "));
    return { filter };
  } catch (error) {
    if (error instanceof SyntaxError) return { problem: error.message };
    throw error;
  }
}

function take(filter, name, label, sign, value, part) {
  const key = name + label + sign;
  if (!TERMS.includes(key) && !/^label\..+:$/.test(key)) throw new SyntaxError(`There is no term ${key} – terms are ${TERMS.join(" ")} Text goes in quotation marks.`);
  if (!value) throw new SyntaxError(`${part} needs a value right behind it.`);
  if (label) put((filter.labels ??= {}), label.slice(1), value);
  else if (name === "age") put(filter, sign === ">" ? "until_ts" : "since_ts", now() - seconds(value) * 1000);
  else if (name === "since" || name === "until") put(filter, `${name}_ts`, moment(value));
  else if (name === "status" && !STATUSES.includes(value)) throw new SyntaxError(`There is no status ${value}; a job is ${STATUSES.join(", ")}.`);
  else put(filter, name, value);
}

function put(filter, name, value) {
  if (name in filter) throw new SyntaxError(`${name.replace("_ts", "")} is there twice; leave one out.`);
  filter[name] = value;
}

// Seconds of a span of time as people write it: 90s, 10min, 2h, 1.5d.
export function seconds(text) {
  const found = /^(\d+(?:\.\d+)?)([a-z]+)$/.exec(text);
  if (found && SECONDS[found[2]]) return Math.round(found[1] * SECONDS[found[2]]);
  throw new SyntaxError(`${text} is no span of time; write it as in 90s, 10min, 2h, 3d or 1w.`);
}

function moment(text) {
  // A date alone would be one of UTC.
  const at = Date.parse(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text);
  if (at >= 0) return at;
  throw new SyntaxError(`${text} is no date; write it as in 2026-05-31 or 2026-05-31T14:00.`);
}

// Whole texts that go on from this one. `known`: values by term.
export function suggestions(text, known) {
  const start = /(?:"(?:\\.|[^"\\])*"?|[^\s"])*$/.exec(text).index, typed = text.slice(start), name = /^[^:<>]*[:<>]/.exec(typed);
  const words = name ? (known[name[0]] || []).map((value) => term(name[0], value)) : [...TERMS, ...Object.keys(known).filter((key) => key.startsWith("label."))];
  return words.filter((word) => word.startsWith(typed) && word !== typed).map((word) => text.slice(0, start) + word);
}

"use strict";
// Shows openapi.json, and lets each call be tried. All that comes from the server is put in as text, never as markup.

const METHODS = ["get", "post", "put", "patch", "delete"];
const SHOWN_CHARS = 200000;
let api;

// An element: its text or children follow its attributes.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// The little markup that descriptions have: `code` and [text](address).
function marked(text) {
  return (text || "").split(/(`[^`]+`|\[[^\]]+\]\(\/[^)]*\))/).map((part) => {
    if (part.startsWith("`")) return make("code", {}, part.slice(1, -1));
    const link = /^\[([^\]]+)\]\(\/([^)]*)\)$/.exec(part);
    return link ? make("a", { href: link[2] }, link[1]) : part;
  });
}

function resolve(value) {
  return value && value.$ref ? value.$ref.split("/").slice(1).reduce((found, key) => found[key], api) : value;
}

// -- types --

function limits(schema) {
  const said = [];
  const range = (low, high, unit) => {
    if (low !== undefined && high !== undefined) said.push(`${low} to ${high}${unit}`);
    else if (low !== undefined) said.push(`from ${low}${unit}`);
    else if (high !== undefined) said.push(`up to ${high}${unit}`);
  };
  range(schema.minimum, schema.maximum, "");
  if (schema.exclusiveMinimum !== undefined) said.push(`more than ${schema.exclusiveMinimum}`);
  if (schema.exclusiveMaximum !== undefined) said.push(`less than ${schema.exclusiveMaximum}`);
  range(schema.minLength, schema.maxLength, " characters");
  range(schema.minItems, schema.maxItems, " items");
  if (schema.pattern) said.push(schema.pattern);
  return said.length ? ` (${said.join(", ")})` : "";
}

// What a type is called, as nodes.
function typeName(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [make("a", { href: `#type-${name}` }, name)];
  }
  if (schema.anyOf) return schema.anyOf.flatMap((one, n) => (n ? [" or ", ...typeName(one)] : typeName(one)));
  if (schema.allOf) return typeName(schema.allOf[0]);
  if (schema.enum) return schema.enum.flatMap((one, n) => (n ? [" | ", make("code", {}, one)] : [make("code", {}, one)]));
  if (schema.const !== undefined) return [make("code", {}, String(schema.const))];
  if (schema.type === "array") return ["list of ", ...typeName(schema.items || {}), limits(schema)];
  if (schema.type === "object" && typeof schema.additionalProperties === "object")
    return ["object of ", ...typeName(schema.additionalProperties)];
  return [(schema.format || schema.type || "any JSON") + limits(schema)];
}

function table(heads, rows) {
  const cells = (row) => row.map((cell) => make("td", {}, ...[].concat(cell)));
  return make(
    "table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {}, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))),
  );
}

function fieldName(name, needed) {
  return make("code", { class: needed ? "needed" : "", title: needed ? "needed" : "may be left out" }, name);
}

function fields(schema) {
  const needed = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => {
    const preset = field.default !== undefined && field.default !== null ? ` Without it: ${JSON.stringify(field.default)}.` : "";
    return [fieldName(name, needed.has(name)), typeName(field), [...marked(field.description), preset]];
  });
  return rows.length ? table(["Field", "Type", "Meaning"], rows) : make("p", { class: "faint" }, "No fields.");
}

// -- calls --

function parameters(call) {
  const rows = call.parameters.map((one) => [
    fieldName(one.name, one.required), [...typeName(one.schema), make("span", { class: "faint" }, ` in ${one.in}`)],
    marked(one.description),
  ]);
  return rows.length ? [make("h3", {}, "Parameters"), table(["Name", "Type", "Meaning"], rows)] : [];
}

function body(call) {
  return Object.entries(call.requestBody ? call.requestBody.content : {}).flatMap(([kind, { schema }]) => {
    const inner = resolve(schema);
    const shown = inner.properties ? fields(inner) : make("p", {}, ...typeName(schema), " ", ...marked(schema.description));
    return [make("h3", {}, "Body ", make("small", {}, kind)), shown];
  });
}

function answers(call) {
  const good = [], bad = [];
  for (const [status, reference] of Object.entries(call.responses)) {
    const answer = resolve(reference);
    for (const [kind, { schema }] of Object.entries(answer.content || {})) {
      if (kind !== "application/problem+json") {
        good.push([make("code", {}, status), typeName(schema), make("span", { class: "faint" }, kind)]);
        continue;
      }
      const codes = schema.allOf[1].properties.code.enum;
      const links = codes.map((code) => make("a", { href: `problems#${code}` }, make("code", {}, code)));
      bad.push([make("code", {}, status), make("span", { class: "codes" }, ...links)]);
    }
  }
  return [
    make("h3", {}, "Answers"), table(["Status", "Type", "Media type"], good),
    make("details", { class: "refusals" }, make("summary", {}, "Problems"),
      make("div", { class: "inside" }, table(["Status", "Codes"], bad))),
  ];
}

// -- trying --

function sample(schema, depth = 0) {
  const inner = resolve(schema);
  if (inner.default !== undefined) return inner.default;
  if (inner.enum) return inner.enum[0];
  if (inner.anyOf) return sample(inner.anyOf[0], depth);
  if (inner.type === "array") return depth > 3 ? [] : [sample(inner.items || {}, depth + 1)];
  if (inner.type === "object") {
    const needed = (inner.required || []).map((name) => [name, sample(inner.properties[name], depth + 1)]);
    return Object.fromEntries(needed);
  }
  if (inner.type === "integer" || inner.type === "number") return inner.minimum || 0;
  if (inner.type === "boolean") return false;
  if (inner.format === "uuid") return "00000000-0000-0000-0000-000000000000";
  return inner.type === "string" ? "" : null;
}

function tryIt(method, path, call) {
  const inputs = call.parameters.map((one) => [one, make("input", { "aria-label": one.name, autocomplete: "off" })]);
  const kind = call.requestBody ? Object.keys(call.requestBody.content)[0] : null;
  const text = kind ? make("textarea", { class: "wide", "aria-label": "Body", spellcheck: "false" }) : null;
  if (text) text.value = JSON.stringify(sample(call.requestBody.content[kind].schema), null, 2);
  const output = make("pre", { hidden: true, tabindex: "0" });
  const stop = make("button", { type: "button", hidden: true }, "Stop");
  const send = (event) => {
    event.preventDefault();
    const address = inputs.reduce((found, [one, input]) =>
      one.in === "path" ? found.replace(`{${one.name}}`, encodeURIComponent(input.value)) : found, path.slice(1));
    const query = new URLSearchParams(inputs.filter(([one, input]) => one.in === "query" && input.value)
      .map(([one, input]) => [one.name, input.value])).toString();
    const headers = Object.fromEntries(inputs.filter(([one, input]) => one.in === "header" && input.value)
      .map(([one, input]) => [one.name, input.value]));
    const token = document.getElementById("token").value.trim();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (text) headers["Content-Type"] = kind;
    show(output, stop, address + (query && `?${query}`), { method, headers, body: text ? text.value : undefined });
  };
  return make("details", {}, make("summary", {}, "Try it"), make("form", { class: "inside", onsubmit: send },
    ...inputs.flatMap(([one, input]) => [make("label", {}, make("code", {}, one.name)), input]), text,
    make("div", { class: "wide" }, make("button", {}, `Send ${method}`), " ", stop),
    make("div", { class: "wide" }, output)));
}

// Shows the answer as it comes, since some never end by themselves.
async function show(output, stop, address, request) {
  const control = new AbortController();
  stop.onclick = () => control.abort();
  output.hidden = stop.hidden = false;
  output.textContent = "…";
  try {
    const answer = await fetch(address, { ...request, signal: control.signal, cache: "no-store", redirect: "error" });
    const head = `${answer.status} ${answer.statusText}\n${[...answer.headers].map((pair) => pair.join(": ")).join("\n")}\n\n`;
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let said = "";
    for (let part = await reader.read(); !part.done && said.length < SHOWN_CHARS; part = await reader.read()) {
      said += decoder.decode(part.value, { stream: true });
      output.textContent = head + said;
    }
    control.abort();
    output.textContent = head + pretty(said, answer.headers.get("content-type") || "");
  } catch (error) {
    if (error.name !== "AbortError") output.textContent = `No answer: ${error.message}`;
  }
  stop.hidden = true;
}

function pretty(text, kind) {
  if (!kind.includes("json")) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// -- the page --

function allCalls() {
  return Object.entries(api.paths).flatMap(([path, methods]) => METHODS.filter((method) => methods[method])
    .map((method) => ({ path, method: method.toUpperCase(), call: methods[method] })));
}

function badge(method) {
  return make("span", { class: `method ${method.toLowerCase()}` }, method);
}

function section({ path, method, call }) {
  const scope = call.security.length ? call.security[0].token[0] : "public";
  const opened = make("details", { id: call.operationId, class: "call", ontoggle: fill },
    make("summary", {}, badge(method), make("code", {}, path), make("span", { class: "what" }, call.summary),
      make("span", { class: "scope", title: "the scope that the token needs" }, scope)));
  function fill() {
    if (opened.children.length === 1)
      opened.append(make("div", { class: "inside" }, ...parameters(call), ...body(call), ...answers(call), tryIt(method, path, call)));
  }
  return opened;
}

function typeSection([name, schema]) {
  return make("details", { id: `type-${name}`, class: "type" }, make("summary", {}, make("code", {}, name),
    make("span", { class: "what" }, schema.description || "")), make("div", { class: "inside" }, fields(schema)));
}

// Every word that a call or type may be found by.
function words(value) {
  const text = JSON.stringify(value, (key, inner) => (key === "$ref" ? inner.split("/").pop() : inner));
  return text.toLowerCase();
}

function render() {
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("about").append(...marked(api.info.description), " What is marked * must be sent.");
  const calls = document.getElementById("calls"), contents = document.getElementById("contents"), found = [];
  for (const { name } of api.tags) {
    const inTag = allCalls().filter(({ call }) => call.tags[0] === name);
    const heading = make("h2", {}, name), list = make("ul");
    calls.append(heading);
    contents.append(make("strong", {}, name), list);
    for (const one of inTag) {
      const shown = section(one), entry = make("li", {}, make("a", { href: `#${one.call.operationId}` }, badge(one.method), " ", one.path));
      calls.append(shown);
      list.append(entry);
      found.push({ shown, entry, heading, words: words([one.path, one.method, one.call, inside(one.call)]) });
    }
  }
  for (const pair of Object.entries(api.components.schemas)) {
    const shown = typeSection(pair);
    document.getElementById("types").append(shown);
    found.push({ shown, heading: document.getElementById("types-heading"), words: words(pair) });
  }
  return found;
}

// What is sent and answered, with the types resolved that the call only names.
function inside(call) {
  return [call.requestBody, ...Object.values(call.responses)].flatMap((one) =>
    Object.values((resolve(one) || {}).content || {}).map(({ schema }) => [schema, resolve(schema)]));
}

function search(found) {
  const asked = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const headings = new Set();
  for (const one of found) {
    const fits = asked.every((word) => one.words.includes(word));
    one.shown.hidden = !fits;
    if (one.entry) one.entry.hidden = !fits;
    if (fits) headings.add(one.heading);
  }
  for (const one of found) one.heading.hidden = !headings.has(one.heading);
  document.getElementById("nothing").hidden = headings.size > 0;
}

// Opens what the address names.
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named && named.tagName === "DETAILS") {
    named.hidden = false;
    named.open = true;
    named.scrollIntoView();
  }
}

async function start() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
  api = await answer.json();
  const found = render();
  document.getElementById("search").addEventListener("input", () => search(found));
  addEventListener("hashchange", openNamed);
  openNamed();
}

start().catch((error) => { document.getElementById("calls").textContent = `This page cannot be shown: ${error.message}`; });

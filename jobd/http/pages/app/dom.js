// A keyed renderer: `h` describes elements, `render` changes the document as little as possible to match.
// Content only ever becomes text nodes and attributes, never markup, so nothing that a job says can run here.

const SVG = "http://www.w3.org/2000/svg";
// Set as properties, and only when the description changes: what a person typed or opened stays.
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected", "indeterminate", "scrollTop"]);
const IGNORED = new Set(["key", "ref"]);

// An element. `props`: attributes, `on...` functions, `key` (who it is among its siblings), `ref` (called with the new
// element). Children: strings, numbers, elements, lists of them; null, undefined, booleans and "" are nothing.
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: flat(children) };
}

// Makes the children of a parent what the description says.
export function render(parent, children) {
  reconcile(parent, flat([children]));
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== "" && typeof child !== "boolean")
    .map((child) => (typeof child === "object" ? child : { text: String(child) }));
}

// Names each child among its siblings: by its key, else by its tag and how many of that tag came before.
function named(children) {
  const seen = new Map();
  return children.map((child) => {
    const tag = child.tag || "#text";
    if (child.props && child.props.key !== undefined) return `${tag} ${child.props.key}`;
    const number = seen.get(tag) || 0;
    seen.set(tag, number + 1);
    return `${tag}#${number}`;
  });
}

function reconcile(parent, next) {
  const before = parent.described || new Map(), after = new Map(), names = named(next);
  next.forEach((child, index) => {
    const old = before.get(names[index]);
    child.node = old ? patch(old, child) : create(child, parent);
    after.set(names[index], child);
  });
  for (const [name, old] of before) if (!after.has(name)) old.node.remove();
  let cursor = parent.described ? parent.firstChild : null;
  if (!parent.described) parent.textContent = "";
  for (const child of after.values()) {
    if (child.node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(child.node, cursor);
  }
  parent.described = after;
}

function create(child, parent) {
  if (child.tag === undefined) return document.createTextNode(child.text);
  const isSvg = child.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const node = isSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  reconcile(node, child.children);
  setProps(node, {}, child.props);
  if (child.props.ref) child.props.ref(node);
  return node;
}

function patch(old, child) {
  const node = old.node;
  if (child.tag === undefined) {
    if (old.text !== child.text) node.data = child.text;
    return node;
  }
  reconcile(node, child.children);
  setProps(node, old.props, child.props);
  return node;
}

function setProps(node, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) setProp(node, name, null);
  for (const name of Object.keys(after)) if (after[name] !== before[name]) setProp(node, name, after[name]);
}

function setProp(node, name, value) {
  if (IGNORED.has(name)) return;
  if (name.startsWith("on")) node[name.toLowerCase()] = value || null;
  else if (PROPERTIES.has(name)) node[name] = value === null || value === undefined ? "" : value;
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (name !== "href" || !/^\s*(javascript|data|vbscript):/i.test(value)) node.setAttribute(name, value === true ? "" : value);
}

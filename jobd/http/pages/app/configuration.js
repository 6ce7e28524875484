// The configuration in force, by section; the server has masked the secrets.

import { h } from "./dom.js";
import { read } from "./api.js";
import { card, empty, fold } from "./parts.js";
import { room } from "./shell.js";

function isSection(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

// The options of a section, and the sections in it.
function optionList(section, path) {
  const entries = Object.entries(section), inside = entries.filter(([, value]) => isSection(value) && Object.keys(value).length);
  return [h("dl", { class: "options" }, entries.filter(([, value]) => !isSection(value)).map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value === null ? "unset" : JSON.stringify(value))))),
    inside.map(([name, value]) => sectionFold(name, value, path))];
}

function sectionFold(name, section, path = "") {
  return fold(path + name, () => optionList(section, `${path}${name}.`), { key: `section ${path}${name}` });
}

room({
  name: "configuration",
  title: "Configuration",
  scope: "admin",
  icon: "M4 7h10M18 7h2M4 17h2M10 17h10M14 7a2 2 0 104 0 2 2 0 00-4 0M6 17a2 2 0 104 0 2 2 0 00-4 0",
  every_s: 60,
  load: () => read("v1/config"),
  stream: () => null,
  view: (data) => [h("header", { class: "head" }, h("h1", {}, "Configuration"), h("p", { class: "faint" }, "What is in force now. Secrets are masked.")),
    data ? card("Options", {}, optionList(data.config, "")) : empty("Asking jobd…")],
});

// The models that clients of OpenAI's interface may name, and the servers that jobd runs for them.

import { h } from "./dom.js";
import { read } from "./api.js";
import { card, chip, empty, table } from "./parts.js";
import { room } from "./shell.js";

const STATE_KINDS = { ready: "done", starting: "running", stopped: "paused", failed: "error" };

const MODEL_COLUMNS = [
  { name: "Model", class: "wrap", cell: ({ id }) => id },
  { name: "Server", class: "wrap", cell: ({ server }) => (server ? [chip(server.state, STATE_KINDS[server.state] || ""), server.reason ? ` ${server.reason}` : null] : "not run by jobd") },
  { name: "Answers now", right: true, cell: ({ server }) => (server ? server.jobs : "–") },
  { name: "Wait for it", right: true, narrow: false, cell: ({ server }) => (server ? server.waiting : "–") },
  { name: "Last load", right: true, narrow: false, cell: ({ server }) => (server && server.load_s !== null ? `${server.load_s.toFixed(1)} s` : "–") },
];

async function loadModels() {
  const [models, board] = await Promise.all([read("v1/models"), read("v1/board")]);
  const servers = new Map((board.model_servers || []).map((server) => [server.model, server]));
  return models.data.map(({ id }) => ({ id, server: servers.get(id) || null }));
}

function modelsView(models) {
  if (!models.length) return empty("No model is configured: a table [models.NAME], or a task with run = \"openai\" and a model, makes one.");
  return card("Names for clients", {}, table("Models", MODEL_COLUMNS, models, ({ id }) => id));
}

room({
  name: "models",
  title: "Models",
  icon: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5",
  every_s: 5,
  stream: () => null,
  load: loadModels,
  view: (models) => [h("header", { class: "head" }, h("h1", {}, "Models")), models ? modelsView(models) : empty("Asking jobd…")],
});

// OpenAI's client for Node, unchanged: chat, stream, tools, embeddings, models.
import OpenAI from "openai";

const { BASE_URL, MODEL, TOOL_CHUNKS } = process.env;
const client = new OpenAI({ baseURL: BASE_URL, apiKey: "none" });
const messages = [{ role: "user", content: "hi" }];
const asksTools = [{ role: "user", content: JSON.stringify({ data: JSON.parse(TOOL_CHUNKS) }) }];

const whole = await client.chat.completions.create({ model: MODEL, messages });
let text = "";
for await (const part of await client.chat.completions.create({ model: MODEL, messages, stream: true })) {
  text += part.choices[0].delta.content ?? "";
}
const called = await client.chat.completions.create({ model: MODEL, messages: asksTools });
const vectors = await client.embeddings.create({ model: MODEL, input: ["one", "three"] });
const names = [];
for await (const model of client.models.list()) names.push(model.id);
console.log(
  JSON.stringify({
    chat: whole.choices[0].message.content,
    stream: text,
    tools: called.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    embeddings: vectors.data.map((each) => each.embedding.length),
    models: names.includes(MODEL),
  }),
);

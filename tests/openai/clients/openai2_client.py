"""The major version before of OpenAI's Python client, unchanged: chat, stream, tools, embeddings, models."""

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="none")
model = os.environ["MODEL"]
messages = [{"role": "user", "content": "hi"}]
asks_tools = [{"role": "user", "content": json.dumps({"data": json.loads(os.environ["TOOL_CHUNKS"])})}]
calls = client.chat.completions.create(model=model, messages=asks_tools).choices[0].message.tool_calls
parts = client.chat.completions.create(model=model, messages=messages, stream=True)
print(
    json.dumps(
        {
            "major": int(openai.__version__.split(".")[0]),
            "chat": client.chat.completions.create(model=model, messages=messages).choices[0].message.content,
            "stream": "".join(part.choices[0].delta.content or "" for part in parts),
            "tools": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
            "embeddings": [
                len(each.embedding) for each in client.embeddings.create(model=model, input=["a", "b"]).data
            ],
            "models": model in [each.id for each in client.models.list()],
        }
    )
)

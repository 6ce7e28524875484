"""LiteLLM's provider openai/, unchanged: chat, stream, embeddings."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks another server for prices

import litellm

base = {"model": f"openai/{os.environ['MODEL']}", "api_base": os.environ["BASE_URL"], "api_key": "none"}
messages = [{"role": "user", "content": "hi"}]
parts = litellm.completion(**base, messages=messages, stream=True)
vectors = litellm.embedding(**base, input=["one", "three"], encoding_format="float")
print(
    json.dumps(
        {
            "chat": litellm.completion(**base, messages=messages).choices[0].message.content,
            "stream": "".join(part.choices[0].delta.content or "" for part in parts),
            "embeddings": [len(each["embedding"]) for each in vectors.data],
        }
    )
)

"""langchain-openai, unchanged: chat, stream, tools, embeddings."""

import json
import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

base = {"base_url": os.environ["BASE_URL"], "api_key": "none", "model": os.environ["MODEL"]}


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return city


chat = ChatOpenAI(**base)
called = chat.bind_tools([weather]).invoke(json.dumps({"data": json.loads(os.environ["TOOL_CHUNKS"])}))
embeddings = OpenAIEmbeddings(**base, check_embedding_ctx_length=False)
print(
    json.dumps(
        {
            "chat": chat.invoke("hi").content,
            "stream": "".join(part.content for part in chat.stream("hi")),
            "tools": [[call["name"], call["args"]] for call in called.tool_calls],
            "embeddings": [len(vector) for vector in embeddings.embed_documents(["one", "three"])],
        }
    )
)

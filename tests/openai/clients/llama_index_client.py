"""llama-index's OpenAILike, unchanged: chat, stream."""

import json
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model=os.environ["MODEL"], api_base=os.environ["BASE_URL"], api_key="none", is_chat_model=True, context_window=4096
)
messages = [ChatMessage(role="user", content="hi")]
print(
    json.dumps(
        {
            "chat": model.chat(messages).message.content,
            "stream": "".join(part.delta or "" for part in model.stream_chat(messages)),
        }
    )
)

"""The body of `POST /v1/completions`, the older call without messages, as the payload of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.openai.chat_request import COMMON_FIELDS, stream_in
from jobd.openai.envelope import enveloped
from jobd.openai.errors import InvalidCall
from jobd.openai.fields import ModelCall, Texts, check_one_answer, check_texts, checked_fields, fields_for, model_in

if TYPE_CHECKING:
    from jobd.config.model import Config

COMPLETION_FIELDS: dict[str, Any] = {
    **COMMON_FIELDS,
    "prompt": Texts,
    "suffix": str | None,
    "echo": bool | None,
    "best_of": int | None,
    "logprobs": int | None,
}
_NOT_PASSED_ON = frozenset({"stream", "stream_options", "n", "best_of"})


def completion_call(body: object, config: Config) -> ModelCall:
    """Raises InvalidCall or ModelNotFound."""
    fields = checked_fields(body, COMPLETION_FIELDS)
    model = model_in(fields, config)
    if "prompt" not in fields:
        raise InvalidCall("prompt", "prompt is missing: text, or a list of tokens")
    check_one_answer(fields, "n", "best_of")
    prompt = fields["prompt"]
    check_texts("prompt", prompt)
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
        if len(prompt) != 1:
            message = f"prompt must be one text or one list of tokens (got {len(prompt)} of them): a job has one answer"
            raise InvalidCall("prompt", message, "unsupported_value")
        prompt = prompt[0]
    is_stream, include_usage = stream_in(fields)
    passed_on = fields_for(model, {**fields, "prompt": prompt}, _NOT_PASSED_ON)
    return ModelCall(model, enveloped(passed_on, "completions", told_once=is_stream), is_stream, include_usage)

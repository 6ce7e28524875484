"""What the models of one task answered, in numbers that only grow: for `/metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobd.lifecycle.histogram import Histogram

if TYPE_CHECKING:
    from jobd.tasks.openai.answer import StreamedAnswer

#: Stands for the model that the server picks, where neither the task nor the job names one.
DEFAULT: Final = "default"
#: Stands for every model that jobs name and the task's configuration does not.
OTHER: Final = "other"


class ModelCounts:
    def __init__(self, configured: str) -> None:
        #: The model of the task's configuration; empty: the server's own choice.
        self._configured = configured
        #: By model: tokens that were generated, also for jobs that failed afterwards.
        self.tokens: dict[str, int] = {}
        #: By model: seconds from the request to the first token.
        self.first_token: dict[str, Histogram] = {}

    def add(self, asked_for: str, answer: StreamedAnswer) -> None:
        """Count an answer that has ended; `asked_for`: the model that the request named, or nothing."""
        model = (asked_for or DEFAULT) if asked_for == self._configured else OTHER
        self.tokens[model] = self.tokens.get(model, 0) + answer.tokens
        if (first_token_s := answer.first_token_s) is not None:
            self.first_token.setdefault(model, Histogram()).add(first_token_s)

"""Models as OpenAI lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from jobd.openai.models import models_of

if TYPE_CHECKING:
    from jobd.config.model import Config
    from jobd.openai.models import Model


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    #: Seconds since 1970 at which this jobd learned of it.
    created: int
    owned_by: str = "jobd"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]


def model_object(model: Model, created: int, name: str | None = None) -> ModelObject:
    return ModelObject(id=name or model.id, created=created)


def model_list(config: Config, created: int) -> ModelList:
    """Every model, and each alias as a model of its own: clients offer what they find here."""
    return ModelList(
        data=[
            model_object(model, created, name)
            for model in models_of(config).values()
            for name in (model.id, *model.aliases)
        ]
    )

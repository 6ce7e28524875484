"""`/v1/models`: from the configuration alone, so it answers while model servers are down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.openai.model_list import ModelList, ModelObject, model_list, model_object
from jobd.openai.models import find_model

if TYPE_CHECKING:
    from starlette.responses import Response

#: Seconds since 1970 at which this process began: models have no other time.
BEGAN_AT = int(time.time())


async def list_models(call: Call) -> Response:
    return json_answer(model_list(call.services.config(), BEGAN_AT))


async def get_model(call: Call) -> Response:
    name = call.request.path_params["id"]
    return json_answer(model_object(find_model(call.services.config(), name), BEGAN_AT, name))


ENDPOINTS = (
    get("/v1/models", "client", list_models, "List models", answers={200: ModelList}, own_jobs=True),
    get(
        "/v1/models/{id:path}",
        "client",
        get_model,
        "Read a model",
        answers={200: ModelObject},
        problems=("model_not_found",),
        parameters=(Parameter("id", str, "The name of a model; it may have / and : in it.", "path"),),
        own_jobs=True,
    ),
)

"""A web application that hands its work to jobd: orders are answered at once, and a browser follows the job."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from jobd import AsyncClient
from jobd.client import NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Order(BaseModel):
    customer: str
    month: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as client:  # JOBD_URL and JOBD_TOKEN, else http://127.0.0.1:7433
        app.state.jobd = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/reports", status_code=202)
async def order_report(order: Order) -> dict[str, str]:
    job = await app.state.jobd.submit(
        "report",
        order.model_dump(),
        idempotency_key=f"report-{order.customer}-{order.month}",
        labels={"customer": order.customer},
    )
    return {"id": str(job.job_id)}


@app.get("/reports/{job_id}")
async def get_report(job_id: str) -> dict[str, Any]:
    try:
        job = await app.state.jobd.get(job_id)
    except NotFound:
        raise HTTPException(404, "there is no such report") from None
    return {"id": job_id, "status": job.status, "report": job.result, "error": job.error}


@app.get("/reports/{job_id}/events")
async def follow_report(job_id: str, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
    async def passed_on() -> AsyncIterator[str]:
        async for event in app.state.jobd.events(job_id, last_event_id):
            yield f"id: {event.id}\nevent: {event.type}\ndata: {json.dumps(event.data)}\n\n"

    return StreamingResponse(passed_on(), media_type="text/event-stream")

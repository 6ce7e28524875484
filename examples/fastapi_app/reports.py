"""The task of the application, which runs in jobd and not in the web server."""

from __future__ import annotations

import anyio
import msgspec

from jobd import Context, task


class Order(msgspec.Struct):
    customer: str
    month: str


@task(timeout_s=300)
async def report(order: Order, ctx: Context) -> dict[str, object]:
    sums = []
    for number in range(1, 5):
        await anyio.sleep(0.05)  # a query
        sums.append(number * len(order.customer))
        ctx.progress(number / 4, f"week {number}")
    return {"customer": order.customer, "month": order.month, "total": sum(sums)}

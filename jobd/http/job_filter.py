"""Which jobs a call means: the filter of every call that lists, counts or changes jobs is made here.

What a caller may see is narrowed in this one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.lifecycle.search import JobFilter
from jobd.wire.milliseconds import moment
from jobd.wire.schedules import SCHEDULE_LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.http.endpoint import Call

TIMES = ("since_ts", "until_ts")


def job_filter(call: Call, terms: Mapping[str, Any]) -> JobFilter:
    """The filter of these terms, by their names in the API, for the caller."""
    times: dict[str, Any] = {name.removesuffix("_ts"): moment(terms[name]) for name in TIMES if name in terms}
    others = {name: value for name, value in terms.items() if name not in (*TIMES, "label", "labels", "schedule")}
    sees = call.principal.sees
    if sees is not None:
        others |= {"owner": sees, "fits_none": others.get("owner", sees) != sees}
    return JobFilter(**others, **times, labels=_labels(terms))


def _labels(terms: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """From a body, which has an object, or from a query, which has `name:value` any number of times."""
    asked = [term.partition(":") for term in terms.get("label", ())]
    schedule = [(SCHEDULE_LABEL, terms["schedule"])] if "schedule" in terms else []
    return (*schedule, *terms.get("labels", {}).items(), *((name, value) for name, _, value in asked))

"""Labels and trace context through both clients, and labels through the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from jobd import Client
    from tests.support.daemon import Jobd

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_job_is_submitted_and_found_by_its_labels(client: Client) -> None:
    run = str(uuid4())
    job = client.submit("embed", {}, labels={"run": run, "n": "1 & 2:é"})
    client.submit("embed", {}, labels={"run": run})

    page = client.list(labels={"run": run, "n": "1 & 2:é"})

    assert [found.job_id for found in page.jobs] == [job.job_id]
    assert page.jobs[0].labels == job.labels == {"run": run, "n": "1 & 2:é"}
    assert client.list(owner="nobody").jobs == []


def test_the_trace_is_sent_with_a_submit_and_a_batch(client: Client) -> None:
    job = client.submit("embed", {}, traceparent=TRACEPARENT, tracestate="a=1")
    (entry,) = client.submit_batch([{"task": "embed", "payload": {}}], traceparent=TRACEPARENT)

    assert client.get(job.job_id).traceparent == client.get(entry.job_id).traceparent == TRACEPARENT


def test_a_trace_that_no_header_can_hold_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="tracestate must be of visible ASCII"):
        client.submit("embed", {}, traceparent=TRACEPARENT, tracestate="a=1\r\nX: y")


def test_the_command_line_submits_lists_and_shows_labels(daemon: Jobd) -> None:
    url, run = daemon.addresses["JOBD_URL"], str(uuid4())
    made = run_jobd("submit", "embed", "--label", f"run={run}", "--label", "eq=a=b", "--url", url).stdout.strip()
    run_jobd("submit", "embed", "--label", f"run={run}", "--url", url)

    listed = run_jobd("list", "--label", f"run={run}", "--label", "eq=a=b", "--url", url).stdout
    shown = run_jobd("get", made, "--url", url).stdout

    assert [line.split("\t")[0] for line in listed.splitlines()] == [made]
    assert f"labels      eq=a=b, run={run}" in shown


@pytest.mark.parametrize("labels", [["team"], ["=x"], ["a=1", "a=2"]])
@pytest.mark.parametrize("command", [["submit", "embed"], ["list"]])
def test_a_bad_label_is_wrong_usage(daemon: Jobd, command: list[str], labels: list[str]) -> None:
    options = [part for label in labels for part in ("--label", label)]

    assert run_jobd(*command, *options, "--url", daemon.addresses["JOBD_URL"]).returncode == 2

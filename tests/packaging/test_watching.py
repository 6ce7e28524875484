"""The dashboard and the alert rules: they name only what jobd exports, and promtool takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.test_metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
ALERTS = PACKAGING / "alerts.yml"
DASHBOARD = PACKAGING / "grafana-dashboard.json"
#: Suffixes on the wire.
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}
EXPORTED = {name + suffix for name, (kind, _) in METRICS.items() for suffix in SUFFIXES[kind]}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="NOT CHECKED by promtool: it is not installed (Debian: prometheus)"
)


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\bjobd_\w+", text))


def test_alerts_name_only_what_is_exported() -> None:
    named = named_in(ALERTS.read_text())

    assert len(named) > 5
    assert named <= EXPORTED


def test_dashboard_shows_everything_that_is_exported_and_nothing_else() -> None:
    shown = named_in(" ".join(expressions()))

    assert shown <= EXPORTED
    assert {
        name for name in METRICS if not any(name + suffix in shown for suffix in SUFFIXES[METRICS[name][0]])
    } == set()
    variables = {found["name"]: found["query"] for found in dashboard()["templating"]["list"]}
    assert named_in(json.dumps(variables)) <= EXPORTED
    assert set(re.findall(r"\$(\w+)", " ".join(expressions()))) <= {*variables, "__rate_interval"}


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    promtool("check", "rules", ALERTS)


@needs_promtool
def test_promtool_takes_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    exprs = [
        expr.replace("$__rate_interval", "5m").replace("$queue", ".*").replace("$instance", ".*")
        for expr in expressions()
    ]
    rules = [{"record": f"test:panel:{n}", "expr": expr} for n, expr in enumerate(exprs)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML

    promtool("check", "rules", file)


@needs_promtool
def test_promtool_takes_the_configuration_in_the_guide(tmp_path: Path) -> None:
    guide = (PACKAGING.parent / "docs" / "operations.md").read_text()
    found = re.search(r"```yaml\n(# prometheus\.yml\n.*?)```", guide, re.DOTALL)
    assert found is not None
    file = tmp_path / "prometheus.yml"
    file.write_text(found[1])

    promtool("check", "config", "--syntax-only", file)


#: Alert, labels that it must have, and series that raise it, from minute to minute.
RAISED: Sequence[tuple[str, dict[str, str], dict[str, str]]] = (
    ("JobdDown", {"instance": "a", "job": "jobd"}, {'up{job="jobd",instance="a"}': "0x60"}),
    ("JobdServiceDown", {"service": "relay"}, {'jobd_service_up{service="relay"}': "0x60"}),
    ("JobdServiceRestarts", {"service": "relay"}, {'jobd_service_restarts_total{service="relay"}': "0+1x60"}),
    ("JobdDegraded", {}, {"jobd_degraded": "1x60"}),
    (
        "JobdQueueStuck",
        {"queue": "q"},
        {'jobd_queue_oldest_seconds{queue="q"}': "1000x60", 'jobd_queue_paused{queue="q"}': "0x60"},
    ),
    ("JobdQueuePaused", {"queue": "q"}, {'jobd_queue_paused{queue="q"}': "1x120"}),
    (
        "JobdFailures",
        {"queue": "q", "task": "t"},
        {
            'jobd_jobs_finished_total{queue="q",task="t",outcome="error"}': "0+2x60",
            'jobd_jobs_finished_total{queue="q",task="t",outcome="done"}': "0+8x60",
        },
    ),
    ("JobdDeadLetters", {"queue": "q"}, {'jobd_dead_letters{queue="q"}': "0+10x120"}),
    ("JobdWorkersFallSilent", {}, {"jobd_leases_expired_total": "0+1x60"}),
    ("JobdOutboxBehind", {}, {"jobd_outbox_age_seconds": "100x60"}),
    (
        "JobdRequestsFail",
        {"route": "GET /v1/jobs"},
        {
            'jobd_http_requests_total{route="GET /v1/jobs",status="503"}': "0+10x60",
            'jobd_http_requests_total{route="GET /v1/jobs",status="200"}': "0+10x60",
        },
    ),
    ("JobdDiskLow", {}, {"jobd_disk_free_bytes": "1000000x60"}),
    ("JobdMemoryLow", {}, {"jobd_memory_available_bytes": "1000000x60"}),
)
#: The same metrics of a jobd that is well.
WELL = {
    'up{job="jobd",instance="a"}': "1x120",
    'jobd_service_up{service="relay"}': "1x120",
    'jobd_service_restarts_total{service="relay"}': "1x120",
    "jobd_degraded": "0x120",
    'jobd_queue_oldest_seconds{queue="q"}': "10x120",
    'jobd_queue_oldest_seconds{queue="paused"}': "10000x30",
    'jobd_queue_paused{queue="paused"}': "1x30",
    'jobd_jobs_finished_total{queue="q",task="t",outcome="error"}': "0+1x120",
    'jobd_jobs_finished_total{queue="q",task="t",outcome="done"}': "0+99x120",
    'jobd_dead_letters{queue="q"}': "0+1x120",
    "jobd_leases_expired_total": "0x120",
    "jobd_outbox_age_seconds": "0.1x120",
    'jobd_http_requests_total{route="GET /v1/jobs",status="200"}': "0+10x120",
    "jobd_disk_free_bytes": "90000000000x120",
    "jobd_memory_available_bytes": "4000000000x120",
}


def test_every_alert_is_tried() -> None:
    assert re.findall(r"- alert: (\w+)", ALERTS.read_text()) == [alert for alert, _, _ in RAISED]


@needs_promtool
@pytest.mark.parametrize(("alert", "labels", "series"), RAISED, ids=[alert for alert, _, _ in RAISED])
def test_alert_is_raised_by_what_it_is_for_and_by_nothing_else(
    tmp_path: Path, alert: str, labels: dict[str, str], series: dict[str, str]
) -> None:
    severity = re.search(rf"- alert: {alert}\n.*?severity: (\w+)", ALERTS.read_text(), re.DOTALL)
    assert severity is not None
    raised = {"__name__": "ALERTS", "alertname": alert, "alertstate": "firing", "severity": severity[1], **labels}
    tests = [rules_test(alert, series, [raised]), rules_test(alert, WELL, [])]
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))

    promtool("test", "rules", file)


def rules_test(alert: str, series: dict[str, str], raised: list[dict[str, str]]) -> dict[str, Any]:
    last = max(int(values.rpartition("x")[2]) for values in series.values())
    expression = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    samples = [{"labels": series_of(labels), "value": 1} for labels in raised]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": f"{last}m", "exp_samples": samples}],
    }


def series_of(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def promtool(*arguments: object) -> None:
    ran = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr

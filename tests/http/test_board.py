"""`/v1/board`, its command and its metrics; jobs that wait for memory or heat, and those that are too large."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.board.trees import MEMINFO, ORIN_NANO_JETPACK_6, plant
from tests.support.daemon import Jobd, run_jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
[queues.default]
slots = 2
[queues.hot]
slots = 2
hot = true
[queues.far]
slots = 0
[tasks.large]
run = "mock"
needs_memory_mb = 3000
[tasks.huge]
run = "mock"
needs_memory_mb = 7000
[tasks.chat]
run = "mock"
[board]
prefix = "{root}"
period_s = 0.1
[tickets]
enabled = false
"""
ZONE = "/sys/class/thermal/thermal_zone0/temp"


class BoardDaemon:
    """A jobd on a recorded board, of which a test may change what it shows."""

    def __init__(self, daemon: Jobd, root: Path, config: Path) -> None:
        self.daemon, self.root, self.config = daemon, root, config
        self.api = Api(daemon.address)

    def has(self, available_mb: int) -> None:
        plant(self.root, {"/proc/meminfo": MEMINFO.format(total=7620 << 10, available=available_mb << 10, swap=0)})

    def board(self) -> Any:
        return self.api("GET", "/v1/board").json

    def submit(self, task: str, queue: str = "default") -> Any:
        answer = self.api("POST", "/v1/jobs", {"task": task, "payload": {}, "queue": queue})
        assert answer.status == 202, answer.body
        return answer.json["job_id"]

    def job(self, job_id: str) -> Any:
        return self.api("GET", f"/v1/jobs/{job_id}").json

    def until_level(self, level: str) -> None:
        wait_until(lambda: self.board()["heat"]["level"] == level, lambda: str(self.board()))


@pytest.fixture(scope="module")
def on_board() -> Iterator[BoardDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    root = folder / "board"
    plant(root, ORIN_NANO_JETPACK_6)
    config = folder / "jobd.toml"
    config.write_text(CONFIG.format(root=root))
    daemon = Jobd(folder / "data", "--config", str(config)).start().until_ready()
    try:
        yield BoardDaemon(daemon, root, config)
    finally:
        daemon.stop()
        daemon.clean_up()
        shutil.rmtree(folder)


def test_board_shows_what_was_measured(on_board: BoardDaemon) -> None:
    on_board.has(5000)
    wait_until(lambda: on_board.board()["memory"]["available_bytes"] == 5000 << 20)

    board = on_board.board()

    assert (board["kind"], board["release"], board["power_mode"]) == ("jetson", "36.4.3", "MAXN_SUPER")
    assert {zone["zone"]: zone["celsius"] for zone in board["zones"]} == {"cpu-thermal": 51.25, "tj-thermal": 52.125}
    assert board["rails"][0] == {"rail": "VDD_IN", "watts": 4.755, "volts": 5.08, "amperes": 0.936, "is_total": True}
    assert board["gpus"] == [{"gpu": "gpu", "load": 0.437, "hertz": 612000000, "max_hertz": 1020000000}]
    assert board["memory"]["pressure"] == {"some": 0.015, "full": 0.005}
    assert board["memory"]["free_bytes"] == (5000 - 768) << 20
    assert board["heat"] == {
        "level": "none",
        "zone": "tj-thermal",
        "celsius": 52.125,
        "soft_celsius": 94.0,
        "hard_celsius": 99.0,
    }
    assert (board["throttled_by"], board["taken_ts"] > 0) == ([], True)


def test_metrics_have_the_board(on_board: BoardDaemon) -> None:
    text = on_board.api("GET", "/metrics").body.decode()

    for line in (
        'jobd_temperature_celsius{zone="cpu-thermal"} 51.25',
        'jobd_power_watts{rail="VDD_IN"} 4.755',
        "jobd_memory_reserved_bytes 0.0",
        "jobd_throttled 0.0",
        f"jobd_disk_written_bytes_total {float((1 << 30) + 4096 * 512)!r}",
    ):
        name, _, number = line.rpartition(" ")
        (found,) = [row for row in text.splitlines() if row.startswith(f"{name} ")]
        assert float(found.rpartition(" ")[2]) == float(number)


def test_commands_show_the_board(on_board: BoardDaemon) -> None:
    url = ("--url", f"http://{on_board.daemon.address}")

    people, program, top = run_jobd("board", *url), run_jobd("board", "--json", *url), run_jobd("top", "--once", *url)

    assert "tj-thermal 52.1 C, slowed down at 99, off at 104.5" in people.stdout, people.stderr
    assert "VDD_IN 4.75 W (all)" in people.stdout or "VDD_IN 4.76 W (all)" in people.stdout
    assert json.loads(program.stdout)["kind"] == "jetson"
    assert "board tj-thermal 52 C" in top.stdout, top.stderr


def test_doctor_looks_at_the_board_itself(on_board: BoardDaemon) -> None:
    answer = run_jobd("doctor", "--json", "--config", str(on_board.config), "--data-dir", str(on_board.daemon.data_dir))

    checks = {check["check"]: check for check in json.loads(answer.stdout)["checks"]}
    assert "Jetson Orin Nano" in checks["board"]["detail"]
    assert checks["board"]["verdict"] == "OK"
    assert "huge need more than this board has" in checks["memory"]["detail"]


def test_job_says_what_memory_it_waits_for_until_there_is_some(on_board: BoardDaemon) -> None:
    on_board.has(3000)
    job_id = on_board.submit("large")

    waiting = on_board.job(job_id)["waiting"]
    shown = run_jobd("get", job_id, "--url", f"http://{on_board.daemon.address}").stdout
    on_board.has(5000)

    assert waiting == {
        "reason": "memory",
        "position": 0,
        "eta_s": None,
        "needed_bytes": 3000 << 20,
        "free_bytes": (3000 - 768) << 20,
        "detail": "it needs 3000 MB, and 2232 MB are free for jobs",
    }
    assert "memory: it needs 3000 MB" in shown
    wait_until(lambda: on_board.job(job_id)["status"] == "done", lambda: str(on_board.job(job_id)))


def test_job_says_when_memory_cannot_be_measured(on_board: BoardDaemon) -> None:
    (on_board.root / "proc/meminfo").write_text("")
    job_id = on_board.submit("large")

    waiting = on_board.job(job_id)["waiting"]
    on_board.has(5000)

    assert (waiting["reason"], waiting["free_bytes"]) == ("memory", None)
    assert "cannot measure its memory" in waiting["detail"]
    wait_until(lambda: on_board.job(job_id)["status"] == "done")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"task": "huge", "payload": {}}),
        ("/v1/jobs/batch", [{"task": "chat", "payload": {}}, {"task": "huge", "payload": {}}]),
        ("/v1/groups", {"callback": {"task": "huge", "payload": {}}}),
    ],
)
def test_job_that_needs_more_than_the_board_has_is_refused_and_nothing_is_made(
    on_board: BoardDaemon, path: str, body: Any
) -> None:
    before = len(on_board.api("GET", "/v1/jobs?limit=100").json["jobs"])

    answer = on_board.api("POST", path, body)

    assert (answer.status, answer.json["code"]) == (422, "needs_too_much_memory")
    assert "needs 7000 MB" in answer.json["detail"]
    assert "has 6852 MB" in answer.json["detail"]
    assert len(on_board.api("GET", "/v1/jobs?limit=100").json["jobs"]) == before


def test_queue_that_no_slot_of_this_board_serves_takes_any_job(on_board: BoardDaemon) -> None:
    job_id = on_board.submit("huge", "far")

    assert on_board.job(job_id)["waiting"]["reason"] == "in_line"


def test_job_of_a_hot_queue_says_that_the_board_is_hot(on_board: BoardDaemon) -> None:
    plant(on_board.root, {ZONE: "99500"})
    on_board.until_level("hard")
    job_id = on_board.submit("chat", "hot")

    waiting = on_board.job(job_id)["waiting"]
    plant(on_board.root, {ZONE: "60000"})

    assert waiting == {
        "reason": "heat",
        "position": 0,
        "eta_s": None,
        "detail": "cpu-thermal has 99.5 degrees, the limit is 99.0: no slot starts a job",
    }
    wait_until(lambda: on_board.job(job_id)["status"] == "done")
    plant(on_board.root, {ZONE: "51250"})

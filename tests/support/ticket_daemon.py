"""A jobd that works on tickets, with tasks, gates and tokens to try them with."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobd.auth.token import new_token
from tests.support.daemon import Jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.http import Answer

#: `echo` answers with the payload, and nobody has to wait long for a poller.
CONFIG = """
[queues.default]
slots = 4
[tasks.echo]
run = "command"
argv = ["cat"]
timeout_s = 120
[tickets]
four_eyes = true
poll_s = 0.2
[tickets.gates.agree]
argv = ["/bin/true"]
[tickets.gates.object]
argv = ["/bin/false"]
"""
TOKENS = {name: new_token() for name in ("ann", "bob", "robot", "boss")}
SCOPES = {"ann": "client", "bob": "client", "robot": "worker", "boss": "admin"}
WAIT_S = 30.0


class TicketDaemon:
    """Ann writes tickets, Bob decides about them; the robot's token is that of a worker, the boss's an admin's."""

    def __init__(self, daemon: Jobd) -> None:
        self.daemon = daemon
        self.ann, self.bob, self.robot, self.boss = (self.api(name) for name in TOKENS)

    def api(self, name: str) -> Api:
        return Api(self.daemon.address, self.headers(name))

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKENS[name].text}"}

    def new(self, **fields: Any) -> dict[str, Any]:
        answer = self.ann("POST", "/v1/tickets", {"title": "Count", "task": "echo", "payload": {"n": 1}, **fields})
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json
        return made

    def decide(self, ticket_id: str, word: str, **fields: Any) -> Answer:
        return self.bob("POST", f"/v1/tickets/{ticket_id}/{word}", fields)

    def approved(self, **fields: Any) -> str:
        ticket_id: str = self.new(**fields)["ticket_id"]
        answer = self.decide(ticket_id, "approve", why="go")
        assert (answer.status, answer.json["status"]) == (200, "TODO"), answer.body
        return ticket_id

    def ticket(self, ticket_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ann("GET", f"/v1/tickets/{ticket_id}").json
        return found

    def trail(self, ticket_id: str) -> dict[str, Any]:
        answer = self.ann("GET", f"/v1/tickets/{ticket_id}/trail")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    def wait_for_status(self, ticket_id: str, status: str, step: str | None = None) -> dict[str, Any]:
        """The ticket once it stands there."""

        def stands() -> bool:
            found = self.ticket(ticket_id)
            return (found["status"], found["step"]) == (status, step)

        wait_until(stands, lambda: f"{self.ticket(ticket_id)} {self.daemon.log()}", WAIT_S)
        return self.ticket(ticket_id)


@contextmanager
def ticket_daemon() -> Iterator[TicketDaemon]:
    tokens = [{"name": name, "sha256": token.sha256.hex(), "scopes": [SCOPES[name]]} for name, token in TOKENS.items()]
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"), JOBD_AUTH_TOKENS=json.dumps(tokens))
    try:
        yield TicketDaemon(daemon.start().until_ready())
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)

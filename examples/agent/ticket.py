"""Write a ticket for the agent. Nothing happens until a person approves it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jobd import Client

if TYPE_CHECKING:
    from jobd.client import Ticket

#: What the result of the agent has to be before a person looks at it.
OUTPUT = {
    "type": "object",
    "required": ["summary", "files"],
    "properties": {"files": {"type": "array", "minItems": 1}, "summary": {"type": "string", "minLength": 1}},
}


def write_ticket(client: Client, goal: str, by: str, criteria: list[str]) -> Ticket:
    return client.create_ticket(
        goal,
        "agent",
        {"goal": "{{title}}", "criteria": "{{acceptance_criteria}}"},
        created_by=by,
        acceptance_criteria=criteria,
        gates=[{"type": "schema", "schema": OUTPUT}, {"type": "sign_off"}],
        max_runs=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("goal")
    parser.add_argument("--by", required=True, help="who writes it")
    parser.add_argument("--accept-if", action="append", default=[], metavar="TEXT", help="may be repeated")
    options = parser.parse_args()
    with Client() as client:
        print(write_ticket(client, options.goal, options.by, options.accept_if).ticket_id)


if __name__ == "__main__":
    main()

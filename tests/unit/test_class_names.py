"""A class name means one thing: it exists once in jobd, or in `wire` and `client` for one object of the contract."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import jobd

TOP = Path(jobd.__file__).parent
#: Names that still exist in several packages. Take a line away when its name is unique; add none.
KNOWN = """
Attempt     client lifecycle wire    a row, and the object of the contract made from it
Call        http stream
ClaimedJob  lifecycle wire           a row, and the object of the contract made from it
DeadLetter  client job wire          an outcome of the machine, and the object of the contract
Event       client job wire          the object of the contract; in `wire` that of a ticket, which OpenAPI calls so
HeldJob     lifecycle wire           a row, and the object of the contract made from it
Job         client lifecycle
JobSummary  client lifecycle wire    a row, and the object of the contract made from it
Lease       job leases
Refused     client tickets
Transition  job tickets
"""
ALLOWED = {name: {*packages.split()} for name, packages in re.findall(r"^(\w+) +((?:\w+ ?)+)", KNOWN, re.MULTILINE)}


def packages_of_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TOP.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(TOP).parts[0])
    return found


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Names that exist more than once, but for one in `wire` and one in `client`."""
    return {
        name: packages
        for name, packages in found.items()
        if len(packages) > 1 and sorted(packages) != ["client", "wire"]
    }


def test_no_class_name_exists_twice() -> None:
    wrong = {
        name: there for name, there in twice(packages_of_names()).items() if not {*there} <= ALLOWED.get(name, {*()})
    }
    assert wrong == {}


def test_a_name_that_exists_twice_is_noticed() -> None:
    assert twice({"A": ["http"], "B": ["http", "http"], "C": ["wire", "client"], "D": ["wire", "client", "job"]}) == {
        "B": ["http", "http"],
        "D": ["wire", "client", "job"],
    }

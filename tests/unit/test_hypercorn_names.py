"""jobd relies on private names of Hypercorn and h11: a version that changed them stops jobd with a clear error."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import jobd
from jobd.errors import HypercornChanged
from jobd.http.hypercorn_names import SIGNATURES, USES, VALUES, check_names

TOP = Path(jobd.__file__).parent
INSTALLED = f"Hypercorn {version('hypercorn')} and h11 {version('h11')}"


def owner_and_attribute(name: str) -> tuple[Any, str]:
    module, _, path = name.partition(":")
    __import__(module)
    owner: Any = sys.modules[module]
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, attribute


def test_installed_versions_have_every_name() -> None:
    check_names()


@pytest.mark.parametrize("name", sorted({*SIGNATURES, *USES, *VALUES}))
def test_missing_name_is_named_with_the_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = owner_and_attribute(name)
    monkeypatch.delattr(owner, attribute)

    with pytest.raises(HypercornChanged) as raised:
        check_names()

    assert INSTALLED in str(raised.value)
    assert name in str(raised.value)


@pytest.mark.parametrize("name", SIGNATURES)
def test_changed_parameters_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = owner_and_attribute(name)
    monkeypatch.setattr(owner, attribute, lambda self, something_else: None)

    with pytest.raises(HypercornChanged, match="something_else"):
        check_names()


@pytest.mark.parametrize(("name", "used"), [(name, word) for name, words in USES.items() for word in words.split()])
def test_method_that_is_no_longer_called_is_noticed(name: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = owner_and_attribute(name)
    function = getattr(owner, attribute)
    names = tuple("renamed" if word == used else word for word in function.__code__.co_names)
    monkeypatch.setattr(function, "__code__", function.__code__.replace(co_names=names))

    with pytest.raises(HypercornChanged, match=f"does not use {used}"):
        check_names()


@pytest.mark.parametrize(
    "broken",
    [
        "import hypercorn.protocol.h11 as h11; del h11.H11Protocol",
        "import hypercorn.protocol.h11 as h11; del h11.H11Protocol._check_protocol",
    ],
)
def test_jobd_does_not_start_with_another_hypercorn(broken: str) -> None:
    program = f"{broken}\nfrom jobd.errors import JobdError\ntry:\n    import jobd.http.gateway\n"
    program += "except JobdError as error:\n    print(error.code, error.exit_code, error)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("hypercorn_changed 70 ")
    assert INSTALLED in done.stdout
    assert "H11Protocol" in done.stdout


def test_no_other_module_imports_hypercorn_or_the_private_part_of_h11() -> None:
    importers = set()
    for path in TOP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(("hypercorn", "h11._")) for name in names):
                importers.add(path.relative_to(TOP).as_posix())

    assert importers == {"http/hypercorn_names.py"}

"""The site: it builds without a warning, its reference names everything, and it loads nothing from elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from jobd.config.options import NAMED, options
from jobd.http.app import ENDPOINTS
from jobd.wire.problems import CATALOGUE
from tests.support.daemon import TOP

if TYPE_CHECKING:
    from pathlib import Path

#: What makes a browser fetch something when a page is opened.
LOADS = re.compile(r'<(?:script|img|iframe|source)[^>]* src="([^"]+)|<link[^>]* href="([^"]+)"[^>]* rel="stylesheet"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(TOP / "mkdocs.yml"), site_dir=str(folder)))  # strict: a broken link ends it
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = {name for page in pages for pair in LOADS.findall(page.read_text()) for name in pair if name}

    assert len(pages) > 20
    assert loaded and not [name for name in loaded if "//" in name]


def test_reference_names_every_call_option_and_error(site: Path) -> None:
    text = {name: (site / "reference" / f"{name}.html").read_text() for name in ("http", "configuration", "errors")}

    assert [one.path for one in ENDPOINTS if f"{one.method} {one.path}" not in text["http"]] == []
    assert [key for key in options(*[["NAME"]] * len(NAMED)) if f">{key[-1]}<" not in text["configuration"]] == []
    assert [code for code in CATALOGUE if code not in text["errors"]] == []


def test_reference_has_the_help_of_every_command(site: Path) -> None:
    text = (site / "reference" / "commands.html").read_text()

    for command in ("jobd serve", "jobd submit", "jobd ticket approve", "jobd schedule backfill", "jobd group watch"):
        assert f"Usage: {command}" in text, command

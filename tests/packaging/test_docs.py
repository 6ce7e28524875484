"""What the pages on installing and releasing name must be there."""

from __future__ import annotations

import re

import pytest

from jobd.cli.main import cli
from tests.support.daemon import TOP

PAGES = [TOP / "docs" / "install.md", TOP / "docs" / "releases.md", TOP / "packaging" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_script_leads_somewhere(page: object) -> None:
    path = next(found for found in PAGES if found == page)
    text = path.read_text("utf-8")

    links = [target.partition("#") for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    scripts = re.findall(r"(?:tests/)?packaging/\w+\.py", text)

    assert links and scripts
    for target, _, heading in links:
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE) if heading else []
        assert not heading or heading in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
    assert [script for script in scripts if not (TOP / script).exists()] == []


def test_commands_that_the_page_names_exist() -> None:
    text = PAGES[0].read_text("utf-8")

    named = set(re.findall(r"\bjobd (?:token create|([a-z][a-z-]+))(?=[ `\n])", text)) - {"", "elsewhere"}

    commands = {name for name in named if name in cli.commands}
    assert {"serve", "doctor", "backup", "restore", "upgrade-check"} <= commands

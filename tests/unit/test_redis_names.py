"""Names in Redis are spelled once, in jobd/stream/keys.py: scripts and statements have no others."""

from __future__ import annotations

import re
from importlib.resources import files

from jobd.stream import keys
from jobd.stream.scripts import script

SCRIPTS = ("prelude", "trim", "project", "withdraw", "fence", "foreign", "forget_consumers", "copy_keys")


def code_of(name: str) -> str:
    text = files("jobd.stream").joinpath(f"{name}.lua").read_text("utf-8")
    return re.sub(r"--.*", "", text)


def test_no_script_spells_a_name_of_its_own() -> None:
    found = {name: re.findall(r"'(?:job:|jobs:|jobd[:-]|workers'|:events')[^']*", code_of(name)) for name in SCRIPTS}

    assert found == {name: [] for name in SCRIPTS}


def test_every_script_is_in_the_list() -> None:
    assert {f"{name}.lua" for name in SCRIPTS} == {
        entry.name for entry in files("jobd.stream").iterdir() if entry.name.endswith(".lua")
    }


def test_a_script_begins_with_the_names() -> None:
    assert script("withdraw").startswith(f"local GROUP = '{keys.GROUP}'\nlocal OWN_PREFIX = '{keys.CONSUMER_PREFIX}'\n")


def test_claims_know_raw_workers_by_the_prefix_of_their_owners() -> None:
    text = files("jobd.lifecycle").joinpath("claim.sql").read_text("utf-8")

    assert set(re.findall(r"starts_with\(\w+, '([^']*)'\)", text)) == {keys.RAW_OWNER_PREFIX}

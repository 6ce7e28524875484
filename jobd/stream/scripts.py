"""The Lua scripts, each sent with the names of keys.py and with prelude.lua before it: no script spells a name."""

from __future__ import annotations

from importlib.resources import files

from jobd.stream.keys import ASIDE_PREFIX, CONSUMER_PREFIX, EVENTS_SUFFIX, GROUP, JOB_PREFIX

_NAMES = {
    "GROUP": GROUP,
    "OWN_PREFIX": CONSUMER_PREFIX,
    "JOB": JOB_PREFIX,
    "EVENTS_SUFFIX": EVENTS_SUFFIX,
    "ASIDE": ASIDE_PREFIX,
}


def script(*names: str) -> str:
    """The text of these scripts as one, in this order."""
    folder = files("jobd.stream")
    constants = "".join(f"local {name} = '{text}'\n" for name, text in _NAMES.items())
    return constants + "".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in ("prelude", *names))

"""Loading a configuration in tests: what a text gives, or the error that it is refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.config.load import load
from jobd.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from jobd.config.model import Config


def config_of(
    path: Path, text: str, env: dict[str, str] | None = None, flags: dict[str, object] | None = None
) -> Config:
    path.write_text(text)
    return load(path, env or {}, flags or {}).config


def error_of(path: Path | None, env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> str:
    """The error without the path that it begins with in the case of a file."""
    with pytest.raises(ConfigError) as caught:
        load(path, env or {}, flags or {}, search=())
    message = str(caught.value)
    assert message.isprintable(), "not one plain line"
    return message.removeprefix(f"{path}: ")


def file_error(path: Path, text: str) -> str:
    path.write_text(text)
    message = error_of(path)
    assert not message.startswith(str(path))
    return message

"""Written by the build, see bundle.py: version, target, glibc, key, and trees: per Python its files and bytes."""

from typing import Any

ABOUT: dict[str, Any]

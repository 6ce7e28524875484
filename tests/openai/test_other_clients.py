"""Clients that others wrote, unchanged, in environments of their own; `packaging/openai_clients.py` makes those."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.openai.conftest import MODEL
from tests.openai.test_openai_python import HELLO, TOOLS

if TYPE_CHECKING:
    from tests.support.daemon import Jobd
    from tests.tasks.openai_server import OpenAIServer

pytestmark = pytest.mark.slow

#: Where the environments are. Taken at import, since a fixture clears all variables of jobd.
FOLDER = os.environ.get("JOBD_TEST_OPENAI_CLIENTS", "")
CLIENTS = Path(__file__).parent / "clients"
#: Seconds that a client may take; langchain imports for a while on a busy machine.
PATIENCE_S = 240.0

SAID = {"chat": HELLO, "stream": HELLO}
CALLED = {"tools": [["weather", {"city": "Bonn"}], ["clock", {"at": 3}]]}
VECTORS = {"embeddings": [3, 3]}


@pytest.mark.skipif(not FOLDER, reason="JOBD_TEST_OPENAI_CLIENTS names no folder made by packaging/openai_clients.py")
@pytest.mark.parametrize(
    ("environment", "program", "expected"),
    [
        ("peers", "langchain_client.py", {**SAID, **CALLED, **VECTORS}),
        ("peers", "llama_index_client.py", SAID),
        ("peers", "litellm_client.py", {**SAID, **VECTORS}),
        ("openai2", "openai2_client.py", {**SAID, **CALLED, **VECTORS, "major": 2, "models": True}),
        ("node", "node_client.mjs", {**SAID, **CALLED, **VECTORS, "models": True}),
    ],
)
def test_client_works_unchanged(
    face: Jobd, model_server: OpenAIServer, tmp_path: Path, environment: str, program: str, expected: dict[str, Any]
) -> None:
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BASE_URL": f"http://{face.address}/v1",
        "MODEL": MODEL,
        "TOOL_CHUNKS": json.dumps(TOOLS),
    }
    if environment == "node":  # modules are looked for beside the program
        script = Path(FOLDER) / program
        shutil.copy(CLIENTS / program, script)
        command = ["node", str(script)]
    else:
        command = [str(Path(FOLDER) / environment / "bin" / "python"), str(CLIENTS / program)]

    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)

    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == expected

"""Make environments with other clients of OpenAI's interface, for the slow tests in tests/openai/test_other_clients.py.

    python packaging/openai_clients.py FOLDER
    JOBD_TEST_OPENAI_CLIENTS=FOLDER python -m pytest -m slow tests/openai/test_other_clients.py

It installs packages: some 300 MB below FOLDER, and nothing elsewhere.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

#: Name of each environment and what is installed in it, in its newest version.
PYTHON_CLIENTS = {
    "peers": ("langchain-openai", "llama-index-llms-openai-like", "litellm"),
    "openai2": ("openai<3",),
}
NODE_CLIENT = "openai"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, packages in PYTHON_CLIENTS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    (folder / "package.json").write_text('{"private": true}\n')
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", NODE_CLIENT], cwd=folder, check=True)
    print(f"made {', '.join(PYTHON_CLIENTS)} and node_modules in {folder}")


if __name__ == "__main__":
    main()

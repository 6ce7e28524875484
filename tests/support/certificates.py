"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Only `openssl ca` can say from when to when, and it wants a place to write down what it signed.
CA = """
[ca]
default_ca = it
[it]
database = {folder}/index
rand_serial = yes
new_certs_dir = {folder}
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = IP:127.0.0.1,DNS:localhost
"""


def make_certificate(
    folder: Path, name: str = "server", in_force: tuple[str, str] = ("20200101000000Z", "20490101000000Z")
) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1 and localhost, and its key."""
    cert, key, request, config = (folder / f"{name}.{suffix}" for suffix in ("pem", "key", "csr", "conf"))
    config.write_text(CA.format(folder=folder))
    (folder / "index").write_text("")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
    _openssl("req", "-new", *new_key, "-out", str(request), "-subj", "/CN=localhost")
    signing = ("-selfsign", "-keyfile", str(key), "-startdate", in_force[0], "-enddate", in_force[1])
    _openssl("ca", "-batch", "-notext", "-config", str(config), *signing, "-in", str(request), "-out", str(cert))
    key.chmod(0o600)
    return cert, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)

"""Where the gateway listens: TLS that is proved before it is offered, a unix socket that nobody reaches too early."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import ssl
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from jobd.errors import AddressRefused, ConfigError
from jobd.http.listen import (
    OTHER_DESCRIPTORS,
    bind_unix_listener,
    checked_tls,
    close_unix_listener,
    connections_that_fit,
)
from tests.support.certificates import make_certificate
from tests.support.daemon import run_jobd
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

# -- the unix socket ------------------------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_socket_is_for_user_and_group_and_its_new_folder_too(folder: Path) -> None:
    path = folder / "run" / "jobd.sock"

    with bind_unix_listener(path):
        assert mode_of(path) == 0o660
        assert mode_of(path.parent) == 0o750
        assert os.listdir(path.parent) == ["jobd.sock"]


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_socket_has_its_mode_from_the_first_moment(folder: Path, umask: int) -> None:
    path = folder / "jobd.sock"
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(mode_of(path))
            except FileNotFoundError:
                continue

    watcher = threading.Thread(target=look)
    before = os.umask(umask)
    watcher.start()
    try:
        for _ in range(50):
            close_unix_listener(bind_unix_listener(path), path)
    finally:
        done.set()
        watcher.join()
        os.umask(before)

    assert seen <= {0o660}


def test_socket_of_a_dead_program_is_replaced(folder: Path) -> None:
    path = folder / "jobd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with bind_unix_listener(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_socket_that_somebody_listens_on_is_refused(folder: Path) -> None:
    path = folder / "jobd.sock"
    with bind_unix_listener(path):
        with pytest.raises(AddressRefused, match="another program listens there"):
            bind_unix_listener(path)

        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_file_that_is_no_socket_is_refused_and_kept(folder: Path) -> None:
    path = folder / "thesis"
    path.write_text("mine")

    with pytest.raises(AddressRefused, match="no socket"):
        bind_unix_listener(path)

    assert path.read_text() == "mine"


@pytest.mark.parametrize("path", ["x" * 120, "nul\0"])
def test_path_that_no_socket_can_have_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(AddressRefused, match=r"server\.socket"):
        bind_unix_listener(folder / path)

    assert os.listdir(folder) == []


def test_closing_takes_the_file_away_but_not_that_of_another(folder: Path) -> None:
    path = folder / "jobd.sock"
    first = bind_unix_listener(path)
    close_unix_listener(first, path)
    assert not path.exists()

    second = bind_unix_listener(path)
    path.unlink()
    with bind_unix_listener(path):
        close_unix_listener(second, path)
        assert path.exists()


def test_jobd_killed_before_starts_again_on_its_socket(jobd: Callable[..., Jobd], folder: Path) -> None:
    path = folder / "run" / "jobd.sock"
    jobd(JOBD_SERVER_SOCKET=str(path)).start().until_ready().kill()
    assert path.exists()

    daemon = jobd(JOBD_SERVER_SOCKET=str(path)).start().until_ready()

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert daemon.stop() == 0
    assert not path.exists()


# -- TLS ------------------------------------------------------------------------------------------------------------


def test_good_pair_is_taken(folder: Path) -> None:
    cert, key = make_certificate(folder)

    assert checked_tls(str(cert), str(key)) == (str(cert), str(key))
    assert checked_tls("", "") is None


def test_key_of_another_certificate_is_refused(folder: Path) -> None:
    cert, _ = make_certificate(folder)
    _, key = make_certificate(folder, "other")

    with pytest.raises(ConfigError, match="not that of the certificate"):
        checked_tls(str(cert), str(key))


EXPIRED = ("20200101000000Z", "20200102000000Z")
NOT_YET = ("20900101000000Z", "20910101000000Z")


@pytest.mark.parametrize(("dates", "expected"), [(EXPIRED, "expired"), (NOT_YET, "not yet valid")])
def test_certificate_out_of_its_time_is_taken_with_a_warning(
    folder: Path, dates: tuple[str, str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = make_certificate(folder, in_force=dates)

    assert checked_tls(str(cert), str(key)) == (str(cert), str(key))

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert expected in record.getMessage()
    assert str(cert) in record.getMessage()


def test_certificate_of_the_future_is_served_and_doctor_warns(jobd: Callable[..., Jobd], folder: Path) -> None:
    """As on a board that starts before its clock is set."""
    cert, key = make_certificate(folder, in_force=NOT_YET)
    files = {"JOBD_SERVER_TLS_CERT": str(cert), "JOBD_SERVER_TLS_KEY": str(key)}
    daemon = jobd(**files).start()
    wait_until((daemon.data_dir / "env.json").exists, daemon.log, 10)
    unchecked = ssl._create_unverified_context()

    def status() -> int:
        line = http.client.HTTPSConnection(daemon.addresses["JOBD_URL"][8:], timeout=5, context=unchecked)
        with contextlib.closing(line):
            line.request("GET", "/livez")
            return line.getresponse().status

    wait_until(lambda: status() == 200, daemon.log, 15)
    done = run_jobd("doctor", "--data-dir", str(daemon.data_dir), "--json", **files)
    (found,) = [finding for finding in json.loads(done.stdout)["checks"] if finding["check"] == "gateway"]
    assert found["verdict"] == "WARN"
    assert "not yet valid" in found["detail"]


def test_missing_and_meaningless_files_are_refused_by_name(folder: Path) -> None:
    cert, key = make_certificate(folder)
    noise = folder / "noise"
    noise.write_bytes(b"\xff" * 100)
    noise.chmod(0o600)

    with pytest.raises(ConfigError, match=r"tls_cert = .*none cannot be read: No such file"):
        checked_tls(str(folder / "none"), str(key))
    with pytest.raises(ConfigError, match=r"tls_key = .*none cannot be read: No such file"):
        checked_tls(str(cert), str(folder / "none"))
    with pytest.raises(ConfigError, match=r"tls_cert = .*noise"):
        checked_tls(str(noise), str(key))
    with pytest.raises(ConfigError, match=r"tls_key = .*noise"):
        checked_tls(str(cert), str(noise))


def test_key_that_everyone_can_read_is_refused(folder: Path) -> None:
    cert, key = make_certificate(folder)
    key.chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        checked_tls(str(cert), str(key))


def test_one_file_without_the_other_is_refused(folder: Path) -> None:
    done = run_jobd("serve", "--data-dir", str(folder / "data"), JOBD_SERVER_TLS_CERT="/etc/cert.pem")

    assert done.returncode == 78
    assert "server.tls_key is missing" in done.stderr
    assert not (folder / "data").exists()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_address_with_tls_speaks_nothing_else_and_no_old_version(jobd: Callable[..., Jobd], folder: Path) -> None:
    cert, key = make_certificate(folder)
    daemon = jobd(JOBD_SERVER_TLS_CERT=str(cert), JOBD_SERVER_TLS_KEY=str(key)).start()
    wait_until((daemon.data_dir / "env.json").exists, daemon.log, 10)
    url = daemon.addresses["JOBD_URL"]
    assert url.startswith("https://127.0.0.1:")
    address = url.removeprefix("https://")
    context = ssl.create_default_context(cafile=cert)

    def get(context: ssl.SSLContext | None) -> int:
        plain = http.client.HTTPConnection(address, timeout=5)
        line = plain if context is None else http.client.HTTPSConnection(address, timeout=5, context=context)
        try:
            line.request("GET", "/readyz")
            return line.getresponse().status
        finally:
            line.close()

    wait_until(lambda: get(context) == 200, daemon.log, 15)
    with pytest.raises((http.client.HTTPException, OSError)):
        get(None)
    old = ssl.create_default_context(cafile=cert)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        get(old)
    done = run_jobd(
        *("doctor", "--data-dir", str(daemon.data_dir)), JOBD_SERVER_TLS_CERT=str(cert), JOBD_SERVER_TLS_KEY=str(key)
    )
    assert f"{url} answers 200" in done.stdout, done.stdout


# -- descriptors ----------------------------------------------------------------------------------------------------


def test_limit_on_descriptors_is_raised_or_lowers_the_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))

        assert connections_that_fit(2000, 2) == 2000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4000 + OTHER_DESCRIPTORS
        assert connections_that_fit(10**7, 1) == resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OTHER_DESCRIPTORS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Where the gateway listens: an address, optionally with TLS, and optionally a unix socket.

Everything here is bound and checked before anything else is started, so that a refusal changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import resource
import socket
import ssl
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobd.errors import AddressRefused, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

#: Connections that the system queues before they are accepted.
BACKLOG = 1024
#: Longest path of a unix socket in bytes (`sun_path` without its NUL).
SOCKET_PATH_BYTES = 107
#: File descriptors for everything but counted connections: databases, child processes, files, and for each listener its
#: reserved connections and those that are being evicted (`jobd.http.accept`).
OTHER_DESCRIPTORS = 400
#: OpenSSL's codes for a certificate that is not valid yet, and for one that has expired.
OUT_OF_TIME = frozenset({9, 10})
#: OpenSSL's flag X509_V_FLAG_NO_CHECK_TIME, for which Python has no name.
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


class TlsFiles(NamedTuple):
    #: The certificate, with its chain.
    cert: str
    key: str


def bind_listener(host: str, port: int) -> socket.socket:
    """Bind before anything is started, so that a port in use changes nothing."""
    where = f"server.host = {host}, server.port = {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, ValueError) as error:  # ValueError: no host could be called that
        why = error.strerror if isinstance(error, socket.gaierror) else "no such name"
        raise AddressRefused(f"cannot listen on {where}: {why}; name an address of this machine") from error
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressRefused(f"cannot listen on {where}: {error.strerror}; name another with --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressRefused(
            f"cannot listen on {where}: {error.strerror}; name another with --host or --port"
        ) from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def listener_url(listener: socket.socket, tls: TlsFiles | None = None) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# -- the unix socket ------------------------------------------------------------------------------------------------


def bind_unix_listener(path: Path) -> socket.socket:
    """Listen on a unix socket with mode 0660.

    It is made in a private folder and moved to its place with its mode already set, so nobody can connect a moment too
    early. One that a dead jobd left behind is replaced, one that somebody listens on is not.
    """
    where = f"server.socket = {path}"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES or "\0" in str(path):
        raise AddressRefused(f"cannot listen on {where}: no socket can have that path; name a shorter one")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o750)
        with _alone_in(path.parent), tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as private:
            _check_place(path, where)
            return _bound(Path(private, "s"), path)
    except OSError as error:
        raise AddressRefused(f"cannot listen on {where}: {error.strerror or error}; name another path") from error


def close_unix_listener(listener: socket.socket, path: Path) -> None:
    """Close it and take its file away, if the file is still this one's."""
    listener.close()
    with contextlib.suppress(OSError), _alone_in(path.parent):
        if not _is_listened_on(path):
            path.unlink()


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder: two jobd that start at once check and replace the socket one after the other."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _check_place(path: Path, where: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressRefused(f"cannot listen on {where}: there is a file that is no socket; name another path")
    if _is_listened_on(path):
        raise AddressRefused(f"cannot listen on {where}: another program listens there; stop it or name another path")


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def _bound(private: Path, path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        umask = os.umask(0o117)  # 0660 from the first moment on
        try:
            listener.bind(str(private))
        finally:
            os.umask(umask)
        listener.listen(BACKLOG)
        private.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


# -- TLS ------------------------------------------------------------------------------------------------------------


def checked_tls(cert: str, key: str) -> TlsFiles | None:
    """The two files, proved to serve TLS now; None if none are configured."""
    if not cert:
        return None
    for option, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            mode = os.stat(path).st_mode
            Path(path).read_bytes()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"server.{option} = {path} cannot be read: {why}") from error
        if option == "tls_key" and mode & stat.S_IROTH:
            raise ConfigError(f"server.tls_key = {path} can be read by every user: chmod 600 it")
    _shake_hands(TlsFiles(cert, key))
    return TlsFiles(cert, key)


def _shake_hands(files: TlsFiles) -> None:
    """Do a TLS handshake with ourselves: it fails if key and certificate do not match or the dates are wrong.

    One that is not in force yet, or no more, is only warned of: a board that starts before its clock is set would
    otherwise never serve, and clients look at the dates themselves.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(files.cert, files.key, password=_no_password)
        trusting(files.cert)
    except ssl.SSLError as error:
        why = "the key is not that of the certificate" if "MISMATCH" in str(error) else f"not usable ({error.reason})"
        raise ConfigError(f"server.tls_cert = {files.cert}, server.tls_key = {files.key}: {why}") from error
    for is_timeless in (False, True):
        try:
            _converse(server, trusting(files.cert, is_timeless=is_timeless))
            return
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in OUT_OF_TIME:
                raise ConfigError(f"server.tls_cert = {files.cert}: {error.verify_message}; renew it") from error
            log.warning(
                "server.tls_cert = %s: %s; it is served all the same, and clients may refuse it: renew it, or set the"
                " clock of this machine",
                files.cert,
                error.verify_message,
            )
        except ssl.SSLError as error:
            raise ConfigError(f"server.tls_cert = {files.cert} does not serve TLS ({error.reason})") from error


def _converse(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for end in ends * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


def trusting(cert: str, *, is_timeless: bool = False) -> ssl.SSLContext:
    """For a client on this machine: it trusts this very certificate, whatever name it is for.

    `is_timeless`: and whether or not it is in force.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not have come with its root
    if is_timeless:
        context.verify_flags |= _NO_CHECK_TIME
    context.load_verify_locations(cert)
    return context


def _no_password() -> str:
    raise ConfigError("server.tls_key is encrypted; write it without a password (openssl pkey), readable by jobd only")


# -- descriptors ----------------------------------------------------------------------------------------------------


def connections_that_fit(wanted: int, listeners: int) -> int:
    """Raise the limit on descriptors as far as needed; how many connections each listener may then have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * listeners + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            fitting = max(10, (soft - OTHER_DESCRIPTORS) // listeners)
            log.warning(
                "limits.max_connections = %d needs %d file descriptors and %d are allowed (ulimit -n): %d it is",
                wanted,
                needed,
                hard,
                fitting,
            )
            return fitting
    return wanted

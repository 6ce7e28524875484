"""Where jobd is and who calls: from arguments, else from the variables JOBD_URL and JOBD_TOKEN."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from jobd.config.model import Server
from jobd.errors import ConfigError
from jobd.host.masking import masked_url

UNIX = "unix://"


class Target(NamedTuple):
    #: As it may be shown.
    base_url: str
    #: The unix socket to connect to instead of the host that the URL names.
    socket: str | None
    host: str
    port: int
    is_tls: bool
    #: What paths are put behind.
    prefix: str
    #: Host and port as the header `Host` has them.
    authority: str
    #: It is on this machine, so a proxy that the environment names is not for it.
    is_local: bool


def target_of(url: str | None) -> Target:
    """Raises ConfigError for what is no URL of a jobd."""
    url = url or os.environ.get("JOBD_URL") or f"http://{Server().host}:{Server().port}"
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ConfigError(f"url must name the socket by its whole path, as in unix:///run/jobd.sock (got {url})")
        return Target("http://localhost", path, "localhost", 80, False, "", "localhost", is_local=True)
    try:
        parsed = urlsplit(url)
        host = parsed.hostname or ""
        name = host if host.isascii() else host.encode("idna").decode()
        port = _port_in(parsed)
    except ValueError as error:
        raise ConfigError(f"url is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or port == 0 or not _is_whole(url, parsed):
        raise ConfigError(f"url must be like http://host:port, https://host or unix:///path (got {masked_url(url)})")
    if parsed.username is not None or parsed.password is not None:
        raise ConfigError(f"url must not hold a password: jobd takes a token (got {masked_url(url)})")
    is_tls = parsed.scheme == "https"
    shown = f"[{name}]" if ":" in name else name
    authority = shown if port is None else f"{shown}:{port}"
    port = port if port is not None else 443 if is_tls else 80
    return Target(url, None, name, port, is_tls, parsed.path.rstrip("/"), authority, _is_loopback(name))


def _is_whole(url: str, parsed: SplitResult) -> bool:
    is_printable = url.isprintable() and " " not in url
    return bool(parsed.hostname) and is_printable and not parsed.query and not parsed.fragment


def _port_in(parsed: SplitResult) -> int | None:
    """None: the usual one. 0: one that cannot be. Raises ValueError for what is no number."""
    digits = re.search(r":([^\]:]*)$", parsed.netloc.rpartition("@")[2])
    if digits is None or not digits[1]:
        return None
    if not digits[1].isdecimal():
        raise ValueError("its port is no number")
    return int(digits[1]) if int(digits[1]) < 1 << 16 else 0


def token_of(token: str | None) -> str | None:
    """Raises ConfigError, without showing it, for what cannot be a token."""
    token = token or os.environ.get("JOBD_TOKEN") or None
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError("token must be visible ASCII without spaces; is there a line break at its end?")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

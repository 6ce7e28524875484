"""Where jobd is and who calls: from arguments, else from the variables JOBD_URL and JOBD_TOKEN."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple

import httpx

from jobd.config.model import Server
from jobd.errors import ConfigError
from jobd.host.masking import masked_url

UNIX = "unix://"


class Target(NamedTuple):
    #: What paths are put behind.
    base_url: str
    #: The unix socket to connect to instead of the host that the URL names.
    socket: str | None
    #: It is on this machine, so a proxy that the environment names is not for it.
    is_local: bool


def target_of(url: str | None) -> Target:
    """Raises ConfigError for what is no URL of a jobd."""
    url = url or os.environ.get("JOBD_URL") or f"http://{Server().host}:{Server().port}"
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ConfigError(f"url must name the socket by its whole path, as in unix:///run/jobd.sock (got {url})")
        return Target("http://localhost", path, is_local=True)
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"url is no URL: {error}") from None
    is_whole = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 0) < 1 << 16
    if not is_whole or parsed.query or parsed.fragment:
        raise ConfigError(f"url must be like http://host:port, https://host or unix:///path (got {masked_url(url)})")
    if parsed.userinfo:
        raise ConfigError(f"url must not hold a password: jobd takes a token (got {masked_url(url)})")
    return Target(url, None, _is_loopback(parsed.host))


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

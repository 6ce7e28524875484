"""The address of the web page of a running jobd, with a one-time login code if that jobd asks for one."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from jobd.auth.sessions import create_login_code
from jobd.backup.offline import connected
from jobd.errors import ServerDown
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.http.listen import trusting
from jobd.wire.sessions import Identity

if TYPE_CHECKING:
    from jobd.config.model import Config

#: Seconds that jobd may take to say whether a login is needed.
ANSWER_S = 5.0


class PageLogin(NamedTuple):
    url: str
    #: Opens one session, as `local`; None: nobody needs to log in.
    code: str | None
    data_dir: Path


async def page_login(config: Config, actor: str) -> PageLogin:
    """Raises DataDirRefused if no jobd was ever there, and ServerDown if it does not run or does not answer."""
    data_dir = DataDir(Path(config.data_dir), server_account())
    url = data_dir.read_addresses().JOBD_URL
    if not data_dir.is_running():
        raise ServerDown(
            f"no jobd runs on {data_dir.path}; start it: jobd serve --data-dir {data_dir.path}, or name another with"
            " --data-dir or --url"
        )
    code = None
    if await anyio.to_thread.run_sync(_is_login_needed, url, config):
        async with connected(config) as connection:
            code = await create_login_code(connection, actor)
    return PageLogin(url, code, data_dir.path)


def _is_login_needed(url: str, config: Config) -> bool:
    try:
        tls = trusting(config.server.tls_cert) if url.startswith("https:") else None
        with urllib.request.urlopen(f"{url}/v1/session", timeout=ANSWER_S, context=tls) as answer:
            return msgspec.json.decode(answer.read(), type=Identity).login_needed
    except urllib.error.HTTPError as error:  # 503: it starts, and does not know its tokens yet
        raise ServerDown(f"jobd at {url} is not ready ({error.code}); try again, or see `jobd doctor`") from error
    except (OSError, msgspec.DecodeError) as error:
        raise ServerDown(f"jobd at {url} does not answer ({error}); see `jobd doctor`") from error

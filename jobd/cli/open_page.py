"""`jobd open`: the address of the web page, with a one-time login where one is needed.

The code stands in the fragment of the address, which browsers send to nobody. A browser that is started gets it from a
private file that sends it on to the address: others could read the arguments of its process.
"""

from __future__ import annotations

import html
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from jobd.auth.sessions import CODE_LIFE_S
from jobd.cli.options import actor, config_options, json_option, load_quietly, print_note
from jobd.cli.running import run_async
from jobd.client.target import UNIX, target_of
from jobd.errors import ConfigError, JobdError
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.host.files import write_whole
from jobd.serve.page_login import page_login

if TYPE_CHECKING:
    from collections.abc import Mapping

#: In the data directory: sends a browser on to the address. Its code is of no use once it was used, or is too old.
REDIRECT = "open.html"
#: Names of variables of which a desktop sets one.
DISPLAYS = ("WAYLAND_DISPLAY", "DISPLAY")
PAGE = '<!doctype html><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={url}">'


class OpenedPage(msgspec.Struct, frozen=True, kw_only=True):
    #: The page; with a login code in its fragment if there is one.
    url: str
    #: For how many seconds the code can be used, once; None: there is no code.
    code_life_s: int | None
    #: Whether a browser was started.
    has_browser: bool


@click.command("open")
@config_options
@click.option("--url", metavar="URL", help="A jobd elsewhere; its page asks for a token (default: JOBD_URL).")
@click.option("--no-browser", is_flag=True, help="Only print the address, also on a desktop.")
@json_option
def open_page(file: str | None, data_dir: str | None, url: str | None, no_browser: bool, as_json: bool) -> None:
    """Open the web page of a running jobd, or print its address where there is no desktop.

    If calls need a token, the address has a code that logs a browser in as `local`, who may do everything: once, within
    a minute. To make one takes the data directory, so do this as the user that jobd runs as.

    \b
    Examples:
      jobd open
      jobd open --no-browser --data-dir ./data
      sudo -u jobd jobd open            for the Debian package
      ssh -L 7433:127.0.0.1:7433 board  then, on the board: jobd open --no-browser
    """
    remote = remote_url(url, file, data_dir)
    if remote is not None:
        show(f"{remote}/", None, no_browser=no_browser, as_json=as_json)
        print_note(
            "if the page asks for a token: `jobd token create --name ME --scope admin` on that machine makes one,"
            " and `jobd open` there an address that logs in by itself"
        )
        return
    page = run_async(page_login, load_quietly(file, data_dir).config, actor())
    show(f"{page.url}/", page.code, no_browser=no_browser, as_json=as_json, folder=page.data_dir)


def remote_url(url: str | None, file: str | None, data_dir: str | None) -> str | None:
    """The address that was named, unless it is that of the data directory here; raises ConfigError for no address."""
    if url is None and file is None and data_dir is None:
        url = os.environ.get("JOBD_URL")
        if url is not None and url.rstrip("/") == _local_url():
            return None
    if url is None:
        return None
    if url.startswith(UNIX):
        raise ConfigError(f"a browser cannot open {url}; name an http:// address with --url, or use --data-dir")
    return target_of(url).base_url.rstrip("/")


def _local_url() -> str | None:
    try:
        folder = DataDir(Path(load_quietly(None, None).config.data_dir), server_account())
        return folder.read_addresses().JOBD_URL
    except JobdError:
        return None


def show(page: str, code: str | None, *, no_browser: bool, as_json: bool, folder: Path | None = None) -> None:
    url = page if code is None else f"{page}#login={code}"
    browser = None if no_browser or as_json else browser_of(os.environ)
    target = url
    if browser is not None and code is not None:
        assert folder is not None  # a code is made by its database
        target = str(folder / REDIRECT)
        write_whole(Path(target), PAGE.format(url=html.escape(url)).encode())
    has_browser = browser is not None and _started(browser, target)
    if as_json:
        opened = OpenedPage(url=url, code_life_s=None if code is None else CODE_LIFE_S, has_browser=has_browser)
        click.echo(msgspec.json.encode(opened))
        return
    click.echo(url)
    if code is not None:
        print_note(f"whoever opens this first, within {CODE_LIFE_S} s, is logged in and may do everything")


def browser_of(variables: Mapping[str, str]) -> str | None:
    """The program that opens a page on this desktop. Root is given none: a browser should not run as root."""
    if os.geteuid() == 0 or not any(variables.get(name) for name in DISPLAYS):
        return None
    return shutil.which("xdg-open", path=variables.get("PATH"))


def _started(browser: str, target: str) -> bool:
    """Start it in a session of its own: it outlives this command, which does not wait for it."""
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        os.posix_spawn(browser, [browser, target], os.environ, file_actions=silent, setsid=True)
    except OSError as error:
        print_note(f"{browser} cannot be started ({error.strerror}); open the address yourself")
        return False
    return True

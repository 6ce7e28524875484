"""`/v1/session`: login and logout of the web page, and who the caller is.

A login answers with a cookie that scripts cannot read and that the browser sends from this origin's own pages only.
Each login makes a new secret, and ends the session whose cookie it came with. The routes are public, so that the page
can ask before anyone has logged in; bad tries are counted as those with a token are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.auth.sessions import COOKIE, LIFE_S, close_session, new_secret, open_session, open_session_by_code, session_in
from jobd.http.body import header, read_json
from jobd.http.endpoint import Call, delete, get, json_answer, post
from jobd.http.request_checks import caller_of, peer_of
from jobd.wire import sessions as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.auth.doorkeeper import Principal
    from jobd.auth.sessions import SessionRow

#: Largest body in bytes: a token and its field.
BODY_BYTES = 4096


async def get_session(call: Call) -> Response:
    try:
        caller = await caller_of(call.request.scope, call.services.doorkeeper)
    except ApiError as error:
        if error.code != "unauthorized":
            raise
        caller = None
    return json_answer(_answer(call, caller))


async def open_session_with_cookie(call: Call) -> Response:
    asked = await read_json(call.request, wire.LogIn, BODY_BYTES)
    secret = new_secret()
    row = await _logged_in(call, asked, secret)
    await _close_session(call)
    sessions = call.services.doorkeeper.sessions
    sessions.add(row)
    caller = call.services.doorkeeper.principal_of(row.sha256)
    return json_answer(_answer(call, caller), 200, {"Set-Cookie": _cookie(call, secret, LIFE_S)})


async def close_session_of_cookie(call: Call) -> Response:
    await _close_session(call)
    return json_answer(_answer(call, None), 200, {"Set-Cookie": _cookie(call, "", 0)})


async def _logged_in(call: Call, asked: wire.LogIn, secret: str) -> SessionRow:
    doorkeeper, database, peer = call.services.doorkeeper, call.services.database, peer_of(call.request.scope)
    if (asked.token is UNSET) == (asked.code is UNSET):
        raise ApiError("invalid", "send either token or code")
    if asked.token is not UNSET:
        holder = doorkeeper.holder_of(asked.token.encode(), peer)
        return await open_session(database, secret, holder.token_key, holder.name)
    doorkeeper.check_tries(peer)
    assert asked.code is not UNSET
    row = await open_session_by_code(database, secret, asked.code, "local")
    if row is None:
        raise doorkeeper.bad_try(peer, "this login code is unknown, was used or is too old; `jobd open` makes another")
    return row


async def _close_session(call: Call) -> None:
    """End the session that the request came with, if any."""
    cookies = header(call.request, b"cookie")
    digest = None if cookies is None else session_in(cookies)
    if digest is not None:
        call.services.doorkeeper.sessions.remove([digest])
        await close_session(call.services.database, digest)


def _answer(call: Call, caller: Principal | None) -> wire.Identity:
    doorkeeper = call.services.doorkeeper
    session = None if caller is None else doorkeeper.sessions.get(caller.session)
    return wire.Identity(
        name=None if caller is None else caller.name,
        scopes=[] if caller is None else sorted(caller.scopes),
        own_jobs=caller is not None and caller.own_jobs,
        expires_ts=None if session is None else session.expires_ts,
        login_needed=doorkeeper.needs_login(call.request.scope["state"].get("uid")),
    )


def _cookie(call: Call, secret: str, life_s: int) -> str:
    """`Secure` over TLS, which a proxy before jobd may have ended: then the page's origin shows it."""
    is_tls = call.request.scope["scheme"] == "https" or (header(call.request, b"origin") or b"").startswith(b"https:")
    secure = "; Secure" if is_tls else ""
    return f"{COOKIE}={secret}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"


SET_COOKIE = {"Set-Cookie": "The session, for a browser."}
REFUSALS = ("too_many_attempts", "unavailable")

ENDPOINTS = (
    get(
        "/v1/session",
        "public",
        get_session,
        "Who the caller is, and whether a login is needed",
        answers={200: wire.Identity},
        problems=REFUSALS,
    ),
    post(
        "/v1/session",
        "public",
        open_session_with_cookie,
        "Log in: a token or a code for a cookie",
        answers={200: wire.Identity},
        problems=(*REFUSALS, "unauthorized"),
        body=wire.LogIn,
        headers=SET_COOKIE,
    ),
    delete(
        "/v1/session",
        "public",
        close_session_of_cookie,
        "Log out",
        answers={200: wire.Identity},
        problems=("unavailable",),
        headers=SET_COOKIE,
    ),
)

"""Tokens: made once and shown once, known on every node within seconds, and worth nothing when they are not right."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobd.auth import doorkeeper as auth
from jobd.auth.doorkeeper import EVERYONE, LOCAL, PASSER_BY, Doorkeeper, Tries
from jobd.auth.table import TokenRow, create_token, revoke_tokens
from jobd.auth.token import id_in, new_token
from jobd.config.model import Auth, Config, Server, Token
from jobd.store.migrate import migrate
from jobd.store.postgres import connect
from jobd.wire.problems import ApiError
from tests.support.daemon import Jobd, run_jobd
from tests.support.http import Answer, Api
from tests.support.node import new_database
from tests.support.sse import Stream
from tests.support.wait import slowness, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobd.auth.token import NewToken
    from tests.support.sse import Sent

TICKET = {"title": "Count the cats", "task": "embed", "payload": {}, "created_by": "ann"}
FORM = re.compile(r"jobd_[0-9a-f]{8}_[A-Za-z0-9_-]{43}")
PATH = "/v1/queues"
#: A revoked token must be worth nothing anywhere after this.
REVOKED_S = 5.0


# -- the doorkeeper alone ---------------------------------------------------------------------------------------------


def row(token: NewToken, **changes: Any) -> TokenRow:
    fields: dict[str, Any] = {
        "id": token.id,
        "name": "ci",
        "sha256": token.sha256,
        "scopes": ["client"],
        "queues": None,
        "own_jobs": False,
        "created_at": None,
        "expires_at": None,
        "expires_in_s": None,
        "revoked_at": None,
    }
    return TokenRow(**{**fields, **changes})


def doorkeeper(*rows: TokenRow, config: Config | None = None, is_loopback: bool = True) -> Doorkeeper:
    config = config or Config()
    keeper = Doorkeeper(lambda: config, is_loopback=is_loopback)
    keeper.learn(rows)
    return keeper


def bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()


def code_of(keeper: Doorkeeper, authorization: bytes | None, uid: int | None = None, peer: str = "10.0.0.1") -> str:
    """How a caller is refused."""
    with pytest.raises(ApiError) as raised:
        keeper.admit(authorization, peer, uid)
    return raised.value.code


def test_without_any_token_everyone_here_is_let_in() -> None:
    assert doorkeeper().admit(None, "127.0.0.1", None) is EVERYONE
    assert doorkeeper().admit(b"Bearer stale", "127.0.0.1", None) is EVERYONE


def test_without_any_token_nobody_is_let_in_from_elsewhere() -> None:
    keeper = doorkeeper(is_loopback=False)

    assert code_of(keeper, None) == "unauthorized"
    assert keeper.admit(None, "unix", 12345) is EVERYONE


def test_insecure_lets_everyone_in_from_anywhere() -> None:
    keeper = doorkeeper(config=Config(server=Server(insecure=True)), is_loopback=False)

    assert keeper.admit(None, "10.0.0.1", None) is EVERYONE


def test_insecure_counts_for_nothing_once_there_is_a_token() -> None:
    keeper = doorkeeper(row(new_token()), config=Config(server=Server(insecure=True)), is_loopback=False)

    assert code_of(keeper, None) == "unauthorized"


def test_until_the_table_is_known_nobody_is_let_in() -> None:
    keeper = Doorkeeper(Config, is_loopback=True)

    assert code_of(keeper, None) == "unavailable"
    assert code_of(keeper, bearer(new_token().text)) == "unavailable"


def test_token_of_the_configuration_counts_before_the_table_is_known() -> None:
    token = new_token()
    configured = Token(name="ops", sha256=token.sha256.hex(), scopes=("admin",))
    keeper = Doorkeeper(lambda: config, is_loopback=True)
    config = Config(auth=Auth(tokens=(configured,)))

    assert keeper.admit(bearer(token.text), "10.0.0.1", None).name == "ops"


def test_token_tells_its_holder_scopes_and_queues() -> None:
    token = new_token()
    keeper = doorkeeper(row(token, name="gpu-1", scopes=["worker"], queues=["gpu"]))

    principal = keeper.admit(bearer(token.text), "10.0.0.1", None)

    assert (principal.name, principal.scopes, principal.queues) == (
        "gpu-1",
        frozenset({"worker"}),
        frozenset({"gpu"}),
    )
    assert principal.may("worker")
    assert not principal.may("client")


def test_new_configuration_counts_at_once() -> None:
    old, new = new_token(), new_token()
    configs = [
        Config(auth=Auth(tokens=(Token(name="ci", sha256=token.sha256.hex(), scopes=("client",), queues=("a",)),)))
        for token in (old, new)
    ]
    keeper = Doorkeeper(lambda: configs[0], is_loopback=True)
    keeper.learn([])
    assert keeper.admit(bearer(old.text), "10.0.0.1", None).queues == frozenset({"a"})

    configs.pop(0)

    assert code_of(keeper, bearer(old.text)) == "unauthorized"
    assert keeper.admit(bearer(new.text), "10.0.0.1", None).name == "ci"


GOOD = new_token()
OTHER = new_token()


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic dTpw",
        GOOD.text.encode(),
        bearer(GOOD.text[:-1]),
        bearer(GOOD.text + "x"),
        bearer(GOOD.text.upper()),
        bearer(OTHER.text),
        bearer(f"jobd_{GOOD.id}_{OTHER.text[14:]}"),
        bearer(f"jobd_{OTHER.id}_{GOOD.text[14:]}"),
        bearer(GOOD.sha256.hex()),
        b"Bearer \xff\xfe",
        b"Bearer jobd_\xff\xff\xff\xff\xff\xff\xff\xff_x",
        b"Bearer " + b"x" * 10_000,
    ],
    ids=range(16),
)
def test_anything_but_the_token_is_refused(authorization: bytes | None) -> None:
    assert code_of(doorkeeper(row(GOOD)), authorization) == "unauthorized"


def test_expired_and_revoked_tokens_are_refused_and_open_no_door() -> None:
    expired = doorkeeper(row(GOOD, expires_in_s=-0.1))
    revoked = doorkeeper(row(GOOD, revoked_at="now"))

    for keeper in (expired, revoked):
        assert code_of(keeper, bearer(GOOD.text)) == "unauthorized"
        assert code_of(keeper, None) == "unauthorized"


def test_one_who_stays_is_admitted_for_as_long_as_the_token_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = doorkeeper(row(GOOD, expires_in_s=60.0))
    admitted = keeper.admit(bearer(GOOD.text), "10.0.0.1", None)
    keeper.learn([row(OTHER), row(GOOD, expires_in_s=50.0)])
    assert keeper.still_admits(admitted)

    keeper.learn([row(GOOD, expires_in_s=-0.1)])
    assert not keeper.still_admits(admitted)
    keeper.learn([row(GOOD, revoked_at="now")])
    assert not keeper.still_admits(admitted)
    keeper.learn([row(GOOD, scopes=["worker"])])
    assert not keeper.still_admits(admitted)


def test_one_who_stays_with_a_token_of_the_configuration_goes_with_it() -> None:
    configured = Token(name="ops", sha256=GOOD.sha256.hex(), scopes=("client", "admin"))
    configs = [Config(auth=Auth(tokens=tokens)) for tokens in ((configured,), ())]
    keeper = Doorkeeper(lambda: configs[0], is_loopback=True)
    admitted = keeper.admit(bearer(GOOD.text), "10.0.0.1", None)
    assert keeper.still_admits(admitted)

    configs.pop(0)

    assert not keeper.still_admits(admitted)


def test_one_who_stays_without_a_token_goes_when_there_is_one_unless_none_is_needed() -> None:
    keeper = doorkeeper()
    assert keeper.still_admits(EVERYONE)

    keeper.learn([row(GOOD)])

    assert not keeper.still_admits(EVERYONE)
    assert keeper.still_admits(LOCAL)
    assert keeper.still_admits(PASSER_BY)


def test_scheme_is_read_in_any_case() -> None:
    assert doorkeeper(row(GOOD)).admit(b"bearer " + GOOD.text.encode(), "10.0.0.1", None).name == "ci"


def test_own_user_and_root_need_no_token_on_the_unix_socket_and_others_do() -> None:
    keeper = doorkeeper(row(GOOD))

    assert keeper.admit(None, "unix", 0) is LOCAL
    assert keeper.admit(None, "unix", os.geteuid()) is LOCAL
    assert code_of(keeper, None, uid=12345) == "unauthorized"
    assert code_of(keeper, b"Bearer wrong", uid=0) == "unauthorized"


def test_bad_tokens_of_one_address_are_held_back_and_nobody_else() -> None:
    keeper = doorkeeper(row(GOOD))

    codes = [code_of(keeper, b"Bearer guess") for _ in range(auth.MAX_TRIES + 5)]

    assert codes == ["unauthorized"] * auth.MAX_TRIES + ["too_many_attempts"] * 5
    assert keeper.admit(bearer(GOOD.text), "10.0.0.1", None).name == "ci"
    assert code_of(keeper, b"Bearer guess", peer="10.0.0.2") == "unauthorized"
    assert code_of(keeper, None) == "unauthorized"


def test_tries_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries()
    for _ in range(auth.MAX_TRIES):
        assert not tries.are_too_many("10.0.0.1")
    assert tries.are_too_many("10.0.0.1")

    monkeypatch.setattr(auth, "TRIES_S", 0.0)

    assert not tries.are_too_many("10.0.0.1")


def test_table_of_tries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_PEERS", 100)
    tries = Tries()

    for number in range(1000):
        tries.are_too_many(f"10.0.{number // 256}.{number % 256}")

    assert len(tries._by_peer) == 100


def test_tokens_have_256_random_bits_and_are_never_alike() -> None:
    tokens = [new_token() for _ in range(1000)]

    assert all(FORM.fullmatch(token.text) for token in tokens)
    assert len({token.text for token in tokens}) == 1000
    assert all(token.sha256 == hashlib.sha256(token.text.encode()).digest() for token in tokens)
    assert all(id_in(token.text.encode()) == token.id for token in tokens)


# -- a running jobd ---------------------------------------------------------------------------------------------------


def token(daemon: Jobd, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_jobd("token", *arguments, "--data-dir", str(daemon.data_dir))


def create(daemon: Jobd, name: str, *arguments: str, scope: str = "client") -> str:
    done = token(daemon, "create", "--name", name, "--scope", scope, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call(daemon: Jobd, text: str | None = None, path: str = PATH) -> Answer:
    return Api(daemon.address, {} if text is None else {"Authorization": f"Bearer {text}"})("GET", path)


def until_good(daemon: Jobd, text: str) -> None:
    wait_until(lambda: call(daemon, text).status == 200, daemon.log, REVOKED_S)


def until_refused(daemon: Jobd, text: str | None = None) -> None:
    """429 when it was tried too often."""
    wait_until(lambda: call(daemon, text).status in (401, 429), daemon.log, REVOKED_S)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Jobd]:
    """A jobd that has a token, so that everyone needs one."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data", JOBD_SERVER_SOCKET=str(folder / "s" / "jobd.sock"))
    try:
        create(daemon.start().until_ready(), "first")
        until_refused(daemon)
        yield daemon
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


async def fetch(daemon: Jobd, query: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
    try:
        return [tuple(found) for found in await connection.fetch(query)]
    finally:
        await connection.close()


def rows(daemon: Jobd, query: str) -> list[tuple[Any, ...]]:
    return asyncio.run(fetch(daemon, query))


def test_token_is_printed_once_and_kept_as_a_hash(guarded: Jobd) -> None:
    text = create(guarded, "shown-once", "--expires-days", "1.5")

    assert FORM.fullmatch(text)
    (kept,) = rows(guarded, "SELECT * FROM jobd.tokens WHERE name = 'shown-once'")
    assert hashlib.sha256(text.encode()).digest() in kept
    assert text[14:] not in str(kept)
    assert text not in token(guarded, "list").stdout
    until_good(guarded, text)


def test_without_a_token_only_health_answers(guarded: Jobd) -> None:
    assert call(guarded, path="/livez").status == 200
    assert call(guarded, path="/readyz").status == 200
    for path in (PATH, "/v1/jobs", "/nowhere"):
        answer = call(guarded, path=path)
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_revoked_token_is_worth_nothing_within_seconds(guarded: Jobd) -> None:
    text = create(guarded, "short-lived")
    until_good(guarded, text)

    done = token(guarded, "revoke", "short-lived", "--json")

    assert json.loads(done.stdout)["ids"] == [text[5:13]]
    until_refused(guarded, text)


def test_two_tokens_of_one_name_are_revoked_one_by_one_or_together(guarded: Jobd) -> None:
    old, new = create(guarded, "rotated"), create(guarded, "rotated")
    until_good(guarded, new)
    assert call(guarded, old).status == 200

    assert token(guarded, "revoke", old[5:13]).returncode == 0

    until_refused(guarded, old)
    assert call(guarded, new).status == 200


def test_list_says_what_each_token_is(guarded: Jobd) -> None:
    create(guarded, "listed", "--queue", "gpu", "--queue", "cpu", "--expires-days", "30", scope="worker")
    create(guarded, "gone")
    token(guarded, "revoke", "gone")

    found = {entry["name"]: entry for entry in json.loads(token(guarded, "list", "--json").stdout)}

    assert (found["listed"]["state"], found["gone"]["state"]) == ("active", "revoked")
    assert (found["listed"]["scopes"], found["listed"]["queues"]) == (["worker"], ["gpu", "cpu"])
    assert "listed" in token(guarded, "list").stdout


def test_expired_token_is_refused(guarded: Jobd) -> None:
    text = create(guarded, "brief", "--expires-days", str(2.5 * slowness() / 86400))
    until_good(guarded, text)

    until_refused(guarded, text)

    assert "expired" in next(line for line in token(guarded, "list").stdout.splitlines() if "brief" in line)


def test_what_waits_or_listens_ends_with_its_token_and_nothing_else_does(guarded: Jobd) -> None:
    kept, revoked = (create(guarded, name, scope="admin") for name in ("kept", "to-revoke"))
    until_good(guarded, revoked)
    api = Api(guarded.address, {"Authorization": f"Bearer {kept}"})
    later = {"task": "chat", "payload": {}, "delay_s": 600}
    job = f"/v1/jobs/{api('POST', '/v1/jobs', later).json['job_id']}"
    ticket = f"/v1/tickets/{api('POST', '/v1/tickets', TICKET).json['ticket_id']}"
    claim = {"worker_id": "w", "streams": ["jobs:stream"], "max_wait_ms": 60_000}
    expiring = create(guarded, "to-expire", "--expires-days", str(8 / 86400), scope="admin")
    until_good(guarded, expiring)
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:

        def listen(text: str) -> list[Stream]:
            headers, paths = {"Authorization": f"Bearer {text}"}, (f"{job}/events", "/v1/events", f"{ticket}/events")
            return [stack.enter_context(Stream(guarded.address, path, headers, 60.0)) for path in paths]

        def wait(text: str) -> list[Future[Answer]]:
            impostor = Api(guarded.address, {"Authorization": f"Bearer {text}"})
            return [
                threads.submit(impostor, "GET", f"{job}?wait_s=14"),
                threads.submit(impostor, "POST", "/internal/worker/claim", claim),
            ]

        streams, others = [*listen(expiring), *listen(revoked)], listen(kept)
        waits = [*wait(expiring), *wait(revoked)]
        assert token(guarded, "revoke", "to-revoke").returncode == 0

        for stream in streams:
            end_of(stream)
        assert [(wait.result().status, wait.result().code) for wait in waits] == [(401, "unauthorized")] * 4
        assert api("POST", f"{job}/cancel").status == 200
        for stream in others[:2]:
            assert "canceled" in [event.type for event in read_until(stream, "canceled")]


def end_of(stream: Stream) -> None:
    with contextlib.suppress(http.client.IncompleteRead):
        for _ in stream:
            pass


def read_until(stream: Stream, kind: str) -> Iterator[Sent]:
    for event in stream:
        yield event
        if event.type == kind:
            return


def test_every_change_of_tokens_is_in_the_audit_table_with_its_actor(guarded: Jobd) -> None:
    text = create(guarded, "audited", scope="admin")
    token(guarded, "revoke", "audited")

    found = rows(guarded, "SELECT actor, action, subject FROM jobd.audit WHERE subject LIKE 'audited%' ORDER BY id")

    assert [(action, subject) for _, action, subject in found] == [
        ("token.create", f"audited {text[5:13]} admin"),
        ("token.revoke", f"audited {text[5:13]}"),
    ]
    assert all(actor.startswith("cli:") for actor, _, _ in found)


@pytest.mark.parametrize("change", ["DELETE FROM jobd.audit", "UPDATE jobd.audit SET actor = 'nobody'"])
def test_audit_table_cannot_be_changed(guarded: Jobd, change: str) -> None:
    with pytest.raises(asyncpg.RaiseError, match="neither changed nor deleted"):
        rows(guarded, change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "a b", "--scope", "client"], "1 to 64 letters"),
        (["--name", "anonymous", "--scope", "client"], "anonymous"),
        (["--name", "x" * 65, "--scope", "client"], "1 to 64 letters"),
        (["--name", "x", "--scope", "root"], "client"),
        (["--name", "x"], "--scope"),
        (["--scope", "client"], "--name"),
        (["--name", "x", "--scope", "client", "--queue", "q"], "--scope worker"),
        (["--name", "x", "--scope", "worker", "--queue", "No Name"], "a-z 0-9"),
        (["--name", "x", "--scope", "client", "--scope", "worker", "--own-jobs"], "--own-jobs is for --scope client"),
        (["--name", "x", "--scope", "admin", "--own-jobs"], "--own-jobs is for --scope client"),
        (["--name", "x", "--scope", "client", "--expires-days", "0"], "expires-days"),
        (["--name", "x", "--scope", "client", "--expires-days", "nan"], "expires-days"),
    ],
)
def test_wrong_token_is_not_made(guarded: Jobd, arguments: list[str], message: str) -> None:
    before = rows(guarded, "SELECT count(*) FROM jobd.tokens")

    done = token(guarded, "create", *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert rows(guarded, "SELECT count(*) FROM jobd.tokens") == before


def test_token_with_own_jobs_sees_no_others(guarded: Jobd) -> None:
    first, own = create(guarded, "sender"), create(guarded, "ann", "--own-jobs")
    until_good(guarded, first)
    until_good(guarded, own)
    senders = [Api(guarded.address, {"Authorization": f"Bearer {text}"}) for text in (first, own)]
    made = [api("POST", "/v1/jobs", {"task": "embed", "payload": {}}).json["job_id"] for api in senders]

    statuses = [[api("GET", f"/v1/jobs/{job_id}").status for job_id in made] for api in senders]

    assert statuses == [[200, 200], [404, 200]]
    assert "client own jobs only" in token(guarded, "list").stdout
    assert any("ann" in line and "own_jobs" in line for (line,) in rows(guarded, "SELECT subject FROM jobd.audit"))


def test_revoking_what_is_not_there_says_so(guarded: Jobd) -> None:
    done = token(guarded, "revoke", "nobody")

    assert done.returncode == 1
    assert "nobody" in done.stderr


def test_looking_for_tokens_makes_no_database(folder: Path) -> None:
    for arguments in (["list"], ["revoke", "x"]):
        done = run_jobd("token", *arguments, "--data-dir", str(folder / "none"))

        assert done.returncode == 73
        assert str(folder / "none") in done.stderr
    assert not (folder / "none").exists()


def test_own_user_calls_over_the_unix_socket_without_a_token(guarded: Jobd) -> None:
    assert over_the_socket(guarded, os.geteuid()) == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_user_needs_a_token_on_the_unix_socket_too(guarded: Jobd) -> None:
    path = socket_of(guarded)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    try:
        assert over_the_socket(guarded, 12345) == 401
    finally:
        path.chmod(0o660)


def socket_of(daemon: Jobd) -> Path:
    return daemon.data_dir.parent / "s" / "jobd.sock"


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    line.sendall(b"GET /v1/queues HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(line.recv(100).split()[1].decode())
"""


def over_the_socket(daemon: Jobd, uid: int) -> int:
    """The status that this user gets."""
    argv = [sys.executable, "-I", "-S", "-c", ASK, str(socket_of(daemon))]
    found = shutil.which("python3", path="/usr/bin:/bin")
    if uid != os.geteuid():
        assert found, "another user may not be able to run this python"
        argv[0] = found
    done = subprocess.run(argv, capture_output=True, text=True, check=True, user=uid, cwd="/")
    return int(done.stdout)


def test_brute_force_is_held_back_and_the_holder_of_a_token_is_not(guarded: Jobd) -> None:
    text = create(guarded, "patient")
    until_good(guarded, text)

    answers = [call(guarded, new_token().text) for _ in range(auth.MAX_TRIES + 10)]

    assert (answers[-1].status, answers[-1].code) == (429, "too_many_attempts")
    assert answers[-1].headers["retry-after"] == "10"
    assert call(guarded, text).status == 200


# -- the start --------------------------------------------------------------------------------------------------------


def test_other_address_without_a_token_is_refused_and_says_what_to_do(folder: Path) -> None:
    done = run_jobd("serve", "--data-dir", str(folder / "data"), "--port", "0", "--host", "0.0.0.0")

    assert done.returncode == 71
    assert "0.0.0.0" in done.stderr
    assert "jobd token create" in done.stderr
    assert "127.0.0.1" in done.stderr
    assert "serves at" not in done.stdout


def test_first_token_can_be_made_before_the_first_start(jobd: Callable[..., Jobd], folder: Path) -> None:
    made = run_jobd("token", "create", "--name", "ops", "--scope", "admin", "--data-dir", str(folder / "data"))
    assert made.returncode == 0, made.stderr

    daemon = jobd(None, "--host", "0.0.0.0").start().until_ready()

    assert call(daemon).status == 401
    assert call(daemon, made.stdout.strip()).status == 200
    assert "unencrypted" in daemon.log()


def test_insecure_is_allowed_when_asked_for(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd(None, "--host", "0.0.0.0", JOBD_SERVER_INSECURE="true").start().until_ready()

    assert call(daemon).status == 200
    assert "everyone who can reach 0.0.0.0" in daemon.log()


def test_token_of_the_configuration_opens_another_address(jobd: Callable[..., Jobd]) -> None:
    text = new_token()
    tokens = json.dumps([{"name": "ops", "sha256": text.sha256.hex(), "scopes": ["client"]}])

    daemon = jobd(None, "--host", "0.0.0.0", JOBD_AUTH_TOKENS=tokens).start().until_ready()

    assert call(daemon).status == 401
    assert call(daemon, text.text).status == 200


async def test_two_nodes_learn_of_a_revoked_token_within_seconds(shared_postgres: str, folder: Path) -> None:
    url = await new_database(shared_postgres)
    connection = await connect(url)
    nodes = [Jobd(folder / name, JOBD_POSTGRES_URL=url).start() for name in ("a", "b")]
    try:
        await migrate(connection)
        made = new_token()
        await create_token(connection, "test", id=made.id, name="x", sha256=made.sha256, scopes=["client"])
        for node in nodes:
            node.until_ready()
            until_good(node, made.text)

        await revoke_tokens(connection, "test", "x")
        revoked_at = time.monotonic()
        for node in nodes:
            until_refused(node, made.text)

        assert time.monotonic() - revoked_at < REVOKED_S
    finally:
        await connection.close()
        for node in nodes:
            node.clean_up()

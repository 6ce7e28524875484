"""How the supervisor starts the tree, mends it and gives up; how it stops it is in test_supervisor_stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.errors import AddressRefused, DataDirRefused, GaveUp, ServerDown
from jobd.supervise.restart import RestartPolicy
from jobd.supervise.service import State
from tests.support.wait import wait_until_async
from tests.unit.helpers_services import Deaf, Scripted, running, spec, supervise

if TYPE_CHECKING:
    from jobd.supervise.service import Handle


class Returning:
    """Is ready, then ends without being asked to."""

    async def run(self, handle: Handle) -> None:
        handle.ready()


class RefusingInside:
    """Meets a wall in a task of its own, beside another error."""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal

    async def run(self, handle: Handle) -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(self._fail, ValueError("beside it"))
            inner.start_soon(self._fail, self._refusal)

    async def _fail(self, error: Exception) -> None:
        raise error


async def test_services_start_in_order_of_need() -> None:
    diary: list[str] = []
    server, link, edge = (Scripted(name, diary) for name in ("server", "link", "edge"))
    supervisor = supervise([spec(edge, "edge", "link", "server"), spec(link, "link", "server"), spec(server)])

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)

        assert diary == [f"{name} {step}" for name in ("server", "link", "edge") for step in ("starts", "is ready")]


async def test_independent_services_do_not_wait_for_each_other() -> None:
    slow, quick = Scripted("slow", held=True), Scripted("quick")
    supervisor = supervise([spec(slow), spec(quick)])

    async with running(supervisor):
        await wait_until_async(lambda: supervisor.states()["quick"] is State.READY)

        assert supervisor.states()["slow"] is State.STARTING


async def test_supervisor_is_ready_only_when_every_service_is() -> None:
    first, last = Scripted("first"), Scripted("last", held=True)
    supervisor = supervise([spec(first), spec(last), spec(Scripted("behind"), "", "last")])

    async with running(supervisor):
        await wait_until_async(lambda: supervisor.states()["first"] is State.READY)
        before = supervisor.is_ready(), supervisor.states()
        last.let_be_ready()
        await wait_until_async(supervisor.is_ready)

    assert before == (False, {"first": State.READY, "last": State.STARTING, "behind": State.WAITING})


async def test_failed_service_is_started_again() -> None:
    service = Scripted("service")
    service.failing = [OSError("first"), ValueError("second")]
    supervisor = supervise([spec(service)])

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)

        assert service.starts == 3


async def test_service_starts_behind_what_it_needs_however_often_that_failed_before_it_was_ready() -> None:
    server, link = Scripted("server"), Scripted("link")
    server.failing = [OSError("not yet"), OSError("not yet")]
    supervisor = supervise([spec(server), spec(link, "link", "server")])

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)

        assert (server.starts, link.starts) == (3, 1)


async def test_what_needs_a_failed_service_is_started_again_behind_it_and_the_rest_is_left_alone() -> None:
    diary: list[str] = []
    server, link, edge, other = (Scripted(name, diary) for name in ("server", "link", "edge", "other"))
    supervisor = supervise([spec(server), spec(other), spec(link, "link", "server"), spec(edge, "edge", "link")])

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)
        diary.clear()
        server.crash(OSError("gone"))
        await wait_until_async(lambda: supervisor.is_ready() and edge.starts == 2)

    restart = [f"{name} {step}" for name in ("server", "link", "edge") for step in ("starts", "is ready")]
    assert [line for line in diary if "starts" in line or "ready" in line] == restart
    assert diary.index("edge is cut off") < diary.index("edge starts")
    assert other.starts == 1


async def test_being_ended_with_what_it_needs_is_not_a_failure_of_the_service() -> None:
    policy = RestartPolicy(base_s=0.0001, cap_s=0.001, give_up=4.0)
    server, link = Scripted("server"), Scripted("link")
    supervisor = supervise([spec(server), spec(link, "link", "server")], policy=policy)

    async with running(supervisor) as run:
        for service in (server, server, server, link, link, link):
            before = link.starts
            await wait_until_async(supervisor.is_ready)
            service.crash(OSError("gone"))
            await wait_until_async(lambda before=before: link.starts > before)  # type: ignore[misc]  # mypy knows no such default
        await wait_until_async(supervisor.is_ready)

        assert run.error is None


async def test_service_that_fails_while_it_is_ended_with_what_it_needs_is_not_to_blame() -> None:
    class Clumsy(Scripted):
        async def work(self, handle: Handle) -> None:
            try:
                await super().work(handle)
            finally:
                raise RuntimeError("cannot even end well")

    policy = RestartPolicy(base_s=0.0001, cap_s=0.001, give_up=3.0)
    server, clumsy = Scripted("server"), Clumsy("clumsy")
    supervisor = supervise([spec(server), spec(clumsy, "clumsy", "server")], policy=policy)

    async with running(supervisor) as run:
        for starts in (2, 3):
            await wait_until_async(supervisor.is_ready)
            server.crash(OSError("gone"))
            await wait_until_async(lambda starts=starts: clumsy.starts == starts)  # type: ignore[misc]  # as above
        await wait_until_async(supervisor.is_ready)

        assert run.error is None


async def test_service_that_returns_unasked_has_failed() -> None:
    supervisor = supervise([spec(Returning(), "short-lived")])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert isinstance(run.error, GaveUp)
    assert "short-lived keeps failing, last with: returned without being asked to" in str(run.error)


async def test_service_that_a_stray_cancellation_ends_has_failed_and_takes_nothing_with_it() -> None:
    struck, other = Scripted("struck"), Scripted("other")
    struck.failing = [asyncio.CancelledError()]
    supervisor = supervise([spec(struck), spec(other)])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)

        assert (struck.starts, other.starts) == (2, 1)
        assert not run.ended.is_set()


async def test_supervisor_gives_up_on_a_service_that_keeps_failing_and_says_which_and_why() -> None:
    broken, other = Scripted("broken"), Scripted("other")
    broken.failing = [ValueError(f"boom {number}") for number in range(100)]
    supervisor = supervise([spec(other), spec(broken)])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert isinstance(run.error, GaveUp)
    assert f"broken keeps failing, last with: boom {broken.starts - 1}" in str(run.error)
    assert other.diary[-1] == "other ends"


async def test_error_without_a_message_is_named_by_its_kind() -> None:
    broken = Scripted("broken")
    broken.failing = [TimeoutError() for _ in range(100)]
    supervisor = supervise([spec(broken)])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert "last with: TimeoutError" in str(run.error)


async def test_refusal_ends_the_run_at_once_and_comes_out_as_it_is() -> None:
    refusal = AddressRefused("port taken")
    service, other = Scripted("service"), Scripted("other")
    service.failing = [refusal]
    supervisor = supervise([spec(other), spec(service)])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert run.error is refusal
    assert service.starts == 1


async def test_refusal_inside_nested_task_groups_comes_out_as_it_is() -> None:
    refusal = DataDirRefused("not yours")
    supervisor = supervise([spec(RefusingInside(refusal))])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert run.error is refusal


async def test_first_refusal_is_the_one_that_comes_out() -> None:
    first, second = AddressRefused("first"), DataDirRefused("second")
    services = Scripted("one"), Scripted("two")
    for service, refusal in zip(services, (first, second), strict=True):
        service.failing = [refusal]
    supervisor = supervise([spec(service) for service in services])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert run.error is first


async def test_refusal_ends_the_run_although_something_still_waits_for_the_refused() -> None:
    refused, waiting = Scripted("refused"), Scripted("waiting")
    refused.failing = [AddressRefused("port taken")]
    supervisor = supervise([spec(refused), spec(waiting, "waiting", "refused")])

    async with running(supervisor) as run:
        await run.ended.wait()

    assert isinstance(run.error, AddressRefused)
    assert waiting.starts == 0


async def test_server_that_is_away_is_never_given_up() -> None:
    link = Scripted("link")
    link.failing = [ServerDown("no answer") for _ in range(50)]
    supervisor = supervise([spec(link)])

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)

        assert link.starts == 51


async def test_service_that_is_not_needed_is_never_given_up() -> None:
    spare, needed = Scripted("spare"), Scripted("needed")
    spare.failing = [ValueError("boom") for _ in range(50)]
    supervisor = supervise([spec(needed), spec(spare, needed=False)])

    async with running(supervisor):
        await wait_until_async(lambda: spare.starts == 51 and supervisor.states()["spare"] is State.READY)

        assert needed.starts == 1


async def test_first_start_waits_for_what_is_not_needed_as_long_as_that_may_succeed() -> None:
    needed, spare = Scripted("needed"), Scripted("spare", held=True)
    supervisor = supervise([spec(needed), spec(spare, needed=False)])

    async with running(supervisor):
        await wait_until_async(lambda: supervisor.states() == {"needed": State.READY, "spare": State.STARTING})
        before = supervisor.is_ready()
        spare.let_be_ready()
        await wait_until_async(supervisor.is_ready)

        assert not before
        assert not supervisor.is_degraded()


async def test_first_start_is_degraded_when_something_not_needed_cannot_start() -> None:
    needed, spare, behind = Scripted("needed"), Scripted("spare"), Scripted("behind")
    spare.failing = [OSError("cannot start")] * 100
    announced: list[str] = []
    supervisor = supervise(
        [spec(spare, needed=False), spec(behind, "behind", "spare", needed=False), spec(needed)],
        policy=RestartPolicy(free=0.0, base_s=60.0, cap_s=60.0),
        on_ready=lambda: announced.append("ready"),
    )

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)

        assert supervisor.is_degraded()
        assert announced == ["ready"]
        assert behind.starts == 0


async def test_refusal_of_what_is_not_needed_ends_a_start_and_not_what_runs() -> None:
    spare, needed = Scripted("spare"), Scripted("needed")
    supervisor = supervise([spec(needed), spec(spare, needed=False)])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        spare.failing = [DataDirRefused("not now")] * 20
        spare.crash(OSError("gone"))
        await wait_until_async(lambda: spare.starts == 22 and supervisor.states()["spare"] is State.READY)

        assert run.error is None


async def test_ready_service_that_stopped_beating_is_stuck_until_it_beats() -> None:
    hung, alive = Deaf("hung"), Scripted("alive")
    supervisor = supervise([spec(hung, stall_s=0.05), spec(alive)])

    async with running(supervisor):
        await wait_until_async(lambda: supervisor.stuck() == ["hung"])
        assert hung.handle is not None
        hung.handle.beat()

        assert supervisor.stuck() == []


async def test_service_that_is_still_starting_is_not_stuck() -> None:
    starting, ready = Scripted("starting", held=True), Deaf("ready")
    supervisor = supervise([spec(starting, stall_s=0.0), spec(ready, stall_s=0.0)])

    async with running(supervisor):
        await wait_until_async(lambda: supervisor.stuck() == ["ready"])

        assert supervisor.states()["starting"] is State.STARTING


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"a": ("missing",)}, "unknown"),
        ({"a": ("a",)}, "need each other"),
        ({"a": ("b",), "b": ("c",), "c": ("a",), "d": ()}, "need each other"),
    ],
)
def test_tree_that_cannot_start_is_refused(needs: dict[str, tuple[str, ...]], complaint: str) -> None:
    tree = [spec(Scripted(name), name, *needed) for name, needed in needs.items()]

    with pytest.raises(ValueError, match=complaint):
        supervise(tree)


def test_two_services_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        supervise([spec(Scripted("twin")), spec(Scripted("twin"))])

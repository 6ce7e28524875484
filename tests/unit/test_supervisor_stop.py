"""How the supervisor takes the tree down: by phases, within its time, and at once when asked twice."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import anyio

from jobd.errors import AddressRefused
from jobd.supervise.restart import RestartPolicy
from jobd.supervise.service import Phase, State
from tests.support.wait import wait_until_async
from tests.unit.helpers_services import DEADLINE_S, Deaf, Scripted, running, spec, supervise

if TYPE_CHECKING:
    import pytest

    from jobd.supervise.service import Handle


class Finishing(Scripted):
    """Has something in hand when it is asked to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may_finish = anyio.Event()

    async def work(self, handle: Handle) -> None:
        await handle.stop.wait()
        await self.may_finish.wait()


class LeavingNote(Deaf):
    """Takes its time to clean up when cut off, and notes whether it was to hurry."""

    async def work(self, handle: Handle) -> None:
        try:
            await super().work(handle)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
                self.diary.append(f"{self.name} cleaned up, hurried: {handle.hurry}")


async def test_drain_stops_phase_by_phase_and_the_last_in_the_tree_first() -> None:
    diary: list[str] = []
    places = {
        "postgres": Phase.SERVERS,
        "valkey": Phase.SERVERS,
        "store": Phase.FLUSH,
        "gateway": Phase.EDGE,
        "slots": Phase.WORK,
        "reaper": Phase.WORK,
        "dispatcher": Phase.INTAKE,
    }
    supervisor = supervise([spec(Scripted(name, diary), phase=phase) for name, phase in places.items()])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        diary.clear()
        supervisor.stop()
        await run.ended.wait()

    order = ("dispatcher", "reaper", "slots", "gateway", "store", "valkey", "postgres")
    assert diary == [f"{name} ends" for name in order]
    assert run.error is None
    assert not supervisor.hurried


async def test_service_of_a_later_phase_goes_on_until_the_earlier_phase_has_ended() -> None:
    work, store = Finishing("work"), Scripted("store")
    supervisor = supervise([spec(store, phase=Phase.FLUSH), spec(work, phase=Phase.WORK)])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await wait_until_async(lambda: work.handle is not None and work.handle.stop.is_set())
        during = supervisor.states(), supervisor.draining, supervisor.is_ready()
        work.may_finish.set()
        await run.ended.wait()

    assert during == ({"store": State.READY, "work": State.READY}, True, False)
    assert supervisor.states() == {"store": State.STOPPED, "work": State.STOPPED}


async def test_service_that_ignores_the_stop_is_cut_off_at_the_deadline_and_the_rest_still_stops() -> None:
    diary: list[str] = []
    deaf, store, server = Deaf("deaf", diary), Scripted("store", diary), Scripted("server", diary)
    tree = [spec(server, phase=Phase.SERVERS), spec(store, phase=Phase.FLUSH), spec(deaf, phase=Phase.WORK)]
    supervisor = supervise(tree, drain_s=0.05)

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        diary.clear()
        supervisor.stop()
        await run.ended.wait()

    assert [line.split()[0] for line in diary] == ["deaf", "store", "server"]
    assert (diary[0], diary[-1]) == ("deaf is cut off", "server ends")
    assert run.error is None
    assert not supervisor.hurried


async def test_server_has_its_own_time_after_a_drain_that_took_all_of_its(caplog: pytest.LogCaptureFixture) -> None:
    class SlowToStop(Scripted):
        async def work(self, handle: Handle) -> None:
            await handle.stop.wait()
            await anyio.sleep(0.02)

    deaf, server = Deaf("deaf"), SlowToStop("server")
    supervisor = supervise([spec(server, phase=Phase.SERVERS), spec(deaf, phase=Phase.WORK)], drain_s=0.0)

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await run.ended.wait()

    assert server.diary[-1] == "server ends"
    assert [record.getMessage() for record in caplog.records] == ["deaf did not stop in time and is cut off"]


async def test_service_that_already_ended_is_not_said_to_be_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    refused = Scripted("refused")
    refused.failing = [AddressRefused("port taken")]
    supervisor = supervise([spec(refused)], drain_s=0.0)

    async with running(supervisor) as run:
        await run.ended.wait()

    assert [record.getMessage() for record in caplog.records] == []


async def test_second_stop_cuts_everything_off_at_once() -> None:
    diary: list[str] = []
    work, store, server = Deaf("work", diary), Deaf("store", diary), LeavingNote("server", diary)
    tree = [spec(server, phase=Phase.SERVERS), spec(store, phase=Phase.FLUSH), spec(work, phase=Phase.WORK)]
    supervisor = supervise(tree, drain_s=math.inf)

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await wait_until_async(lambda: work.handle is not None and work.handle.stop.is_set())
        supervisor.stop()
        await run.ended.wait()

    assert supervisor.hurried
    assert run.error is None
    assert all(service.handle is not None and service.handle.hurry for service in (work, store, server))
    assert "server cleaned up, hurried: True" in diary


async def test_two_stops_before_the_run_began_end_it_at_once() -> None:
    service = Deaf("service")
    supervisor = supervise([spec(service)], drain_s=math.inf)
    supervisor.stop()
    supervisor.stop()

    async with running(supervisor) as run:
        await run.ended.wait()

    assert supervisor.hurried
    assert run.error is None


async def test_stop_before_anything_is_ready_ends_the_run() -> None:
    starting = Scripted("starting", held=True)
    supervisor = supervise([spec(starting), spec(Scripted("behind"), "", "starting")], drain_s=0.05)

    async with running(supervisor) as run:
        await wait_until_async(lambda: starting.starts)
        supervisor.stop()
        await run.ended.wait()

    assert run.error is None
    assert set(supervisor.states().values()) == {State.STOPPED}


async def test_stop_before_the_run_began_ends_it() -> None:
    service = Scripted("service")
    supervisor = supervise([spec(service)])
    supervisor.stop()

    async with running(supervisor) as run:
        await run.ended.wait()

    assert supervisor.states() == {"service": State.STOPPED}
    assert run.error is None


async def test_stop_does_not_wait_for_a_service_that_backs_off() -> None:
    failing = Scripted("failing")
    failing.failing = [OSError("gone"), OSError("gone")]
    patient = RestartPolicy(free=0.0, base_s=1000.0, cap_s=1000.0)
    supervisor = supervise([spec(failing)], policy=patient, drain_s=math.inf)

    async with running(supervisor) as run:
        await wait_until_async(lambda: failing.starts == 1 and supervisor.states()["failing"] is State.WAITING)
        supervisor.stop()
        await run.ended.wait()

    assert failing.starts == 1
    assert run.error is None


async def test_stop_does_not_wait_for_a_need_that_never_becomes_ready() -> None:
    never, waiting = Scripted("never", held=True), Scripted("waiting")
    tree = [spec(never, phase=Phase.SERVERS), spec(waiting, "waiting", "never")]
    supervisor = supervise(tree, drain_s=math.inf)

    async with running(supervisor) as run:
        await wait_until_async(lambda: never.starts)
        supervisor.stop()
        await wait_until_async(lambda: supervisor.states()["waiting"] is State.STOPPED)
        never.let_be_ready()
        await run.ended.wait()

    assert waiting.starts == 0
    assert run.error is None


async def test_service_that_fails_while_it_stops_does_not_fail_the_run() -> None:
    class FailingLate(Scripted):
        async def work(self, handle: Handle) -> None:
            await handle.stop.wait()
            raise OSError("could not close")

    service = FailingLate("service")
    supervisor = supervise([spec(service)])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await run.ended.wait()

    assert run.error is None
    assert service.starts == 1


async def test_server_that_dies_during_the_drain_is_mended_for_those_who_still_work() -> None:
    work, server = Finishing("work"), Scripted("server")
    supervisor = supervise([spec(server, phase=Phase.SERVERS), spec(work)])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await wait_until_async(lambda: work.handle is not None and work.handle.stop.is_set())
        server.crash(OSError("gone"))
        await wait_until_async(lambda: server.starts == 2 and supervisor.states()["server"] is State.READY)
        work.may_finish.set()
        await run.ended.wait()

    assert run.error is None
    assert server.diary[-1] == "server ends"


async def test_failure_that_led_to_the_drain_outlasts_a_hurried_stop() -> None:
    refusal = AddressRefused("port taken")
    refused, deaf = Scripted("refused", held=True), Deaf("deaf")
    refused.failing = [refusal]
    supervisor = supervise([spec(deaf), spec(refused)], drain_s=math.inf)

    async with running(supervisor) as run:
        await wait_until_async(lambda: deaf.handle is not None and deaf.handle.stop.is_set())
        supervisor.stop()  # the first that anyone asked for: the drain is due to the refusal
        first_is_patient = not supervisor.hurried
        supervisor.stop()
        await run.ended.wait()

    assert first_is_patient
    assert run.error is refusal


async def test_cancelling_the_run_ends_every_service() -> None:
    services = [Deaf("one"), LeavingNote("two")]
    supervisor = supervise([spec(service) for service in services])

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            await wait_until_async(supervisor.is_ready)
            tasks.cancel_scope.cancel()

    assert set(supervisor.states().values()) == {State.STOPPED}
    assert services[1].diary[-2:] == ["two cleaned up, hurried: False", "two is cut off"]


async def test_stop_is_quiet_when_all_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobd")
    supervisor = supervise([spec(Scripted("service"))])

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await run.ended.wait()

    assert caplog.records == []

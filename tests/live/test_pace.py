"""The speed of a replay, and gates that hold it; across processes, on a clock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from nestling.driver.feeder_io import Timer
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import Launcher
from nestling.harness import Gate, replay
from nestling.harness.replay_report import ReplayReport
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.harness.serving import recorded_waits
from nestling.session.errors import NestlingError
from support.examples import FOLDER, example
from support.live import SECONDS, warm
from support.recordings import command


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """A template that all replays of this module share."""
    with warm() as launcher:
        yield launcher


class Clock:
    """A clock that only moves when somebody sleeps.

    Attributes:
        slept: how long each one slept, seconds.
    """

    def __init__(self, late: float = 0) -> None:
        self.seconds = 100.0
        self.slept: list[float] = []
        self._late = late

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds + self._late
        await asyncio.sleep(0)

    @property
    def timer(self) -> Timer:
        return Timer(lambda: self.seconds, self.sleep)


def retimed(scenario: Scenario, step: int) -> Scenario:
    """Return a recording in which every event came so many milliseconds after the last."""

    def changed(session: RecordedSession) -> RecordedSession:
        events = [
            msgspec.structs.replace(event, time=event.seq * step)
            for event in session.recording.events
        ]
        recording = session.recording._replace(events=events)
        return msgspec.structs.replace(session, recording=recording)

    sessions = tuple(map(changed, scenario.sessions))
    return msgspec.structs.replace(scenario, sessions=sessions)


def chunk_count(scenario: Scenario) -> int:
    return sum(
        len(call.entry.chunks) for each in scenario.sessions for call in each.script
    )


async def replayed(
    scenario: Scenario, launcher: Launcher, **told: object
) -> ReplayReport:
    with anyio.fail_after(SECONDS):
        return await replay(scenario, Bounds(stall=5.0), launcher, **told)  # type: ignore[arg-type]  # as it is called


@pytest.mark.parametrize(("speed", "scale"), [(1.0, 1.0), (4.0, 0.25), (0.5, 2.0)])
async def test_as_it_was_recorded(
    speed: float, scale: float, launcher: Launcher
) -> None:
    """Longer than the bound on stalls: a replay that waits for its time is not stuck."""
    scenario, clock = retimed(example("mixed"), 2000), Clock()
    report = await replayed(scenario, launcher, speed=speed, timer=clock.timer)
    assert report.problems == ()
    assert clock.slept == [2.0 * scale] * chunk_count(scenario)


async def test_a_burst_looks_at_no_clock(launcher: Launcher) -> None:
    scenario, clock = retimed(example("mixed"), 2000), Clock()
    report = await replayed(scenario, launcher, timer=clock.timer)
    assert (report.problems, clock.slept) == ((), [])


async def test_who_wakes_up_late_waits_less(launcher: Launcher) -> None:
    scenario, clock = retimed(example("twins"), 1000), Clock(late=0.25)
    report = await replayed(scenario, launcher, speed=1.0, timer=clock.timer)
    assert report.problems == ()
    assert 0.75 in clock.slept
    assert 1.0 in clock.slept


def test_the_waits_of_a_call() -> None:
    session = retimed(example("retry"), 500).root
    call = session.script[1]
    events = session.recording.events
    assert recorded_waits(events, call, 2.0) == [0.25] * len(call.entry.chunks)
    assert recorded_waits(events, msgspec.structs.replace(call, place=None), 1.0) == []


def test_a_clock_that_went_back_is_no_wait() -> None:
    session = example("retry").root
    events = [
        msgspec.structs.replace(event, time=-event.seq)
        for event in session.recording.events
    ]
    assert set(recorded_waits(events, session.script[0], 1.0)) == {0.0}


@pytest.mark.parametrize("speed", ["-1", "nan", "inf", "fast"])
def test_what_is_no_speed(speed: str) -> None:
    result = command("replay", str(FOLDER / "retry"), "--json", "--speed", speed)
    assert result.exit_code == 2


def test_the_speed_of_the_command_line() -> None:
    result = command("replay", str(FOLDER / "retry"), "--json", "--speed", "100")
    assert result.exit_code == 0


# --- gates -----------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.0, 1.0])
@pytest.mark.parametrize("path", ["/", "/t2s2b1"])
async def test_a_gate_holds(path: str, speed: float, launcher: Launcher) -> None:
    """Nothing above or below goes on, and nothing of it gets lost."""
    clock = Clock()
    gates = [Gate(path, call=1, chunk=chunk) for chunk in (0, 2, 3)]
    reports: list[ReplayReport] = []

    async def run() -> None:
        scenario = retimed(example("mixed"), 1000)
        told = {"speed": speed, "gates": gates, "timer": clock.timer}
        reports.append(await replayed(scenario, launcher, **told))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for gate in gates:
            await gate.reached()
            assert gate.is_reached
            assert not any(later.is_reached for later in gates[gates.index(gate) + 1 :])
            assert reports == []
            gate.release()
    assert reports[0].problems == ()


async def test_the_end_of_a_call_is_held(launcher: Launcher) -> None:
    scenario = example("mixed")
    count = len(scenario.by_path["/t2s1b1"].script[0].entry.chunks)
    gate = Gate("/t2s1b1", chunk=count)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_replay_well, scenario, launcher, gate)
        await gate.reached()
        gate.release()


async def test_a_gate_that_is_open_already(launcher: Launcher) -> None:
    gate = Gate("/t2s1b1", chunk=1)
    gate.release()
    await _replay_well(example("mixed"), launcher, gate)
    await gate.reached()


async def _replay_well(scenario: Scenario, launcher: Launcher, gate: Gate) -> None:
    report = await replayed(scenario, launcher, gates=[gate])
    assert report.problems == ()


async def test_a_gate_that_nobody_opens(launcher: Launcher) -> None:
    gate = Gate("/t2s1b1", call=1, chunk=2)
    with anyio.fail_after(SECONDS):
        report = await replay(
            example("mixed"), Bounds(stall=0.5), launcher, gates=[gate]
        )
    (problem,) = report.problems
    assert problem.kind == "stall"
    assert "/t2s1b1 waits for the gate at chunk 2 of call 1" in problem.message


async def test_a_gate_that_is_not_come_to(launcher: Launcher) -> None:
    """Whoever waits for it is told, too."""
    gates = [Gate("/t2s1b1", chunk=0), Gate("/t2s2b1", chunk=1)]
    with anyio.fail_after(SECONDS):
        report = await replay(
            example("mixed"), Bounds(stall=0.5), launcher, gates=gates
        )
    assert [problem.kind for problem in report.problems] == ["stall", "stall"]
    assert report.problems[1].message == (
        "the replay has ended and did not come to Gate('/t2s2b1', call=1, chunk=1)"
    )
    with pytest.raises(NestlingError, match="did not come to Gate"):
        await gates[1].reached()


async def test_a_gate_holds_one_replay(launcher: Launcher) -> None:
    gate = Gate("/", chunk=0)
    gate.release()
    await _replay_well(example("retry"), launcher, gate)
    with pytest.raises(ValueError, match="has held a replay already"):
        await replayed(example("retry"), launcher, gates=[gate])


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (Gate("/t9s1b1"), "recorded are /, /t2s1b1, /t2s2b1"),
        (Gate("/t2s1b1", call=2), "recorded are 1 calls"),
        (Gate("/t2s1b1", call=0), "recorded are 1 calls"),
        (Gate("/t2s1b1", chunk=99), "recorded are "),
        (Gate("/t2s1b1", chunk=-1), "recorded are "),
    ],
)
async def test_a_gate_where_nothing_is(
    gate: Gate, told: str, launcher: Launcher
) -> None:
    with pytest.raises(ValueError, match=told):
        await replayed(example("mixed"), launcher, gates=[gate])


def test_a_gate_across_event_loops(launcher: Launcher, tmp_path: Path) -> None:
    """The replay runs in another thread; its gate is opened from this one."""
    gate = Gate("/", chunk=1)
    reached: list[bool] = []

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_replay_well, example("retry"), launcher, gate)
            await gate.reached()
            reached.append(True)
            await anyio.to_thread.run_sync(gate.release)

    anyio.run(run, backend="trio")
    assert reached == [True]

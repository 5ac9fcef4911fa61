"""Running trees across processes in tests, and looking at what happens inside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from nestling.driver.hub_io import HubLoop
from nestling.driver.launcher_io import WorkerProcess
from nestling.driver.workers_io import Workers
from nestling.harness.ledger import Problem
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import load_scenario
from nestling.session.event import Event
from nestling.wire.codec import decode_for_hub
from nestling.wire.messages import ToHub
from support.scenarios import composed

OnMessage: TypeAlias = Callable[[str, int, ToHub], None]
"""Called with a launch, its pid and what it said, before the hub hears of it."""

Leap: TypeAlias = tuple[float, Callable[[HubLoop], bool]]
"""So many seconds, once something is so of a hub."""


def loaded(folder: Path, name: str) -> Scenario:
    """Write a composed tree and load it."""
    return load_scenario(composed(folder, name))


def kinds(problems: Sequence[Problem]) -> list[tuple[str, str | None]]:
    """Return the kind and the path of each problem."""
    return [(problem.kind, problem.path) for problem in problems]


class Watched(ReplayDirector):
    """A replaying director that keeps what logs have grown by.

    Attributes:
        grown: the events of each session, by its id.
    """

    def __init__(self, scenario: Scenario, start_timeout: float = 30.0) -> None:
        super().__init__(scenario)
        self.limits = self.limits._replace(start_timeout=start_timeout)
        self.grown: dict[str, list[Event]] = {}

    def on_events(self, session_id: str, events: Sequence[Event]) -> None:
        """Keep the events; nothing is compared, so nothing is stopped."""
        self.grown.setdefault(session_id, []).extend(events)


def on_each_message(patch: pytest.MonkeyPatch, act: OnMessage) -> None:
    """Let a test act, in the hub's thread, on every message of a worker."""
    received = HubLoop._received

    def spied(self: HubLoop, user: str, routing_id: bytes, frames: list[bytes]) -> None:
        running = self._workers._running.get(user)
        if running is not None:
            act(user, running.process.pid, decode_for_hub(frames)[0])
        received(self, user, routing_id, frames)

    patch.setattr(HubLoop, "_received", spied)


def on_each_start(patch: pytest.MonkeyPatch, act: Callable[[str, int], object]) -> None:
    """Let a test act, in the hub's thread, on the start of every worker."""
    started = Workers._started

    def spied(self: Workers, launch: str, process: WorkerProcess) -> None:
        started(self, launch, process)
        act(launch, process.pid)

    patch.setattr(Workers, "_started", spied)


def leaps(patch: pytest.MonkeyPatch, *leaps: Leap) -> None:
    """Put a hub's clock forward, one time after the other, as if that time had passed.

    Each time at the first look at the clock after something is so. So nobody waits for
    a bound to pass, and none passes before there is what it is about, however slow the
    machine is.
    """
    tick, left = HubLoop._tick, deque(leaps)

    def ticked(self: HubLoop) -> None:
        if left and left[0][1](self):
            seconds, _ = left.popleft()
            self._started -= seconds
            self._last_progress -= seconds
            self._lost -= seconds
        tick(self)

    patch.setattr(HubLoop, "_tick", ticked)


def silent(
    patch: pytest.MonkeyPatch, path: str, *whens: Callable[[HubLoop], bool]
) -> None:
    """Have a session's worker be silent for 11 s more, one time after the other.

    Each time at the first look at the clock after something is so; who is silent for
    ten seconds is suspected, who is so for twenty is ended.
    """
    tick, left = HubLoop._tick, deque(whens)

    def ticked(self: HubLoop) -> None:
        if left and left[0](self):
            left.popleft()
            for session in self._hub.tree:
                session.last_heard -= 11.0 if session.path == path else 0.0
        tick(self)

    patch.setattr(HubLoop, "_tick", ticked)


def is_logged(path: str, length: int) -> Callable[[HubLoop], bool]:
    """Return what tells of a hub whether the log of a session is so long."""

    def is_so(hub: HubLoop) -> bool:
        found = [len(each.log) for each in hub._hub.tree if each.path == path]
        return found == [length]

    return is_so


def is_started(launch: str) -> Callable[[HubLoop], bool]:
    """Return what tells of a hub whether a worker's process is there."""
    return lambda hub: launch in hub._workers._running

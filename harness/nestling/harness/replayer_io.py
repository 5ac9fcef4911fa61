"""What the ``replay`` fixture of the pytest plugin is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio.from_thread import start_blocking_portal

from nestling.harness.gates_io import Gate
from nestling.harness.next_step import kinds_of, next_step
from nestling.harness.plugin_run_io import Place, PluginRun
from nestling.harness.replay_report import ReplayReport, report_text
from nestling.harness.scenario import Scenario
from nestling.session.errors import NestlingError

_T = TypeVar("_T")


class Replayer:
    """Replays the scenario of a test: ``replay()``, or ``await replay.run()``.

    Attributes:
        was_used: whether it has been asked to.
    """

    def __init__(self, run: PluginRun, place: Place) -> None:
        self.was_used = False
        self._run = run
        self._place = place
        self._scenario: Scenario | None = None

    @property
    def folder(self) -> Path:
        """The scenario's folder."""
        return self._place.folder

    @property
    def scenario(self) -> Scenario:
        """The scenario, recorded before if ``--record-mode`` says so.

        Fails the test if there is none.
        """
        __tracebackhide__ = True
        return _wait_for(self._load)

    def __call__(
        self, *, check: bool = True, gates: Sequence[Gate] = ()
    ) -> ReplayReport:
        """Replay the scenario, and wait for it; also in an ``async def``.

        Args:
            check: fail the test, with the tree and what is wrong with it, if it did not
                come out as recorded. Without it, that is for the test to look at.
            gates: hold answers until somebody releases them.

        Returns:
            The report: ``problems``, ``logs`` and so on.
        """
        __tracebackhide__ = True
        report = _wait_for(partial(self._replay, gates))
        return self._judged(report, check=check)

    async def run(
        self, *, check: bool = True, gates: Sequence[Gate] = ()
    ) -> ReplayReport:
        """Replay the scenario; the test may do something meanwhile.

        Args:
            check: as above.
            gates: likewise; the test can wait for each of them, and release it.
        """
        __tracebackhide__ = True
        try:
            return self._judged(await self._replay(gates), check=check)
        except NestlingError as error:
            problem = _said(error)
        pytest.fail(problem, pytrace=False)

    async def _load(self) -> Scenario:
        if self._scenario is None:
            self._scenario = await self._run.load(self._place)
        return self._scenario

    async def _replay(self, gates: Sequence[Gate]) -> ReplayReport:
        self.was_used = True
        return await self._run.replay(self._place, await self._load(), gates)

    def _judged(self, report: ReplayReport, *, check: bool) -> ReplayReport:
        __tracebackhide__ = True
        if check and not report.is_ok:
            pytest.fail(self._failure(report), pytrace=False)
        return report

    def _failure(self, report: ReplayReport) -> str:
        """Say what is wrong; pytest's summary shows the first line only."""
        kinds = kinds_of(report.problems)
        lines = [
            f"{self._place.mark.path} does not replay as recorded: {kinds}",
            "",
            report_text(report),
            f"the recording: {self.folder}",
        ]
        if self._place.has_config:
            hint = next_step(report.problems, "--snapshot-update", "--record-mode=all")
            lines += [] if hint is None else [hint]
        return "\n".join(lines)


def _wait_for(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Do something in an event loop of its own, whatever runs in this thread.

    What is wrong with the scenario fails the test, in a sentence.
    """
    __tracebackhide__ = True
    try:
        with start_blocking_portal() as portal:
            found: _T = portal.call(work)
            return found
    except NestlingError as error:
        problem = _said(error)
    pytest.fail(problem, pytrace=False)


def _said(error: NestlingError) -> str:
    """Return all there is to say of an error; pytest's summary shows its first line."""
    return "\n\n".join([str(error), *getattr(error, "__notes__", ())])

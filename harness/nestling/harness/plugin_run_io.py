"""What the pytest plugin does in one process of a test run.

One launcher serves all replays of a process, so that its template is started once. A
recording or a refresh of a folder is done by one test of one process at a time, and once
in a run: who comes second finds that out from a small file that all processes share.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
import pytest

from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import Launcher
from nestling.driver.launcher_name import LauncherName
from nestling.driver.template_launcher_io import launcher_of
from nestling.harness.casting_io import cast_of
from nestling.harness.gates_io import Gate
from nestling.harness.ledger import Problem
from nestling.harness.next_step import kinds_of
from nestling.harness.plugin_options import Mark, RecordMode, is_ci
from nestling.harness.recordings_report import Facts
from nestling.harness.replay_director import Cast
from nestling.harness.replay_io import replay
from nestling.harness.replay_report import ReplayReport, problem_lines
from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import CONFIG_NAME, ROOT_NAME, load_scenario
from nestling.session.errors import NestlingError, UnreadableError
from nestling.wire.agent_reference import (
    TAPE,
    absolute,
    module_of,
    parse_reference,
)
from nestling.worker.network_io import lifted

_RESTORE: Final = (
    "the recording was changed: restore it, or --record-mode=all records it anew"
)
RECORD_STALL: Final = 60.0
"""Seconds without progress after which a recording is over: a model may think."""


class MissingRecordingError(NestlingError):
    """There is no recording to replay."""


class RecordingRefusedError(NestlingError):
    """Nothing is recorded here."""


class NotWrittenError(NestlingError):
    """A scenario could not be recorded or refreshed."""

    def __init__(self, what: str, problems: Sequence[Problem], text: str) -> None:
        """Make the error.

        Args:
            what: which scenario was not written, and by what.
            problems: why.
            text: the report; a note, since it may be longer than messages are.
        """
        super().__init__(f"{what}: {kinds_of(problems)}")
        self.add_note(text)


class Place(NamedTuple):
    """A scenario as a test names it.

    Attributes:
        folder: the scenario's, absolute.
        base: the folder of the test's file.
        mark: what the marker says.
        test: the test, as pytest calls it.
    """

    folder: Path
    base: Path
    mark: Mark
    test: str

    def cast(self) -> Cast | None:
        """Return who runs the scenario (see ``cast_of``)."""
        agent = self.mark.agent
        if agent is not None and agent != TAPE:
            agent = str(absolute(parse_reference(agent), str(self.base)))
        return cast_of(self.folder, agent)

    @property
    def bounds(self) -> Bounds:
        """When a replay is over."""
        return Bounds(self.mark.stall, self.mark.timeout)

    @property
    def has_recording(self) -> bool:
        """Whether there is something to replay."""
        return self.folder.is_file() or (self.folder / ROOT_NAME).exists()

    @property
    def has_config(self) -> bool:
        """Whether it says how it is recorded."""
        return (self.folder / CONFIG_NAME).exists()


def place_of(test_file: Path, test: str, mark: Mark) -> Place:
    """Return where a test's scenario is.

    Args:
        test_file: the file of the test.
        test: what it is called.
        mark: what its marker says.
    """
    base = test_file.parent
    return Place(Path(os.path.abspath(base / mark.path)), base, mark, test)


def recording_is_refused() -> bool:
    """Tell whether this is a build server, which records nothing."""
    return is_ci(os.environ.get("CI"))


class PluginRun:
    """The replays, recordings and refreshes of one process. One test at a time.

    Attributes:
        facts: what was done.
        mode: what may be recorded.
        refreshes: whether expectations are written anew.
    """

    def __init__(self, mode: RecordMode, *, refreshes: bool) -> None:
        self.mode = mode
        self.refreshes = refreshes
        self.facts = Facts([], [], {}, [])
        self.places: Sequence[Place] = ()
        self._launchers: dict[tuple[LauncherName, bool], Launcher] = {}
        self._stack = ExitStack()
        self._temporary: pytest.TempPathFactory | None = None
        self._has_siblings = False

    def open(self, temporary: pytest.TempPathFactory, *, has_siblings: bool) -> None:
        """Begin.

        Args:
            temporary: the temporary folders of this process.
            has_siblings: whether it is one of several; these are side by side then.
        """
        self._temporary = temporary
        self._has_siblings = has_siblings
        # Held from here on, a template is not what some test has left.
        for place in self.places:
            self._offline_launcher(place)

    def close(self) -> None:
        """End the templates."""
        self._stack.close()
        self._launchers.clear()

    # --- launchers -----------------------------------------------------------------

    def _launcher(self, name: LauncherName, *, is_offline: bool) -> Launcher:
        key = name, is_offline
        if key not in self._launchers:
            launcher = launcher_of(name, self._modules(), is_offline=is_offline)
            if isinstance(launcher, AbstractContextManager):
                self._stack.enter_context(launcher)
            self._launchers[key] = launcher
        return self._launchers[key]

    def _offline_launcher(self, place: Place) -> Launcher:
        """Return what replays a scenario; offline, unless its test says otherwise."""
        mark = place.mark
        return self._launcher(mark.launcher, is_offline=not mark.network)

    def _modules(self) -> list[str]:
        """Return the agent modules of all tests: a template that knows them is kept."""
        found: dict[str, None] = {}
        for place in self.places:
            # What is wrong with another test's scenario is for that one to say.
            with suppress(NestlingError, OSError):
                cast = place.cast()
                module = "" if cast is None else module_of(cast.agent)
                if module:
                    found[module] = None
        return list(found)

    # --- one test --------------------------------------------------------------------

    async def load(self, place: Place) -> Scenario:
        """Load a test's scenario; record or refresh it before, if it is to be.

        Raises:
            MissingRecordingError: if there is nothing to replay, and none may be made.
            RecordingRefusedError: on a build server, if it would have to be made.
            NestlingError: if it cannot be recorded, refreshed or read.
        """
        if self.mode == "all" and place.has_config:
            await self._record(place)
        elif not place.has_recording:
            if self.mode == "none" or not place.has_config:
                raise MissingRecordingError(_missing(place))
            await self._record(place)
        if self.refreshes and place.has_config:
            await self._refresh(place)
        try:
            return await anyio.to_thread.run_sync(load_scenario, place.folder)
        except UnreadableError as error:
            if place.has_config and place.has_recording:
                error.add_note(_RESTORE)
            raise

    async def replay(
        self, place: Place, scenario: Scenario, gates: Sequence[Gate] = ()
    ) -> ReplayReport:
        """Replay a test's scenario.

        Args:
            place: where it is, and how it is replayed.
            scenario: the scenario.
            gates: hold answers.

        Raises:
            NestlingError: if it cannot be replayed.
        """
        cast = await anyio.to_thread.run_sync(place.cast)
        report = await replay(
            scenario,
            place.bounds,
            self._offline_launcher(place),
            cast=cast,
            verify=place.mark.verify,
            speed=place.mark.speed,
            gates=gates,
        )
        lines = problem_lines(report.warnings)
        self.facts.warned.extend(f"{place.folder}: {line}" for line in lines)
        return report

    async def _refresh(self, place: Place) -> None:
        # Whoever replays only does not pay for it.
        from nestling.harness.refresh_io import refresh
        from nestling.harness.refresh_report import refresh_text

        async with self._alone(place.folder, "refresh") as is_first:
            if not is_first:
                return
            refreshed = await refresh(
                place.folder, place.bounds, self._offline_launcher(place)
            )
            if not refreshed.is_ok:
                what = f"{place.mark.path} was not refreshed"
                problems = refreshed.report.problems
                raise NotWrittenError(what, problems, refresh_text(refreshed))
            if refreshed.changed:
                self.facts.refreshed[str(place.folder)] = sorted(refreshed.changed)

    async def _record(self, place: Place) -> None:
        # Whoever replays only does not pay for it.
        from nestling.harness.record_io import record
        from nestling.harness.record_report import record_text

        if recording_is_refused():
            raise RecordingRefusedError(
                f"{place.folder}: not recorded, because CI is set in the environment"
            )
        async with self._alone(place.folder, "record") as is_first:
            if not is_first or (self.mode == "once" and place.has_recording):
                return
            bounds = Bounds(RECORD_STALL, place.mark.timeout)
            launcher = self._launcher(place.mark.launcher, is_offline=False)
            with lifted():
                report = await record(place.folder, bounds, launcher)
            if not report.is_ok:
                what = f"{place.mark.path} was not recorded"
                raise NotWrittenError(what, report.problems, record_text(report))
            self.facts.recorded.append(str(place.folder))

    @asynccontextmanager
    async def _alone(self, folder: Path, what: str) -> AsyncIterator[bool]:
        """Do something to a folder while no other process of the run does.

        Yields whether it was not done yet; it counts as done if the body ends well.
        """
        if self._temporary is None:
            raise NestlingError("the plugin has not begun")
        base = self._temporary.getbasetemp()
        shared = base.parent if self._has_siblings else base
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        path = shared / f"nestling-{what}-{name}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await anyio.to_thread.run_sync(fcntl.flock, fd, fcntl.LOCK_EX)
            yield os.fstat(fd).st_size == 0
            os.write(fd, b"done\n")
        finally:
            os.close(fd)


def _missing(place: Place) -> str:
    if not place.has_config:
        what = (
            "no such file or folder"
            if not place.folder.exists()
            else (f"found neither {ROOT_NAME} nor {CONFIG_NAME}")
        )
        return (
            f"{place.folder}: {what}, expected a scenario; the path in the marker, "
            f"{place.mark.path!r}, starts at the folder of the test's file"
        )
    return (
        f"{place.folder}: there is no recording, and --record-mode=none (the default) "
        "makes none. To record it, with the provider that its scenario.toml names:\n"
        f"    pytest --record-mode=once {place.test!r}\n"
        f"    nestling record {place.folder}"
    )

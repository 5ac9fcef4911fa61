"""Starting worker processes: what all launchers share, and the plainest of them.

Launches happen only in the hub's thread: a worker asks the kernel to die with the
thread that started it, and the hub's lives as long as the run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from nestling.driver.exec_process_io import ExecProcess
from nestling.driver.exits import Exit
from nestling.driver.guardian_io import GUARDIAN
from nestling.driver.traces_io import MARK, Trace, new_mark, set_mark
from nestling.session.errors import LaunchError
from nestling.wire.launch import OFFLINE, LaunchSpec, encode_launch

WORKER: Final = "nestling.worker"
"""What a worker runs as its program."""

_ALLOWED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "TMPDIR",
    "SYSTEMROOT",
    "VIRTUAL_ENV",
    # Where, and whether, a worker leaves compiled modules beside an agent.
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
    # So that a coverage run sees workers; only there where it set them.
    "COVERAGE_PROCESS_CONFIG",
    "COVERAGE_PROCESS_START",
)
_ALLOWED_PREFIX: Final = "LC_"


class LaunchRequest(NamedTuple):
    """What a launcher needs to know.

    Attributes:
        spec: what the worker is told, secrets included.
        log: the file that takes its stdout and stderr.
        directory: its working directory.
        module: the agent module that it will need, ``pkg.mod`` or ``/abs/file.py``;
            "" for none.
    """

    spec: LaunchSpec
    log: Path
    directory: Path
    module: str = ""


class WorkerProcess(Protocol):
    """A running worker, in a process group of its own."""

    @property
    def pid(self) -> int:
        """The process."""
        ...

    @property
    def launcher(self) -> str:
        """What started it: ``template`` or ``exec``."""
        ...

    @property
    def reason(self) -> str | None:
        """Why that started it and not the launcher that was wanted, if so."""
        ...

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, now or on the running loop, when the process has ended.

        Not after ``reap`` or ``abandon``.
        """
        ...

    def has_ended(self) -> bool:
        """Tell whether the process has ended; it is not reaped yet."""
        ...

    def has_failed(self) -> bool:
        """Tell whether it has ended, and is known not to have ended well.

        It is not reaped yet.
        """
        ...

    # The four that follow are harmless at any time before ``reap`` and after it, and
    # hit nobody else.

    def hang_up(self) -> None:
        """Close the worker's lifeline: it ends at once, and what it has started too."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM to the process and its whole group."""
        ...

    def kill(self) -> None:
        """End the process, its whole group, and what is below it now."""
        ...

    def dump(self) -> None:
        """Have the process write the stacks of its threads into its log.

        Nothing comes of it as long as the process is not ready for that.
        """
        ...

    def sweep(self) -> bool:
        """End what a process that has ended has left behind.

        Returns:
            Whether nothing of it is left: neither of its group nor of what it started.
        """
        ...

    def reap(self) -> Exit:
        """Collect the exit of a process that has ended, and free everything.

        What could not be swept is named in it.
        """
        ...

    def abandon(self) -> None:
        """Free everything, the lifeline included, of a process that cannot be ended."""
        ...


OnStarted: TypeAlias = Callable[[WorkerProcess], None]
OnFailed: TypeAlias = Callable[[LaunchError], None]


class Starter(Protocol):
    """A launcher at work for one hub; used on the hub's loop only."""

    def start(
        self, request: LaunchRequest, on_started: OnStarted, on_failed: OnFailed
    ) -> None:
        """Start a worker; calls one of the two, now or later.

        What fails leaves nothing behind.
        """
        ...

    def give_up(self, launch: str) -> bool:
        """Give up a launch, if nothing was begun for it; no call comes of it then.

        Returns:
            Whether nothing was.
        """
        ...

    def close(self) -> None:
        """Give up what has not started, without a call, and free everything.

        The processes that were handed out are reaped or abandoned before.
        """
        ...


class Launcher(Protocol):
    """A way of starting workers; several hubs may use one at the same time."""

    name: str

    def connect(self) -> Starter:
        """Begin to work for a hub, on its running loop."""
        ...


def worker_environment(
    environment: Mapping[str, str], *, is_offline: bool = False
) -> dict[str, str]:
    """Return what a worker's environment holds of the driver's: no keys, no tokens.

    The module path is passed on, so that a worker finds what the driver finds, and
    the hash seed is fixed, so that the order of sets is the same in every run.

    Args:
        environment: the driver's.
        is_offline: whether the worker is kept off the network.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)
    }
    paths = [os.path.abspath(path) for path in sys.path if path]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept["PYTHONHASHSEED"] = "0"
    if is_offline:
        kept[OFFLINE] = "1"
    return kept


class ExecLauncher:
    """Starts each worker as a fresh interpreter."""

    name = "exec"

    def __init__(self, entry: str = WORKER, *, is_offline: bool = False) -> None:
        """Prepare to start workers.

        Args:
            entry: the module that a worker runs as its program.
            is_offline: whether workers are kept off the network, as far as Python
                sees it (``nestling.worker.network_io``).
        """
        self._entry = entry
        self._is_offline = is_offline

    def connect(self) -> Starter:
        """Begin to work for a hub (see ``Launcher``)."""
        return ExecStarter(self)

    def start(self, request: LaunchRequest, reason: str | None = None) -> ExecProcess:
        """Start a worker.

        Args:
            request: which.
            reason: why it is this launcher that starts it.

        Raises:
            LaunchError: if it cannot be started; nothing is left behind.
        """
        spec = encode_launch(request.spec)
        environment = worker_environment(os.environ, is_offline=self._is_offline)
        mark = new_mark()
        trace = Trace(str(mark), (str(request.log),))
        try:
            # The worker reads its spec from the pipe and keeps it: the write end,
            # which only the driver has, is its lifeline.
            read_end, write_end = os.pipe()
        except OSError as error:
            raise LaunchError(f"cannot start a worker: {error}") from None
        try:
            os.write(write_end, spec)  # a pipe holds that much
            with request.log.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._entry, str(read_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=request.directory,
                    env={**environment, MARK: trace.mark},
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(write_end)
            raise LaunchError(f"cannot start a worker: {error}") from None
        finally:
            os.close(read_end)
        # It runs no code of an agent before this thread, the hub's, has welcomed it.
        set_mark(process.pid, mark)
        return ExecProcess(process, write_end, trace, reason)


class ExecStarter:
    """Starts one worker a turn of the loop.

    Starting a process takes the hub's thread some milliseconds. Many in a row would
    keep the first ones waiting at the door for so long that they give up.
    """

    def __init__(self, launcher: ExecLauncher, reason: str | None = None) -> None:
        """Prepare to start workers, on the running loop.

        Args:
            launcher: starts them.
            reason: why it is this one that does.
        """
        self._launcher = launcher
        self._reason = reason
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], None]] = deque()
        self._turn: asyncio.Handle | None = None
        self._is_guarded = False

    def start(
        self, request: LaunchRequest, on_started: OnStarted, on_failed: OnFailed
    ) -> None:
        """Start a worker (see ``Starter``)."""
        self.start_because(self._reason, request, on_started, on_failed)

    def give_up(self, launch: str) -> bool:
        """Leave it: it comes within a few turns of the loop."""
        return False

    def start_because(
        self,
        reason: str | None,
        request: LaunchRequest,
        on_started: OnStarted,
        on_failed: OnFailed,
    ) -> None:
        """Start a worker for a reason of its own."""
        start = partial(self._start_now, reason, request, on_started, on_failed)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._next)
            start()
        else:
            self._waiting.append(start)

    def _next(self) -> None:
        self._turn = None
        if self._waiting:
            self._turn = self._loop.call_soon(self._next)
            self._waiting.popleft()()

    def _start_now(
        self,
        reason: str | None,
        request: LaunchRequest,
        on_started: OnStarted,
        on_failed: OnFailed,
    ) -> None:
        if not self._is_guarded:
            self._is_guarded = True
            GUARDIAN.hold(f"{request.log.parent}/")
        try:
            process = self._launcher.start(request, reason)
        except LaunchError as error:
            on_failed(error)
        else:
            on_started(process)

    def close(self) -> None:
        """Give up what waits."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
        if self._is_guarded:
            self._is_guarded = False
            GUARDIAN.let_go()

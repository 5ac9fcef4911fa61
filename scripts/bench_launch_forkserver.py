"""The same workers, started by ``multiprocessing``'s forkserver; for comparison only.

The product does not use it: it pickles, and it cannot refuse to fork. What it starts here
is the very worker that our launchers start, with everything that a worker imports
preloaded, so that the two do the same from the order to the first chunk.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

import msgspec

from nestling.driver.exits import Exit
from nestling.driver.launcher_io import (
    LaunchRequest,
    OnFailed,
    OnStarted,
    Starter,
)
from nestling.wire.launch import decode_launch, encode_launch
from nestling.worker import process_io


def work(spec: bytes, directory: str, log: str) -> None:
    """Run a worker in the process that the forkserver has made."""
    told = msgspec.structs.replace(decode_launch(spec), parent_pid=os.getppid())
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(directory)
    read_end, write_end = os.pipe()
    os.write(write_end, encode_launch(told))
    os._exit(process_io.main([process_io.PROGRAM, str(read_end)]))


class ForkserverLauncher:
    """Starts workers by a forkserver that runs already."""

    name = "forkserver"

    def connect(self) -> Starter:
        """Begin to work for a hub."""
        return _Starter()


class _Starter:
    def start(
        self, request: LaunchRequest, on_started: OnStarted, on_failed: OnFailed
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        arguments = (
            encode_launch(request.spec),
            str(request.directory),
            str(request.log),
        )
        process = context.Process(target=work, args=arguments)
        process.start()
        on_started(_Process(process))

    def give_up(self, launch: str) -> bool:
        return False

    def close(self) -> None:
        """Nothing waits."""


class _Process:
    launcher = "forkserver"
    reason: str | None = None

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def watch(self, on_end: Callable[[], None]) -> None:
        def ended() -> None:
            self._loop.remove_reader(self._process.sentinel)
            on_end()

        self._loop.add_reader(self._process.sentinel, ended)

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def has_succeeded(self) -> bool:
        return self._process.exitcode == 0

    def has_failed(self) -> bool:
        return self._process.exitcode not in (None, 0)

    def hang_up(self) -> None:
        """Do without."""

    def terminate(self) -> None:
        """Do without."""

    def dump(self) -> None:
        """Do without."""

    def sweep(self) -> bool:
        return True

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> Exit:
        self._process.join()
        return Exit(self._process.exitcode, None)

    def abandon(self) -> None:
        self._loop.remove_reader(self._process.sentinel)

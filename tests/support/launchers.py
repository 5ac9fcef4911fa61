"""Both launchers under one name each, and single workers started by them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from nestling.driver.exits import Exit
from nestling.driver.launcher_io import (
    WORKER,
    ExecLauncher,
    Launcher,
    LaunchRequest,
    WorkerProcess,
)
from nestling.driver.template_launcher_io import TemplateLauncher, _TemplateStarter
from nestling.driver.template_pool_io import TemplatePool
from nestling.session.errors import LaunchError
from nestling.wire.launch import LaunchSpec
from nestling.wire.messages import PROTOCOL

LAUNCHERS: Final = ("exec", "template")

SECONDS: Final = 20.0
"""Within which everything that is waited for comes."""


def a_launcher(name: str, entry: str = WORKER) -> Launcher:
    """Return a launcher whose workers run a program."""
    if name == "template":
        return TemplateLauncher(entry=entry)
    assert name == "exec"
    return ExecLauncher(entry)


def stand_in(name: str) -> str:
    """Return a program that tests have in place of a worker."""
    return f"support.stand_ins.{name}"


def request_for(folder: Path, launch: str = "w0", module: str = "") -> LaunchRequest:
    """Return what a launcher is asked for; nobody listens at its endpoint."""
    endpoint = f"ipc://{folder / 'hub'}"
    spec = LaunchSpec(PROTOCOL, endpoint, launch, "s3cret", b"\x01id", os.getpid())
    return LaunchRequest(spec, folder / f"{launch}.log", folder, module)


class Bench:
    """A launcher at work, and what it was asked for; used on one loop.

    Attributes:
        processes: what it has started.
    """

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.processes: list[WorkerProcess] = []
        self.starter = launcher.connect()
        self._folder = folder
        self._count = 0

    async def start(self, **more: Any) -> WorkerProcess:
        """Start a worker."""
        async with asyncio.timeout(SECONDS):
            return await self.asked(**more)

    def asked(self, **more: Any) -> asyncio.Future[WorkerProcess]:
        """Ask for a worker; what comes of it is what the future comes to."""
        future: asyncio.Future[WorkerProcess]
        future = asyncio.get_running_loop().create_future()

        def started(process: WorkerProcess) -> None:
            self.processes.append(process)
            future.set_result(process)

        def failed(error: LaunchError) -> None:
            future.set_exception(error)

        launch = f"w{self._count}"
        self._count += 1
        request = request_for(self._folder, launch, **more)
        self.starter.start(request, started, failed)
        return future

    async def exit_of(self, process: WorkerProcess) -> Exit:
        """Wait for the end of a worker, and reap it."""
        await ended(process)
        self.processes.remove(process)
        return process.reap()

    async def run(self, **more: Any) -> Exit:
        """Start a worker and return how it ends."""
        return await self.exit_of(await self.start(**more))

    @property
    def pool(self) -> TemplatePool:
        """The templates behind it."""
        assert isinstance(self.starter, _TemplateStarter)
        return self.starter._pool

    @contextmanager
    def impatient(self, **bounds: Any) -> Iterator[None]:
        """Have templates be waited for no longer than so meanwhile.

        What must not be late is asked for outside.
        """
        before = self.pool.bounds
        self.pool.bounds = before._replace(**bounds)
        try:
            yield
        finally:
            self.pool.bounds = before

    def is_over_warming(self) -> None:
        """Have the time pass that the current template has to get ready."""
        assert isinstance(self.starter, _TemplateStarter)
        current = self.pool._current
        assert current is not None
        port = self.starter._ports[current]
        port._timer.cancel()
        port._not_warm()

    @property
    def template(self) -> int:
        """The pid of the current template."""
        current = self.pool._current
        assert current is not None
        return current.pid


@asynccontextmanager
async def at_work(launcher: Launcher, folder: Path) -> AsyncIterator[Bench]:
    """Let a launcher work, and end what it has started."""
    bench = Bench(launcher, folder)
    try:
        yield bench
    finally:
        for process in bench.processes:
            process.kill()
        for process in list(bench.processes):
            await bench.exit_of(process)
        bench.starter.close()


async def ended(process: WorkerProcess) -> None:
    """Wait until a worker has ended."""
    future = asyncio.get_running_loop().create_future()
    process.watch(lambda: future.set_result(None))
    async with asyncio.timeout(SECONDS):
        await future

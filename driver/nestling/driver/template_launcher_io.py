"""Starting workers as forks of a warm template, and without one where that cannot be.

A fork takes a few milliseconds, a fresh interpreter many times as long. Every launch
that a template refuses or does not answer becomes a fresh interpreter, and the reason
is kept with the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from nestling.driver.launcher_io import (
    WORKER,
    ExecLauncher,
    ExecStarter,
    Launcher,
    LaunchRequest,
    OnFailed,
    OnStarted,
    Starter,
    worker_environment,
)
from nestling.driver.launcher_name import LauncherName
from nestling.driver.template_io import Template
from nestling.driver.template_pool_io import (
    TemplateBounds,
    TemplatePool,
    acquire,
    release,
)
from nestling.driver.template_port_io import Launching, Port

DEFAULT_BOUNDS: Final = TemplateBounds()


def launcher_of(
    name: LauncherName, modules: Sequence[str] = (), *, is_offline: bool = False
) -> Launcher:
    """Return a launcher by its name.

    Args:
        name: ``auto`` is ``template`` where this system has what that needs, and
            ``exec`` elsewhere. A template that was asked for by its name and cannot
            be had is made up for by fresh interpreters, with that for a reason.
        modules: the agent modules that workers will need (see ``TemplateLauncher``).
        is_offline: whether workers are kept off the network.
    """
    is_without = name is LauncherName.AUTO and why_no_template() is not None
    if is_without or name is LauncherName.EXEC:
        return ExecLauncher(is_offline=is_offline)
    return TemplateLauncher(modules, is_offline=is_offline)


def why_no_template() -> str | None:
    """Say why there can be no template on this system, or None."""
    if sys.platform != "linux":
        return f"a template needs Linux, this is {sys.platform}"
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return "this Python knows no pidfds"
    try:
        os.close(opener(os.getpid()))
    except OSError as error:
        return f"there are no pidfds here: {error.strerror}"
    return None


class TemplateLauncher:
    """Starts workers as forks of a template, else as fresh interpreters.

    The template starts with the first worker and ends with the last hub that uses it,
    or with the launcher where that is used as a context manager: then it stays warm
    between runs. Runs of one process share it if their workers start alike.
    """

    name = "template"

    def __init__(
        self,
        modules: Sequence[str] = (),
        entry: str = WORKER,
        bounds: TemplateBounds = DEFAULT_BOUNDS,
        *,
        is_offline: bool = False,
    ) -> None:
        """Prepare to start workers.

        Args:
            modules: the agent modules that the template imports at its start,
                ``pkg.mod`` or ``/abs/file.py``. It does so for others when they are
                first asked for, which takes a new template.
            entry: the module that a worker runs as its program.
            bounds: how long a template may take.
            is_offline: whether workers, and the imports of agent modules, are kept off
                the network, as far as Python sees it.
        """
        self._modules = tuple(modules)
        self._entry = entry
        self._bounds = bounds
        self._is_offline = is_offline
        self._held: list[TemplatePool] = []

    def __enter__(self) -> Self:
        """Keep the template between runs; may be entered several times."""
        self._held.append(self._acquired())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let it end with the runs that use it."""
        release(self._held.pop())

    def _acquired(self) -> TemplatePool:
        environment = worker_environment(os.environ, is_offline=self._is_offline)
        return acquire(environment, self._modules, self._bounds)

    def connect(self) -> Starter:
        """Begin to work for a hub (see ``Launcher``)."""
        problem = why_no_template()
        launcher = ExecLauncher(self._entry, is_offline=self._is_offline)
        fallback = ExecStarter(launcher, problem)
        if problem is not None:
            return fallback
        return _TemplateStarter(self._acquired(), self._entry, fallback)


class _TemplateStarter:
    """Has a port for each template that works, or worked, for this hub."""

    def __init__(self, pool: TemplatePool, entry: str, fallback: ExecStarter) -> None:
        self._pool = pool
        self._entry = entry
        self._fallback = fallback
        self._ports: dict[Template, Port] = {}

    def start(
        self, request: LaunchRequest, on_started: OnStarted, on_failed: OnFailed
    ) -> None:
        self.route(Launching(request, on_started, on_failed))

    def route(self, launching: Launching) -> None:
        place = self._pool.template_for(launching.request.module)
        if isinstance(place, str):
            self.fall_back(launching, place)
            return
        try:
            port = self._port(place)
        except OSError as error:
            self.fall_back(launching, f"the template cannot be reached: {error}")
        else:
            port.add(launching)

    def give_up(self, launch: str) -> bool:
        return any(port.give_up(launch) for port in list(self._ports.values()))

    def _port(self, template: Template) -> Port:
        port = self._ports.get(template)
        if port is None:
            port = Port(template, self._pool, self._entry, self)
            self._ports[template] = port
        return port

    def fall_back(self, launching: Launching, reason: str) -> None:
        self._fallback.start_because(reason, *launching)

    def is_idle(self, port: Port) -> None:
        if not self._pool.is_current(port.template):
            self._ports.pop(port.template, None)
            port.close()

    def close(self) -> None:
        for port in self._ports.values():
            port.close()
        self._ports.clear()
        self._fallback.close()
        release(self._pool)

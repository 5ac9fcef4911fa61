"""The templates of this process: shared by its runs, replaced when they are spent.

Runs whose workers would start with the same environment, module path and agent modules
share a template. One that was lost, or can fork no more, is followed by another one:
the next generation. Workers of the old one run on, if they can.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from nestling.driver.template_io import Template
from nestling.session.errors import WireError
from nestling.wire.fork import startup_part
from nestling.wire.launch import OFFLINE


class TemplateBounds(NamedTuple):
    """How long a template may take, and how often there may be another one.

    Attributes:
        warm: seconds for its imports.
        fork: seconds for the answer to a request for a fork.
        exit: seconds for telling that a worker has ended.
        restarts: so many lost ones are replaced within a period, and not one more.
        period: seconds.
        clock: tells the time, in seconds.
    """

    warm: float = 8.0
    fork: float = 8.0
    exit: float = 2.0
    restarts: int = 3
    period: float = 60.0
    clock: Callable[[], float] = time.monotonic


class TemplatePool:
    """The template for one environment, generation by generation. Thread-safe.

    Attributes:
        generation: how many templates there have been.
        is_offline: whether its workers are kept off the network.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: tuple[str, ...],
        bounds: TemplateBounds,
    ) -> None:
        self.generation = 0
        self.bounds = bounds
        self.holders = 0
        self.is_offline = OFFLINE in environment
        self._environment = environment
        self._modules = list(modules)
        self._refused: dict[str, str] = {}
        self._lock = threading.RLock()
        self._current: Template | None = None
        self._judged: set[Template] = set()
        self._losses: deque[float] = deque()
        self._exec_only: str | None = None

    def template_for(self, module: str) -> Template | str:
        """Return the template that forks workers for a module, or why none does."""
        with self._lock:
            reason = self._exec_only or self._refused.get(module)
            if reason is not None:
                return reason
            if module and module not in self._modules:
                self._modules.append(module)
                self._retire()
            if self._current is None:
                return self._next()
            return self._current

    def _next(self) -> Template | str:
        modules = [m for m in self._modules if m not in self._refused]
        # The kernel's bound is for when nobody is left to keep ours.
        seconds = int(self.bounds.warm) + 5
        try:
            self._current = Template(self._environment, modules, seconds)
        except (OSError, WireError) as error:
            return f"the template cannot be started: {error}"
        self.generation += 1
        return self._current

    def is_current(self, template: Template) -> bool:
        """Tell whether new workers come from a template."""
        return template is self._current

    def pid(self) -> int | None:
        """Return the process of the current template; None if there is none."""
        with self._lock:
            return None if self._current is None else self._current.pid

    def spent(self, template: Template, reason: str) -> None:
        """Take note that a template refuses to fork anything any more.

        One that has never forked anything has no better successor.
        """
        with self._lock:
            if self.is_current(template) and not template.has_forked:
                self._exec_only = reason
            self.retire(template)

    def retire(self, template: Template) -> None:
        """Start no more workers from a template."""
        with self._lock:
            if self.is_current(template):
                self._retire()

    def _retire(self) -> None:
        template, self._current = self._current, None
        if template is not None:
            template.let_go()

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Take note of why there is no forking for some modules."""
        with self._lock:
            self._refused.update(refused)

    def lost(self, template: Template, *, was_ready: bool, silence: str = "") -> str:
        """Take note that a template is of no use any more.

        Args:
            template: which.
            was_ready: whether it had imported everything.
            silence: what it has not done, if it lives and is not heard of.

        Returns:
            Why, in words.
        """
        with self._lock:
            reason = self._reason(template, was_ready, silence)
            if template not in self._judged:
                self._judged.add(template)
                self._count_loss(reason)
            self.retire(template)
            return reason

    def _reason(self, template: Template, was_ready: bool, silence: str) -> str:
        module = None if was_ready else template.importing()
        if silence:
            reason = f"the template {silence}"
            if was_ready:
                return reason
            template.kill()
            if module is None:
                # Nobody is to blame but this machine: another one would hang, too.
                self._exec_only = reason
                return reason
            reason = (
                f"agent module {module} was not imported within {self.bounds.warm:g} s"
            )
        else:
            template.wait(1.0)
            reason = f"the template was lost ({template.last_words()})"
            if module is None:
                return reason
            reason = f"{reason} while it imported {module}"
        self._refused[module] = reason
        return reason

    def _count_loss(self, reason: str) -> None:
        now = self.bounds.clock()
        self._losses.append(now)
        while self._losses[0] <= now - self.bounds.period:
            self._losses.popleft()
        if len(self._losses) > self.bounds.restarts:
            self._exec_only = (
                f"{len(self._losses)} templates were lost within "
                f"{self.bounds.period:g} s; the last one: {reason}"
            )

    def close(self) -> None:
        """Let go of the current template."""
        with self._lock:
            self._retire()


Key: TypeAlias = tuple[
    int, tuple[tuple[str, str], ...], tuple[str, ...], TemplateBounds
]

_pools: Final[dict[Key, TemplatePool]] = {}
_lock: Final = threading.Lock()


def acquire(
    environment: Mapping[str, str], modules: tuple[str, ...], bounds: TemplateBounds
) -> TemplatePool:
    """Return the pool for an environment, and hold on to it."""
    with _lock:
        key = _key(environment, modules, bounds)
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = TemplatePool(environment, modules, bounds)
        pool.holders += 1
        return pool


def release(pool: TemplatePool) -> None:
    """Hold on to a pool no longer; the last one to do so ends its template."""
    with _lock:
        pool.holders -= 1
        if pool.holders:
            return
        for key in [key for key, each in _pools.items() if each is pool]:
            del _pools[key]
    pool.close()


def held_pools() -> list[TemplatePool]:
    """Return the pools that somebody in this process holds on to."""
    with _lock:
        return [pool for key, pool in _pools.items() if key[0] == os.getpid()]


def _key(
    environment: Mapping[str, str], modules: tuple[str, ...], bounds: TemplateBounds
) -> Key:
    startup = tuple(sorted(startup_part(environment).items()))
    # A fork of this process must not talk to its parent's templates.
    return os.getpid(), startup, modules, bounds


def close_all() -> None:
    """Let every template of this process end, whoever holds on to it."""
    for pool in held_pools():
        pool.close()

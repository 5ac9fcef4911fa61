"""What a template has imported, and whether it may still be forked for it.

A fork copies one thread, and closes every descriptor but a few. So a module that
started a thread at import, opened something or left a process makes forks unsafe; code
that changed on disk makes them stale. Each is a reason to refuse, told to the driver,
which then starts a fresh interpreter instead.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from nestling.session.errors import NestlingError
from nestling.wire.fork import Fork, cut, startup_part
from nestling.worker.kernel_io import children, has_children, thread_count
from nestling.worker.references_io import load_module

DENIED: Final = ("grpc", "torch.cuda", "tensorflow")
"""Libraries that are known to break in a forked child."""

_OWN: Final = "nestling."
_FDS: Final = Path("/proc/self/fd")


class Refusal(NamedTuple):
    """Why a worker is not forked.

    Attributes:
        reason: in words.
        is_spent: whether no other one is forked either, from now on.
    """

    reason: str
    is_spent: bool


class Warmth:
    """The modules of one template.

    Attributes:
        refused: why no worker is forked for a module, by module.
        spoilt_by: the module that made the template useless for every other one.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.spoilt_by: str | None = None
        self._harm = _closed_stream()
        self._searched = list(sys.path)
        self._searched_by: dict[str, list[str]] = {}
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._environment = startup_part(os.environ)

    def load(self, modules: Iterable[str], before: Callable[[str], None]) -> None:
        """Import agent modules; one that fails or does harm is refused.

        Args:
            modules: their references.
            before: called with each before it is imported.
        """
        known = set(sys.modules)
        for module in modules:
            before(module)
            self._load_one(module)
            if self.spoilt_by is not None:
                break  # what comes after it could not be told from it
        agents = [m for n, m in list(sys.modules.items()) if n not in known]
        own = [m for n, m in list(sys.modules.items()) if n.startswith(_OWN)]
        self._stamps = {f: _stamp(f) for f in _files([*own, *filter(_is_ours, agents)])}

    def searched_by(self, module: str) -> list[str]:
        """Return the module path of a worker for a module; others' folders are not on it."""
        return self._searched_by.get(module, self._searched)

    def _load_one(self, module: str) -> None:
        pid, fds = os.getpid(), _descriptors()
        error = _shadow(module) or _error_of(module)
        if os.getpid() != pid:
            os._exit(0)  # the module forked here; only the template goes on
        harm = _harm(fds)
        if harm is not None:
            self.spoilt_by = module
        told = f"agent module {module} {harm} at import"
        reason = error if harm is None else told
        if reason is None:
            self._searched_by[module] = list(sys.path)
        else:
            self.refused[module] = cut(reason)
        sys.path[:] = self._searched

    # --- before each fork ---------------------------------------------------------

    def reason_against(self, fork: Fork) -> Refusal | None:
        """Say why a worker is not to be forked now, or None."""
        reason = self._spent()
        if reason is not None:
            return Refusal(reason, is_spent=True)
        reason = self._unfit(fork)
        return None if reason is None else Refusal(reason, is_spent=False)

    def _spent(self) -> str | None:
        if self.spoilt_by is not None:
            return self.refused[self.spoilt_by]
        if self._harm is not None:
            return f"something {self._harm} when the template started"
        if self.is_threaded():
            return f"the template has {thread_count()} threads"
        changed = next((f for f, s in self._stamps.items() if _stamp(f) != s), None)
        if changed is not None:
            return cut(f"code changed on disk: {changed}")
        return None

    def is_threaded(self) -> bool:
        """Tell whether there is another thread, which no fork would have."""
        return thread_count() > 1

    def _unfit(self, fork: Fork) -> str | None:
        if fork.module in self.refused:
            return self.refused[fork.module]
        if fork.module and fork.module not in self._searched_by:
            return cut(f"agent module {fork.module} is not one that was imported")
        asked = {os.fsdecode(k): os.fsdecode(v) for k, v in fork.environment.items()}
        return _difference(self._environment, startup_part(asked))


def _difference(own: dict[str, str], asked: dict[str, str]) -> str | None:
    names = sorted(n for n in own.keys() | asked.keys() if own.get(n) != asked.get(n))
    if not names:
        return None
    return cut(f"the environment differs from the template's in {', '.join(names)}")


# --- importing ---------------------------------------------------------------------


def _shadow(module: str) -> str | None:
    """Say which neighbour of an agent's file would be another agent's, if one would.

    Modules are found by their names, and every worker has one name for one module.
    """
    if not module.endswith(".py"):
        return None
    folder = os.path.dirname(os.path.realpath(module))
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        loaded = getattr(sys.modules.get(entry.removesuffix(".py")), "__file__", None)
        if isinstance(loaded, str) and not os.path.realpath(loaded).startswith(folder):
            return f"agent module {module}: its {entry} is loaded from {loaded}"
    return None


def _error_of(module: str) -> str | None:
    """Import a module; say why it cannot be, if so."""
    try:
        load_module(module)
    except NestlingError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001 - interrupts, too
        return f"agent module {module} failed to import: {type(error).__name__}"
    return None


# --- what an import leaves behind --------------------------------------------------


def _harm(fds: dict[str, str]) -> str | None:
    """Say what an import did that a fork cannot stand, or None.

    Args:
        fds: the descriptors that were open before it.
    """
    if has_children():
        _end_children()
        return "left a process"
    if thread_count() > 1:
        return "started a thread"
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return "took SIGCHLD"  # by which a template hears of its workers
    closed = _closed_stream()
    if closed is not None:
        return closed
    opened = [target for fd, target in _descriptors().items() if fds.get(fd) != target]
    if any(target.startswith("socket:") for target in opened):
        return "opened a socket"
    if opened:
        return f"left {opened[0]} open"
    denied = next((name for name in DENIED if name in sys.modules), None)
    return None if denied is None else f"loaded {denied}, which does not bear a fork,"


def _closed_stream() -> str | None:
    """Say which standard stream is closed; what is opened next would be in its place."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            return f"closed {name}"
    return None


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir(_FDS):
        with suppress(OSError):  # the one that listed them
            found[name] = os.readlink(_FDS / name)
    return found


def _end_children() -> None:
    for pid in children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- code on disk ------------------------------------------------------------------


def _files(modules: Sequence[ModuleType]) -> set[str]:
    files = (getattr(module, "__file__", None) for module in modules)
    return {file for file in files if isinstance(file, str)}


def _is_ours(module: ModuleType) -> bool:
    """Tell whether a module is code that is being worked on, not an installed one."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not file.startswith(_INSTALLED)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


_INSTALLED: Final = tuple(
    f"{path}{os.sep}"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)

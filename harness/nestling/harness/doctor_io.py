"""Looking at this system as ``nestling doctor`` does: each thing is tried, not assumed."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Final

import zmq

from nestling.driver.descriptors_io import DESCRIPTORS, STARTING
from nestling.driver.launcher_io import WORKER, worker_environment
from nestling.driver.owners_io import abandoned
from nestling.driver.run_directory_io import bases, new_directory
from nestling.driver.template_io import Template, receive
from nestling.driver.template_launcher_io import DEFAULT_BOUNDS, why_no_template
from nestling.harness.command_io import EXIT_FAILED, EXIT_OK, Result
from nestling.harness.doctor import (
    Check,
    Findings,
    LeftOver,
    doctor_json,
    doctor_text,
)
from nestling.session.errors import NestlingError, WireError
from nestling.wire.endpoint_io import PATH_CAP
from nestling.wire.fork import TemplateReady, decode_from_template

_GET_PARENT_DEATH_SIGNAL: Final = 2
_GET_SUB_REAPER: Final = 37
_AGENT: Final = "nestling.worker"
"""Imported by the template as an agent's module is, which looks at what that does."""
_UNBOUND: Final = "no limit"
_SECONDS: Final = 30.0


def doctor(*, as_json: bool) -> Result:
    """Look, and tell."""
    findings = examine()
    output = doctor_json(findings) if as_json else doctor_text(findings)
    return Result(output, EXIT_OK if findings.is_ok else EXIT_FAILED)


def examine() -> Findings:
    """Look at everything."""
    reason = why_no_template() or _template_problem()
    left_over = []
    for left in abandoned(bases()):
        os.close(left.lock)
        left_over.append(LeftOver(str(left.path), left.owner.pid))
    launcher = "exec" if reason else "template"
    return Findings(tuple(_checks()), launcher, reason, tuple(left_over))


def _checks() -> Iterator[Check]:
    yield _worker()
    yield _place()
    yield _zeromq()
    yield _descriptors()
    yield _pidfd()
    lifeline = "workers look at their lifeline, which one that hangs does not"
    yield _prctl("parent-death signal", _GET_PARENT_DEATH_SIGNAL, lifeline)
    marks = "what tools leave behind is found by the marks in its environment"
    yield _prctl("sub-reaper", _GET_SUB_REAPER, marks)
    yield _proc()
    yield _fork()
    yield _lock("flock")
    yield _lock("OFD locks")
    yield from _limits()
    yield _sqlite()


# --- what there is no doing without ----------------------------------------------


def _worker() -> Check:
    """Start the worker's program; without a descriptor it says so, and ends with 2."""
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", WORKER],
            env=worker_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("worker program", is_present=False, found=str(error))
    if ended.returncode == 2:
        return Check("worker program", is_present=True, found=sys.executable)
    lines = ended.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    found = f"exit code {ended.returncode}: {lines[-1] if lines else ''}"
    return Check("worker program", is_present=False, found=found)


def _place() -> Check:
    name = "run directory"
    try:
        made = new_directory()
    except NestlingError as error:
        return Check(name, is_present=False, found=str(error))
    made.rmdir()
    length = len(os.fsencode(made / "hub.sock"))
    found = f"in {made.parent}, the socket's path {length} of {PATH_CAP} bytes"
    return Check(name, is_present=True, found=found)


def _zeromq() -> Check:
    found = f"libzmq {zmq.zmq_version()}"
    return Check("ZeroMQ over ipc", is_present=bool(zmq.has("ipc")), found=found)


def _descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_shown(soft)}, at most {_shown(hard)}"
    if soft != resource.RLIM_INFINITY:
        workers = max(0, (soft - DESCRIPTORS) // STARTING)
        found += f": for about {workers} workers, {STARTING} each"
    is_enough = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS + STARTING
    return Check("descriptors", is_present=is_enough, found=found)


# --- what there is something instead of -------------------------------------------


def _pidfd() -> Check:
    instead = "ends are polled for, and every worker is a fresh interpreter"
    try:
        fd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(fd, 0)
        finally:
            os.close(fd)
    except (OSError, AttributeError) as error:
        return Check("pidfd", is_present=False, found=str(error), instead=instead)
    return Check("pidfd", is_present=True, found="opened and signalled")


def _prctl(name: str, what: int, instead: str) -> Check:
    value = ctypes.c_int()
    try:
        failed = ctypes.CDLL(None).prctl(what, ctypes.byref(value), 0, 0, 0)
    except (OSError, AttributeError):
        failed = True
    if failed:
        return Check(name, is_present=False, found="no such prctl", instead=instead)
    return Check(name, is_present=True, found="the kernel answers")


def _proc() -> Check:
    pid = os.getpid()
    instead = "what tools leave behind outside of a worker's group is not found"
    try:
        for path in (f"/proc/{pid}/environ", f"/proc/self/task/{pid}/children"):
            with open(path, "rb") as file:
                file.read()
    except OSError as error:
        return Check("/proc", is_present=False, found=str(error), instead=instead)
    return Check("/proc", is_present=True, found="environments and children")


def _fork() -> Check:
    count = threading.active_count()
    found = f"this process has {count} thread{'s' if count > 1 else ''}"
    instead = "every worker is a fresh interpreter"
    return Check("fork", hasattr(os, "fork"), found, instead)


def _lock(name: str) -> Check:
    instead = "owners of run directories are told by pid and start time alone"
    if name != "flock":
        instead = "flock"
    with tempfile.TemporaryFile() as file:
        try:
            if name == "flock":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                # struct flock: type, whence, start, length, pid; all of the file.
                lock = _Lock(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, bytes(lock))
        except (OSError, AttributeError) as error:
            return Check(name, is_present=False, found=str(error), instead=instead)
    return Check(name, is_present=True, found=f"in {tempfile.gettempdir()}")


class _Lock(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_short),
        ("whence", ctypes.c_short),
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("pid", ctypes.c_int),
    )


def _limits() -> Iterator[Check]:
    for name, what in (("processes", "RLIMIT_NPROC"), ("address space", "RLIMIT_AS")):
        number = getattr(resource, what, None)
        if number is not None:
            soft, hard = map(_shown, resource.getrlimit(number))
            yield Check(f"limit of {name}", True, f"{soft}, at most {hard}")


def _shown(limit: int) -> str:
    return _UNBOUND if limit == resource.RLIM_INFINITY else str(limit)


def _sqlite() -> Check:
    found = f"SQLite {sqlite3.sqlite_version}"
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE t (a INTEGER) STRICT")
    except sqlite3.Error as error:
        found += f" knows no STRICT tables ({error})"
        return Check("sqlite store", False, found, instead="a store of JSON Lines")
    finally:
        connection.close()
    return Check("sqlite store", is_present=True, found=f"{found} with STRICT tables")


# --- the template ------------------------------------------------------------------


def _template_problem() -> str | None:
    """Start a template, and say why it forks no worker, or None."""
    environment = worker_environment(os.environ)
    try:
        template = Template(environment, [_AGENT], int(DEFAULT_BOUNDS.warm) + 5)
    except (OSError, WireError) as error:
        return f"the template cannot be started: {error}"
    try:
        return _readiness(template)
    finally:
        template.let_go()


def _readiness(template: Template) -> str | None:
    with template.attach() as sock:
        try:
            if not select.select([sock], [], [], DEFAULT_BOUNDS.warm)[0]:
                template.kill()
                return f"the template was not ready within {DEFAULT_BOUNDS.warm:g} s"
            data = receive(sock)[0]
            ready = decode_from_template(data) if data else None
            if isinstance(ready, TemplateReady):
                return ready.refused.get(_AGENT)
            template.wait(1.0)
            return f"the template was lost ({template.last_words()})"
        finally:
            template.let_go()

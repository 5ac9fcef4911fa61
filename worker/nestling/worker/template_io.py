"""The template: a warm, bare, single-threaded process that forks workers.

A driver starts it as ``python -P -m nestling.worker.template_io FD``. It imports what
workers need and the agent modules it is told, freezes the heap so that forks share it,
and forks on request. It has no socket but those to its driver, no event loop, no
thread, no signal handler: nothing that a fork would break.

Guarantees:

- A fork happens with exactly one thread, or not at all, with a reason.
- Workers die with the template; it ends those of a hub whose channel ends, and all of
  them when its driver is gone.
- An exit is reported once nobody is left of the worker's group, nor of what it left
  behind elsewhere.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, NoReturn

from nestling.session.errors import WireError
from nestling.wire.fork import (
    FORK_FDS,
    Attach,
    Fork,
    Forked,
    ForkRefused,
    FromTemplate,
    Importing,
    TemplateReady,
    Terminate,
    ToTemplate,
    Warm,
    WorkerExited,
    cut,
)
from nestling.wire.launch import OFFLINE
from nestling.worker.agents import pilot_for
from nestling.worker.channel_io import Channel
from nestling.worker.kernel_io import adopt_orphans, call_myself, hear_of_children
from nestling.worker.offspring_io import NOBODY, Offspring
from nestling.worker.prologue_io import (
    LIFELINE,
    Surroundings,
    become_spare,
    become_worker,
    flush,
)
from nestling.worker.rehearsal import TIMES, rehearse
from nestling.worker.spare_io import Spare, pair, wait
from nestling.worker.warmth_io import Refusal, Warmth

LIVE: Final = "nestling.worker.live_agents_io"
"""What the workers of agents need, and those of tapes do not."""

LAST_SECONDS: Final = 2.0
"""So long a template without a driver waits for what it has ended."""


def main(arguments: list[str]) -> int:
    """Run the template; returns only if it was not started by a driver.

    Args:
        arguments: the program's name and the number of the inherited descriptor.
    """
    if len(arguments) != 2 or not arguments[1].isdigit():
        sys.stderr.write("nestling's template is started by a driver, not by hand\n")
        return 2
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hear_of_children()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    adopt_orphans()
    call_myself("nestling:template")
    if OFFLINE in os.environ:
        from nestling.worker.network_io import stay_offline

        stay_offline()
    Template(_moved_up(int(arguments[1]))).run()


def _moved_up(fd: int) -> socket.socket:
    """Keep the descriptor that a fork's lifeline gets free of our own ones."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LIFELINE + 1)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != LIFELINE:
        os.dup2(null, LIFELINE, inheritable=False)
        os.close(null)
    return socket.socket(fileno=moved)


class Template:
    """Serves one driver."""

    def __init__(self, control: socket.socket) -> None:
        self._pid = os.getpid()
        self._started = time.monotonic()
        self._ready: TemplateReady | None = None
        self._control = control.fileno()
        self._poll = select.poll()
        self._channels: dict[int, Channel] = {}
        self._offspring = Offspring(self._poll)
        self._warmth = Warmth()
        self._spare: Spare | None = None
        self._wants_spare = False
        self._add(control)

    def run(self) -> NoReturn:
        """Serve until the driver is gone."""
        while True:
            # A spare is made when there is nothing else to do.
            happened = self._poll.poll(
                0 if self._wants_spare else self._offspring.patience_ms()
            )
            if self._wants_spare and not happened:
                self._make_spare()
            for fd, _ in happened:
                self._handle(fd)
            self._tell(self._offspring.overdue())

    def _handle(self, fd: int) -> None:
        if fd in self._offspring:
            self._tell(self._offspring.handle(fd))
            return
        channel = self._channels[fd]
        channel.flush()
        try:
            received = channel.receive()
        except BlockingIOError:
            received = None
        else:
            if received is None:
                self._over(fd)
                return
        self._poll.modify(fd, channel.interest)
        if received is not None:
            self._obey(fd, *received)

    def _tell(self, exits: list[tuple[int, WorkerExited]]) -> None:
        for owner, exited in exits:
            self._send(owner, exited)

    def _obey(self, owner: int, packet: ToTemplate, fds: list[int]) -> None:
        match packet:
            case Warm():
                self._warm(packet)
            case Attach():
                self._attach(socket.socket(fileno=fds[0]))
            case Fork():
                self._fork(owner, packet, fds)
            case Terminate():
                self._offspring.terminate(packet.pid, owner)

    # --- channels ------------------------------------------------------------------

    def _add(self, sock: socket.socket) -> None:
        self._channels[sock.fileno()] = Channel(sock)
        self._poll.register(sock, select.POLLIN)

    def _attach(self, sock: socket.socket) -> None:
        if self._ready is None:
            raise WireError("a hub was attached before anything was imported")
        self._add(sock)
        self._send(sock.fileno(), self._ready)

    def _send(self, owner: int, packet: FromTemplate, fds: Sequence[int] = ()) -> None:
        channel = self._channels.get(owner)
        if channel is None:
            return  # the hub that asked is gone
        channel.send(packet, fds)
        self._poll.modify(owner, channel.interest)

    def _over(self, fd: int) -> None:
        """End what belonged to a hub that is gone; everything, if it is the driver."""
        if fd == self._control:
            self._end()
        self._poll.unregister(fd)
        self._channels.pop(fd).sock.close()
        self._offspring.kill(fd)

    def _end(self) -> NoReturn:
        deadline = time.monotonic() + LAST_SECONDS
        for fd in self._channels:
            self._poll.unregister(fd)
        self._offspring.kill()
        while not self._offspring.is_empty and time.monotonic() < deadline:
            for fd, _ in self._poll.poll((deadline - time.monotonic()) * 1000):
                self._offspring.handle(fd)
        flush()
        os._exit(0)

    # --- forking -------------------------------------------------------------------

    def _warm(self, warm: Warm) -> None:
        # Nobody looks after a driver that dies while a module hangs: the kernel ends
        # this process then.
        signal.alarm(warm.seconds)
        self._warmth.load(
            warm.modules, lambda m: self._send(self._control, Importing(m))
        )
        signal.alarm(0)
        if warm.modules:
            import_module(LIVE)
        _rehearse()
        gc.collect()
        # What is there now is left alone by every collection, here and in forks,
        # which would otherwise copy each page that holds an object.
        gc.freeze()
        seconds = time.monotonic() - self._started
        refused, spoilt_by = self._warmth.refused, self._warmth.spoilt_by
        self._ready = TemplateReady(refused, spoilt_by, int(seconds * 1000))
        self._wants_spare = spoilt_by is None

    def _fork(self, owner: int, fork: Fork, fds: list[int]) -> None:
        refusal = self._warmth.reason_against(fork)
        if refusal is None and not self._use_spare(owner, fork, fds):
            refusal = self._try_to_fork(owner, fork, fds)
        for fd in fds:
            os.close(fd)
        if refusal is not None:
            if refusal.is_spent:
                self._dismiss_spare()
            reason = cut(refusal.reason)
            self._send(owner, ForkRefused(fork.launch, reason, refusal.is_spent))

    def _make_spare(self) -> None:
        self._wants_spare = False
        if self._warmth.is_threaded():
            return  # a request will be told
        flush()
        try:
            ours, its = pair()
        except OSError:
            return  # a request will be told
        pid = 0
        try:
            pid = os.fork()
            if pid == 0:
                self._become_spare(its.detach())
            self._offspring.add(pid, os.pidfd_open(pid), NOBODY)
        except OSError:
            _undo(pid, [])
            ours.close()
        else:
            self._spare = Spare(pid, ours)
        finally:
            its.close()

    def _use_spare(self, owner: int, fork: Fork, fds: list[int]) -> bool:
        """Make the spare the worker that is asked for; tell whether that went well."""
        if len(fds) != FORK_FDS:
            return False  # a fork of its own will be refused for that
        spare, self._spare = self._spare, None
        self._wants_spare = True
        if spare is None:
            return False
        try:
            pidfd = os.pidfd_open(spare.pid)
        except OSError:  # it was ended, or there is no descriptor left
            spare.dismiss()
            return False
        if not spare.become(fork, fds):
            os.close(pidfd)
            return False
        self._offspring.give(spare.pid, owner)
        self._send(owner, Forked(fork.launch, spare.pid), [pidfd])
        return True

    def _dismiss_spare(self) -> None:
        self._wants_spare = False
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None

    def _become_spare(self, seat: int) -> NoReturn:
        try:
            self._leave_channels()
            become_spare(self._pid, seat, self._adopted)
        finally:
            os._exit(1)  # there is one template

    def _adopted(self, seat: int) -> tuple[Fork, int, int] | None:
        """Touch what a worker touches, and wait for what this spare becomes."""
        _rehearse(times=1)
        adopted = wait(seat)
        if adopted is not None:
            sys.path[:] = self._warmth.searched_by(adopted[0].module)
        return adopted

    def _try_to_fork(self, owner: int, fork: Fork, fds: list[int]) -> Refusal | None:
        flush()
        pidfds: list[int] = []
        pid = 0
        try:
            log, lifeline = fds
            pid = os.fork()
            if pid == 0:
                self._become_worker(fork, Surroundings(self._pid, log, lifeline))
            # The fork does so too: whoever comes first.
            with suppress(OSError):
                os.setpgid(pid, pid)
            pidfds.append(os.pidfd_open(pid))  # one to watch here, one for the hub
            pidfds.append(os.pidfd_open(pid))
        except (OSError, ValueError) as error:  # no process, no descriptor left
            _undo(pid, pidfds)
            return Refusal(f"the template cannot fork: {error}", is_spent=False)
        self._offspring.add(pid, pidfds[0], owner)
        self._send(owner, Forked(fork.launch, pid), pidfds[1:])
        return None

    def _become_worker(self, fork: Fork, around: Surroundings) -> NoReturn:
        try:
            self._leave_channels()
            sys.path[:] = self._warmth.searched_by(fork.module)
            become_worker(fork, around)
        finally:
            os._exit(1)  # there is one template

    def _leave_channels(self) -> None:
        """Let go of what is the template's, in a fork."""
        # Their descriptors are about to be closed, and the numbers used again.
        for channel in self._channels.values():
            channel.sock.detach()


def _rehearse(times: int = TIMES) -> None:
    try:
        rehearse(pilot_for, times)
        # A loop that is closed again leaves nothing behind but what is quick now.
        asyncio.run(asyncio.sleep(0))
    except Exception:  # noqa: BLE001 - workers will say it where somebody sees it
        traceback.print_exc()


def _undo(pid: int, pidfds: list[int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
    if pid:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))

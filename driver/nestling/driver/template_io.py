"""One template process, seen from the driver that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from nestling.driver.traces_io import MARK, new_mark, set_mark
from nestling.session.errors import WireError
from nestling.wire.fork import (
    PACKET_CAP,
    Attach,
    Importing,
    Warm,
    decode_from_template,
    encode_packet,
)

ENTRY: Final = "nestling.worker.template_io"
"""What a template runs as its program."""
LAST_SECONDS: Final = 3.0
"""So long a template may take to end its workers and itself."""
_TAIL_BYTES: Final = 2000


class Template:
    """A template process; several hubs may use it, each over a channel of its own.

    It ends when the last one that holds it lets go.

    Attributes:
        pid: the process.
        mark: what every process below it has in its environment.
        is_ready: whether it has said that it has imported everything.
        has_forked: whether it has ever forked a worker.
    """

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str], seconds: int
    ) -> None:
        """Start it; the first hold on it is the caller's.

        Args:
            environment: the whole of its environment, but for the mark.
            modules: the agent modules that it imports.
            seconds: after so long a time of importing, the kernel ends it.

        Raises:
            OSError: if there is no room for a process or a descriptor.
            WireError: if the modules have names that cannot be told.
        """
        mark = new_mark()
        self.mark = str(mark)
        self.is_ready = self.has_forked = False
        self._holds = 1
        self._lock = threading.Lock()
        self._importing: str | None = None
        warm = encode_packet(Warm(list(modules), seconds))
        # Agents that print at import print into a file that nobody has to remove.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end
        try:
            self._control, theirs = socket_pair()
            with theirs:
                self._process = self._started(environment, theirs.fileno())
        except BaseException:
            self._log.close()
            raise
        self.pid = self._process.pid
        set_mark(self.pid, mark)
        self._tell(warm)

    def _started(
        self, environment: Mapping[str, str], fd: int
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", ENTRY, str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**environment, MARK: self.mark},
                pass_fds=(fd,),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise

    def _tell(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [packet], fds)
        # If it is gone already, the channels will say so.

    # --- channels ----------------------------------------------------------------

    def attach(self) -> socket.socket:
        """Return a new channel to the template, and hold on to it.

        Raises:
            OSError: if there is no descriptor left, or the template does not listen.
        """
        ours, theirs = socket_pair()
        try:
            with theirs:
                self._tell(encode_packet(Attach()), [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        with self._lock:
            self._holds += 1
        return ours

    def let_go(self) -> None:
        """Hold on to it no longer."""
        with self._lock:
            self._holds -= 1
            is_last = not self._holds
        if is_last:
            self._end()

    # --- ending ------------------------------------------------------------------

    def _end(self) -> None:
        self._control.close()
        self.wait(LAST_SECONDS)
        self._log.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and end it after a while."""
        with self._lock:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._kill()

    def kill(self) -> None:
        """End it now, and with it every worker it has forked."""
        with self._lock:
            self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            # It leads a session of its own, and what a module forked is in there, too.
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    # --- what became of it ---------------------------------------------------------

    def importing(self) -> str | None:
        """Return the agent module whose import it began last."""
        with self._lock, suppress(OSError):  # there is no more, or no template
            while data := receive(self._control)[0]:
                with suppress(WireError):
                    packet = decode_from_template(data)
                    if isinstance(packet, Importing):
                        self._importing = packet.module
        return self._importing

    def last_words(self) -> str:
        """Say how it ended, with the last thing that it printed."""
        code = self._process.returncode
        how = "runs" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        tail = self._tail()
        return f"{how}: {tail}" if tail else how

    def _tail(self) -> str:
        # The file's position is the template's, too: it is left alone.
        fd = self._log.fileno()
        start = max(0, os.fstat(fd).st_size - _TAIL_BYTES)
        text = os.pread(fd, _TAIL_BYTES, start).decode("utf-8", "backslashreplace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet with its descriptors; b"" at the end.

    Raises:
        BlockingIOError: if there is none yet.
    """
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(
                sock, PACKET_CAP, 1, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            continue  # told once, if the other end left something unread
        return data, fds


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair that keeps the bounds of packets; neither end blocks."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in pair:
        each.setblocking(False)
    return pair

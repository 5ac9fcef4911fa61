"""Flow control of one stream: how much the hub may send before it must wait.

The receiver opens a window of bytes and frames and gives back what it has consumed.
The sender may send while both counts are above zero, so that a message of any size
gets through: the last one may take the window below zero.

Guarantees, as long as both sides follow the rules:

- No deadlock: when everything sent is consumed, the window is open again.
- The sender never holds more than the window that it was opened with.
"""

from __future__ import annotations

from typing import Final

from nestling.session.errors import WireError

#: The window of a stream unless the receiver says otherwise, in bytes.
WINDOW_BYTES: Final = 256 * 1024
#: The window of a stream unless the receiver says otherwise, in frames.
WINDOW_FRAMES: Final = 64


class Window:
    """What the sending side of a stream may still send.

    Args:
        bytes: the whole window in bytes.
        frames: the whole window in frames.

    Raises:
        WireError: either is below one, so that nothing could ever be sent.
    """

    __slots__ = ("_max_bytes", "_max_frames", "bytes", "frames")

    def __init__(self, bytes: int = WINDOW_BYTES, frames: int = WINDOW_FRAMES) -> None:
        _check_size(bytes, frames)
        self._max_bytes = self.bytes = bytes
        self._max_frames = self.frames = frames

    @property
    def open(self) -> bool:
        """Whether one more message may be sent."""
        return self.bytes > 0 and self.frames > 0

    def spend(self, size: int) -> None:
        """Account for a message of `size` bytes that was sent.

        Raises:
            ValueError: the window was not open; the sender must ask first.
        """
        if not self.open:
            raise ValueError("a message was sent against a closed window")
        self.bytes -= size
        self.frames -= 1

    def grant(self, bytes: int, frames: int) -> None:
        """Take back credit that the receiver gives.

        Raises:
            WireError: it is negative, or more than was spent. Nothing is taken then.
        """
        new_bytes, new_frames = self.bytes + bytes, self.frames + frames
        if bytes < 0 or frames < 0:
            raise WireError(f"a credit of {bytes} bytes and {frames} frames")
        if new_bytes > self._max_bytes or new_frames > self._max_frames:
            raise WireError(
                f"credit for {new_bytes} bytes and {new_frames} frames, "
                f"expected at most {self._max_bytes} and {self._max_frames}"
            )
        self.bytes, self.frames = new_bytes, new_frames


class Refill:
    """What the receiving side of a stream has consumed and not yet given back.

    Args:
        bytes: the whole window in bytes.
        frames: the whole window in frames.

    Raises:
        WireError: either is below one.
    """

    __slots__ = ("_bytes", "_frames", "_max_bytes", "_max_frames")

    def __init__(self, bytes: int = WINDOW_BYTES, frames: int = WINDOW_FRAMES) -> None:
        _check_size(bytes, frames)
        self._max_bytes, self._max_frames = bytes, frames
        self._bytes = self._frames = 0

    def consumed(self, size: int) -> tuple[int, int] | None:
        """Account for a message of `size` bytes that is done with.

        Returns:
            The bytes and frames to grant now, or None while both counts are below
            half of the window: fewer, larger grants cost less.
        """
        self._bytes += size
        self._frames += 1
        if 2 * self._bytes < self._max_bytes and 2 * self._frames < self._max_frames:
            return None
        grant = self._bytes, self._frames
        self._bytes = self._frames = 0
        return grant


def _check_size(bytes: int, frames: int) -> None:
    if bytes < 1 or frames < 1:
        raise WireError(
            f"a window of {bytes} bytes and {frames} frames, expected at least 1"
        )

"""Checksums of the chunks of one call, as they crossed the wire.

A worker that logs chunks names them instead of sending them back. With the name goes a
CRC-32 over the texts of all messages of the call up to the one that held the last of
them; the hub compares it with its own. So a reference proves that these bytes arrived,
and not some other call's.
"""

from __future__ import annotations

from bisect import bisect_left
from zlib import crc32


class ChunkSums:
    """The checksums of one call after each message of chunks."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._sums: list[int] = []

    def add(self, count: int, text: bytes) -> None:
        """Take in a message.

        Args:
            count: how many chunks there are with it.
            text: its body.
        """
        last = self._sums[-1] if self._sums else 0
        self._counts.append(count)
        self._sums.append(crc32(text, last))

    def at(self, count: int) -> int:
        """Return the checksum after the message that held the `count`-th chunk.

        Raises:
            IndexError: if fewer chunks have come.
        """
        return self._sums[bisect_left(self._counts, count)]

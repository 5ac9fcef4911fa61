"""A call's answer as it arrives: chunks not yet taken, how it ends, where it is cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nestling.session.errors import WireError
from nestling.session.jsontext import JsonObject
from nestling.wire.chunk_sums import ChunkSums
from nestling.wire.messages import Purpose


class IncomingCall:
    """The answer to one ``stream`` request.

    Attributes:
        number: the call's number in its session.
        purpose: whether its chunks belong to a turn or to a summary.
        taken: how many chunks the session has taken.
        failure: why the stream failed, once it did.
        cut_cause: who cancelled the call, once somebody did.
    """

    def __init__(self, number: int, purpose: Purpose) -> None:
        self.number = number
        self.purpose: Purpose = purpose
        self.taken = 0
        self.failure: JsonObject | None = None
        self.cut_cause: JsonObject | None = None
        self._arrived: deque[JsonObject] = deque()
        self._received = 0
        self._has_ended = False
        self._cut_after: int | None = None
        self._sums = ChunkSums()

    def receive(self, first: int, chunks: Sequence[JsonObject], text: bytes) -> None:
        """Take in chunks, which must continue what came before, and their text.

        Raises:
            WireError: if they do not, or the call has ended.
        """
        if self._has_ended or first != self._received:
            raise WireError(
                f"call {self.number}: chunks from {first}, expected {self._received}"
            )
        self._arrived.extend(chunks)
        self._received += len(chunks)
        self._sums.add(self._received, text)

    @property
    def sum_taken(self) -> int:
        """The checksum of what arrived, up to the chunk that was taken last."""
        return self._sums.at(self.taken)

    def end(self, total: int, failure: JsonObject | None = None) -> None:
        """Take note that the stream ended after `total` chunks.

        Raises:
            WireError: if another number of chunks came, or it had ended before.
        """
        if self._has_ended or total != self._received:
            raise WireError(
                f"call {self.number} ends after {total} chunks, {self._received} came"
            )
        self._has_ended = True
        self.failure = failure

    def cut(self, after: int | None, cause: JsonObject) -> None:
        """Stop the call once `after` chunks are taken; None means now."""
        self._cut_after = self.taken if after is None else after
        self.cut_cause = cause

    def take(self) -> JsonObject | None:
        """Return the next chunk, or None if none may be taken now."""
        if self.is_cut or not self._arrived:
            return None
        self.taken += 1
        return self._arrived.popleft()

    @property
    def may_take(self) -> bool:
        """Whether there is something to do: a chunk to take, or the place of a cut."""
        return self.is_cut or bool(self._arrived)

    @property
    def is_cut(self) -> bool:
        """Whether the call was cancelled at the place where it stands."""
        return self._cut_after is not None and self.taken >= self._cut_after

    @property
    def is_over(self) -> bool:
        """Whether the stream ended and every chunk of it was taken."""
        return self._has_ended and not self._arrived

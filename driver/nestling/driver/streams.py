"""One call being answered: what was served of it, and what may be served next.

Flow control: chunks are sent while the worker's window is open, many in one message;
at zero credit nothing is taken from the answer. A provider's answer grows while it is
served, and may be ahead of the worker by no more than ``AHEAD`` chunks.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from nestling.driver.director import Answer, CallRequest, Cut, EncodedChunks
from nestling.session.chunk import FAILED, chunk_problem, is_finish
from nestling.session.errors import (
    JsonDomainError,
    ProviderError,
    UnreadableError,
    WireError,
)
from nestling.session.event import Event
from nestling.session.fold import fold
from nestling.session.jsontext import Json, JsonObject, check, shown
from nestling.session.shape import block_problem
from nestling.wire.chunk_sums import ChunkSums
from nestling.wire.codec import size_problem
from nestling.wire.credit import Window

MESSAGE_BYTES: Final = 256 * 1024
"""A message of chunks is closed once it holds this much."""

AHEAD: Final = 64
"""A provider may have yielded so many chunks that were not served yet."""

BAD_CHUNK: Final = "BAD_CHUNK"
"""The code of a call whose provider yielded what is no chunk."""

NO_FINISH: Final = "TRANSPORT"
"""The code of a call whose provider stopped before its finish chunk."""


BLOCKS: Final = ("text", "reasoning", "tool-call", "image")
"""What a provider's message may be made of."""


class Batch(NamedTuple):
    """Chunks for one message: the number of the first, how many, and the body."""

    first: int
    length: int
    body: bytes


class OpenCall:
    """A call that is being served, or was the last one of its session.

    Attributes:
        chunks: the answer, as far as it is known.
        answer: the whole answer, with how it ends; None while a provider makes it.
        served: how many chunks were sent.
        is_closed: whether the end of the answer was sent, too.
        cut: where a provider's answer is cut short, if it comes so far.
        is_at_gate: whether a gate holds the answer.
        heard_at: when its provider was last heard of, or let go on, in monotonic
            seconds.
    """

    def __init__(
        self,
        request: CallRequest,
        answer: Answer | None,
        window: Window,
        cut: Cut | None = None,
    ) -> None:
        self.request = request
        self.chunks = EncodedChunks(()) if answer is None else answer.chunks
        self.answer = answer
        self.window = window
        self.served = 0
        self.is_closed = False
        self.heard_at = 0.0
        self.cut = cut
        self.is_at_gate = False
        is_paced = answer is not None and answer.pace is not None
        self._released: float = 0 if is_paced else inf
        self._logged = 0
        self._allowed = AHEAD
        self._times: list[int] = []
        self._sums = ChunkSums()

    @property
    def is_served(self) -> bool:
        """Whether every chunk that is known was sent."""
        return self.served == len(self.chunks)

    @property
    def may_end(self) -> bool:
        """Whether the end of the answer may be sent."""
        return self.is_served and self._released > len(self.chunks)

    @property
    def is_paced(self) -> bool:
        """Whether some of the answer waits for its time, which no gate holds."""
        is_open = not self.is_closed and self._released <= len(self.chunks)
        return is_open and not self.is_at_gate

    def release(self, count: int, *, is_at_gate: bool) -> None:
        """Let so many chunks be served, in all; one more than there are, and the end."""
        self._released, self.is_at_gate = count, is_at_gate

    def hold(self) -> None:
        """Serve no more of the answer."""
        self.release(self.served, is_at_gate=True)

    @property
    def is_cut_due(self) -> bool:
        """Whether the answer has come to where it is cut short."""
        if self.cut is None or self.served != self.cut.after:
            return False
        return not (self.served and is_finish(self.chunks.objects[self.served - 1]))

    @property
    def _limit(self) -> int:
        """How many chunks may be served for now."""
        limit = min(len(self.chunks), self._released)
        if self.cut is not None and self.served < self.cut.after:
            limit = min(limit, self.cut.after)
        return int(limit)

    @property
    def is_ahead(self) -> bool:
        """Whether the provider has yielded all that it may for now."""
        return len(self.chunks) >= self._allowed

    def grow(self, chunk: Json) -> None:
        """Take the next chunk from the provider.

        Raises:
            ProviderError: if it is no chunk that a log can hold.
        """
        try:
            self._check(chunk)
            self.chunks.append(chunk)
        except (JsonDomainError, UnreadableError) as error:
            text = f"chunk {len(self.chunks)}: {error}"
            raise ProviderError(text, BAD_CHUNK) from None

    def _check(self, chunk: Json) -> None:
        check(chunk)
        problem = chunk_problem(chunk) or size_problem(chunk)
        if problem is not None:
            raise UnreadableError(problem)
        if is_finish(chunk):  # a worker must be able to make a message of it
            folded = fold([*self.chunks.objects, chunk])
            problem = next(filter(None, map(_block_problem, folded.blocks)), None)
            if folded.finish["kind"] in FAILED:
                problem = _failure_problem(folded.finish)
            if problem is not None:
                raise UnreadableError(problem)

    def finish(self, failure: JsonObject | None) -> None:
        """Take note that the provider yields nothing more."""
        chunks = self.chunks
        if failure is None and not (chunks and is_finish(chunks.objects[-1])):
            text = "the provider's stream ended without a finish chunk"
            code = NO_FINISH if chunks else BAD_CHUNK  # what says nothing is no stream
            failure = dict(ProviderError(text, code).failure())
        self.answer = Answer(chunks, failure)

    def allowance(self) -> int | None:
        """Return how many chunks the provider may yield in all, when that has grown."""
        allowed = self.served + AHEAD
        if allowed - self._allowed < AHEAD // 2:
            return None
        self._allowed = allowed
        return allowed

    def next_batch(self, now: int) -> Batch | None:
        """Take the next chunks that the window allows; None if it allows none.

        Args:
            now: epoch milliseconds, the time the chunks will have in the log.
        """
        first, limit = self.served, self._limit
        if first >= limit or not self.window.open:
            return None
        texts, size = [], 0
        all_texts = self.chunks.texts
        for number in range(first, limit):
            text = all_texts[number]
            texts.append(text)
            size += len(text) + 1
            if size >= min(self.window.bytes, MESSAGE_BYTES):
                break
        body = b"[" + b",".join(texts) + b"]"
        self.served += len(texts)
        self._times.extend([now] * len(texts))
        self._sums.add(self.served, body)
        self.window.spend(len(body))
        return Batch(first, len(texts), body)

    def logged_events(self, start: int, end: int, crc: int, seq: int) -> list[Event]:
        """Return the events of chunks that the worker says it has logged.

        Raises:
            WireError: if they were not served, do not continue what it logged, or
                other bytes arrived than were sent.
        """
        if start != self._logged or not start < end <= self.served:
            raise WireError(
                f"call {self.request.number}: chunks {start} to {end} were logged, "
                f"{self._logged} of {self.served} served ones were before"
            )
        if crc != self._sums.at(end):
            raise WireError(
                f"call {self.request.number}: what arrived as chunks {start} to {end} "
                "is not what was sent"
            )
        self._logged = end
        place = {"turn": self.request.turn, "step": self.request.step}
        chunks, times = self.chunks.objects, self._times
        return [
            Event(
                seq + index - start,
                "assistant/chunk",
                times[index],
                {**place, "chunk": chunks[index]},
            )
            for index in range(start, end)
        ]


def _failure_problem(reason: JsonObject) -> str | None:
    failure = reason.get("failure", {})
    if type(failure) is dict:
        return None
    return f"failure of a finish chunk must be an object, found {shown(failure)}"


def _block_problem(block: JsonObject) -> str | None:
    """Say what keeps a message of a provider from having a block, if anything."""
    if block.get("type") not in BLOCKS:
        # A reader keeps what it does not know; but a slip would pass for an answer.
        found, known = shown(block.get("type")), ", ".join(BLOCKS)
        return f"a block has the type {found}, expected one of {known}"
    return block_problem(block)

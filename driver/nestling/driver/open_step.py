"""The tool calls of a session's open step, and the requests that stand on them.

A worker may ask for a tool's result, or delegate, only for a tool call that its own log
holds; each place has one request. The hub reads that off its copy of the log and
believes nothing that the request itself says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nestling.session.errors import WireError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, shown
from nestling.session.place import Place
from nestling.session.surface import is_replacement


class OpenStep:
    """Follows a log, and checks the requests of its open step."""

    def __init__(self) -> None:
        self._turn = 0
        self._step = 0
        self._blocks: dict[int, tuple[str, int]] = {}
        self._called: dict[str, list[int]] = {}
        self._places: set[Place] = set()
        self._tools: set[Place] = set()
        self._results = 0

    def take(self, event: Event) -> None:
        """Take in the next event of the log."""
        if is_replacement(event.surface_op):
            return  # it rewrites what a model sees, not what this step's model said
        match event.type:
            case "turn/start":
                self._begin(event.data["turn"], 0)
            case "turn/end":
                self._begin(0, 0)
            case "step/start":
                self._begin(event.data["turn"], event.data["step"])
            case "step/end":
                self._begin(event.data["turn"], 0)
            case "assistant/message":
                self._blocks = _tool_calls(event.data["message"]["content"])
            case "tool/result":
                self._results += 1
            case "tool/call":
                self._called.setdefault(event.data["callId"], []).append(event.seq)

    def _begin(self, turn: int, step: int) -> None:
        self._turn, self._step = turn, step
        self._blocks, self._called, self._places = {}, {}, set()
        self._tools = set()
        self._results = 0

    def owed_before(self, block: int) -> int:
        """Return how many tool calls before a block's have no result yet."""
        return max(0, sum(each < block for each in self._blocks) - self._results)

    def claim_tool(self, place: Place, call_id: str, length: int) -> None:
        """Take note of a request for a tool's result, as ``claim`` does."""
        self._check_step(place)
        if place.block is None:
            raise WireError("a tool request without a block")
        self._check_call(place.block, call_id, length)
        if place in self._tools:
            raise WireError(f"a second request of turn {place.turn}, step {place.step}")
        self._tools.add(place)

    def claim(self, place: Place, call_id: str, length: int) -> None:
        """Take note of a delegation, of which each place has one.

        Args:
            place: where it says that it stands.
            call_id: the tool call that it says it stands on; "" outside of tools.
            length: how many events of the log it was made from.

        Raises:
            WireError: if that place had one, is not in the open step, names more than
                one thing to tell it apart by, or is no tool call that those events
                hold.
        """
        turn, step, block, n, key = place
        self._check_step(place)
        if key is not None and (block is not None or n > 0):
            raise WireError(f"a delegation names both a key and block {block}, n {n}")
        if block is not None:
            self._check_call(block, call_id, length)
        if place in self._places:
            raise WireError(f"a second request of turn {turn}, step {step}")
        earlier = Place(turn, step, block, n - 1)
        if n > 0 and earlier not in self._places:
            raise WireError(f"delegation {n} of block {block} before the one before it")
        self._places.add(place)

    def _check_step(self, place: Place) -> None:
        turn, step = place.turn, place.step
        if (turn, step) != (self._turn, self._step) or turn == 0:
            raise WireError(
                f"a request of turn {turn}, step {step}; "
                f"the log is at {self._turn}, {self._step}"
            )

    def _check_call(self, block: int, call_id: str, length: int) -> None:
        held_id, nth = self._blocks.get(block, (None, 0))
        started = self._called.get(call_id, ())
        is_held = held_id == call_id and nth < len(started)
        if not is_held or started[nth] >= length:
            raise WireError(
                f"a request for block {block} of turn {self._turn}, step {self._step}, "
                f"where the first {length} events of the log hold no tool call "
                f"{shown(call_id)}"
            )


def _tool_calls(content: Sequence[JsonObject]) -> dict[int, tuple[str, int]]:
    """Return the id of each tool-call block, and how many before it have that id.

    A model may repeat an id: the k-th call is the k-th block that has it.
    """
    blocks: dict[int, tuple[str, int]] = {}
    seen: Counter[str] = Counter()
    for position, block in enumerate(content):
        if block["type"] == "tool-call":
            blocks[position] = block["id"], seen[block["id"]]
            seen[block["id"]] += 1
    return blocks

"""Of what a session may have any number of, a further one is no more work.

What is counted is how many lines each function runs, for so many, twice and four times
as many: the second step must not cost more than twice the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from compose.trees import finished, root_with_turn
from nestling.driver.director import EncodedChunks
from nestling.driver.instructions import Abort, Exited
from nestling.harness.compose import (
    Composer,
    Tree,
    fork_call,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.scenario import build_scenario
from nestling.harness.support import hindrances
from nestling.session.reading import Recording
from nestling.wire.messages import Chunks, Credit
from support.directors import Scripted, saying
from support.growth import lines_by_function
from support.hubs import GONE, Kit
from support.logs import Log
from support.replays import recordings_of, replayed
from support.session_logs import delta, finish

FEW: Final = 8
COUNTS: Final = (FEW, 2 * FEW, 4 * FEW)

KNOWN: Final = {
    # A step, no growth: a text with few brackets needs no more than to count them.
    "jsontext.py _is_shallow",
    # One hash over 32 bytes for each message, as docs/notes says of the request digest.
    "surface.py Surface.request_digest.<locals>.<genexpr>",
    # The runner looks at every line that something may come by; it is no hub.
    "tape_runner.py TapeRunner.run.<locals>.<genexpr>",
}


def too_much(act: Callable[[int], Callable[[], object]]) -> list[str]:
    """Name the functions in which each further one is more work than the last.

    Args:
        act: given how many, prepares everything, and returns what is counted.
    """
    act(FEW)()  # what is made once is made
    few, more, many = (lines_by_function(act(count)) for count in COUNTS)
    found = (name for name in many if _grows(name, few, more, many))
    return sorted(set(found) - KNOWN)


def _grows(name: str, *counts: Counter[str]) -> bool:
    few, more, many = (count[name] for count in counts)
    # Where a batch ends a little earlier or later, a few lines come or go.
    return many - more > 2 * (more - few) + FEW


# --- recordings ----------------------------------------------------------------


def ended(root: Composer) -> list[Recording]:
    root.says(text("That was all."))
    root.end()
    return recordings_of(Tree(root))


def turns(count: int) -> list[Recording]:
    root = root_with_turn()
    for _ in range(count):
        root.says(text("x"))
        root.end()
        root.turn("Go on.")
    return ended(root)


def steps(count: int) -> list[Recording]:
    root = root_with_turn()
    for _ in range(count):
        (call,) = root.says(tool_call("read", {"path": "x"}))
        root.result(call, "y")
        root.step()
    return ended(root)


def tools_of_a_message(count: int) -> list[Recording]:
    root = root_with_turn()
    calls = root.says(*(tool_call("read", {"path": f"{n:03}"}) for n in range(count)))
    root.calls(*calls)
    for call in calls:
        root.result(call, "x")
    root.step()
    return ended(root)


def children_of_a_message(count: int) -> list[Recording]:
    root = root_with_turn()
    calls = root.says(*(spawn_call("try", f"Try {n:03}.") for n in range(count)))
    root.calls(*calls)
    children = [finished(root.spawn(call)) for call in calls]
    for child in children:
        root.returns(child)
    root.step()
    return ended(root)


def forks_of_a_message(count: int) -> list[Recording]:
    root = root_with_turn()
    root.says(text("x"))
    root.end()
    root.turn("Go on.")
    calls = root.says(*(fork_call("try", f"Try {n:03}.") for n in range(count)))
    root.calls(*calls)
    children = [finished(root.fork(call)) for call in calls]
    for child in children:
        root.returns(child)
    root.step()
    return ended(root)


def cancelled_turns(count: int) -> list[Recording]:
    root = root_with_turn()
    for _ in range(count):
        (call,) = root.says(tool_call("bash", {"command": "true"}))
        root.result(call, "")
        root.step()
        root.abort()
        root.turn("Go on.")
    return ended(root)


def cut_calls(count: int) -> list[Recording]:
    root = root_with_turn()
    for _ in range(count):
        root.starts_saying(text("Starting a long task"), chunks=3)
        root.abort()
        root.turn("Go on.")
    return ended(root)


def retries(count: int) -> list[Recording]:
    root = root_with_turn()
    for _ in range(count):
        root.fails("SERVER", text("half"))
        root.retry()
    return ended(root)


def blocks_of_a_message(count: int) -> list[Recording]:
    root = root_with_turn()
    root.says(*(text("one, two, three") for _ in range(count)))
    root.end()
    return recordings_of(Tree(root))


def inputs(count: int) -> list[Recording]:
    """Before a call, and while it answers."""
    log = Log("root").turn("go")
    for _ in range(count):
        log.add("note", 1)
    first = len(log.rows)
    log.chunks([delta("x")])
    for _ in range(count):
        log.add("note", 1)
    log.chunks([finish()])
    sources = [first, len(log.rows) - 1]
    log.message([{"type": "text", "text": "x"}], sourceEventSeqs=sources)
    return [log.end().recording()]


RECORDINGS: Final[list[Callable[[int], list[Recording]]]] = [
    *(turns, steps, tools_of_a_message, children_of_a_message, forks_of_a_message),
    *(cancelled_turns, cut_calls, retries, blocks_of_a_message, inputs),
]


@pytest.mark.parametrize("make", RECORDINGS)
def test_understanding_a_recording(make: Callable[[int], list[Recording]]) -> None:
    def act(count: int) -> Callable[[], object]:
        tree = make(count)
        return lambda: hindrances(build_scenario("many", tree))

    assert too_much(act) == []


@pytest.mark.parametrize("make", RECORDINGS)
def test_replaying_a_recording(make: Callable[[int], list[Recording]]) -> None:
    def act(count: int) -> Callable[[], object]:
        scenario = build_scenario("many", make(count))
        assert replayed(scenario).problems == []
        return lambda: replayed(scenario)

    assert too_much(act) == []


def test_a_loop_within_a_loop_would_be_seen() -> None:
    def loop(count: int) -> None:
        for n in range(count):
            for _ in range(n):
                pass

    assert too_much(lambda count: lambda: loop(count)) == [
        "test_growth.py test_a_loop_within_a_loop_would_be_seen.<locals>.loop"
    ]


# --- at the hub ----------------------------------------------------------------


def family(count: int) -> Kit:
    kit = Kit(Scripted())
    peer = kit.peer()
    peer.begin()
    peer.asks(count)
    for block in range(count):
        peer.delegate(block)
        kit.peer(block + 1)
    return kit


def test_a_tree_that_ends_from_its_root_on() -> None:
    def act(count: int) -> Callable[[], object]:
        kit = family(count)

        def end() -> None:
            for session in list(kit.hub.tree):
                kit.tell(Exited(session.launch, GONE))

        return end

    assert too_much(act) == []


def test_a_tree_that_is_aborted_while_most_of_it_waits() -> None:
    def act(count: int) -> Callable[[], object]:
        kit = Kit(Scripted())
        peer = kit.peer()
        peer.begin()
        peer.asks(count)
        for block in range(count):
            peer.delegate(block)
        return lambda: kit.tell(Abort("enough"))

    assert too_much(act) == []


class Read(list[bytes]):
    """The texts of chunks, and how many were read."""

    seen = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.seen += len(found) if isinstance(index, slice) else 1
        return found


def test_an_answer_that_is_taken_in_small_pieces() -> None:
    """What is copied counts, too, which is no line of Python."""
    director = Scripted()
    chunks = EncodedChunks([*(delta("x") for _ in range(199)), finish()])
    read = Read(chunks.texts)
    chunks.texts = read
    director.answers["root"] = [saying()._replace(chunks=chunks)]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.stream(credit_bytes=1, credit_frames=1)
    for _ in range(199):
        said = kit.sent("w0")[-1]
        assert isinstance(said.message, Chunks)
        peer.say(Credit(0, 0, len(said.body), 1))
    assert kit.session(0).call is not None
    served = [s for s in kit.sent("w0") if isinstance(s.message, Chunks)]
    assert len(served) == len(chunks) == 200
    assert read.seen <= 400

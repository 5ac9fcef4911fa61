"""Composed trees, one for each thing that a composer can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nestling.harness.compose import (
    Call,
    Composer,
    Tree,
    fork_call,
    reasoning,
    spawn_call,
    text,
    tool_call,
)

START: Final = 1_000


def root_with_turn(prompt: str = "Begin.") -> Composer:
    """Return a root whose first turn has just begun."""
    root = Composer("root", START)
    root.turn(prompt)
    return root


def root_with_fact() -> Composer:
    """Return a root that has one completed turn, in its second one."""
    root = root_with_turn("The tide turns at noon.")
    root.says(reasoning("Noted."), text("OK"))
    root.end()
    root.turn("Go on.")
    return root


def finished(child: Composer, answer: str = "done") -> Composer:
    """Run a child's only turn."""
    child.turn()
    child.says(text(answer))
    child.end()
    return child


def plain_answer() -> Tree:
    root = root_with_fact()
    root.says(reasoning("Think first, then answer."), text("A longer answer, cut up."))
    root.end()
    return Tree(root)


def silent_answer() -> Tree:
    root = root_with_turn()
    root.says()
    root.end()
    root.begin()
    root.end()
    return Tree(root)


def retried_call() -> Tree:
    root = root_with_turn()
    root.fails("SERVER", text("half an ans"))
    root.retry()
    root.fails("EMPTY_RESPONSE")
    root.retry(delay_ms=1000)
    root.says(text("Recovered."))
    root.end()
    return Tree(root)


def failed_turn() -> Tree:
    root = root_with_turn()
    root.fails("QUOTA", message="nothing left")
    root.end()
    root.turn("Again?")
    root.says(text("Now it works."))
    root.end()
    return Tree(root)


def cut_off_answer() -> Tree:
    root = root_with_turn()
    root.cut_off(text("Writing it now."), tool_call("write", '{"path":"a.txt","te'))
    root.end()
    return Tree(root)


def one_tool() -> Tree:
    root = root_with_turn()
    (call,) = root.says(text("Look."), tool_call("read", {"path": "log.txt"}))
    root.result(call, "2 lines", meta={"lines": 2})
    root.step("And hurry.")
    (call,) = root.says(tool_call("read", {"path": "gone.txt"}))
    root.result(
        call,
        "Error: no such file",
        is_error=True,
        error={"name": "FsError", "code": "FS_NOT_FOUND"},
    )
    root.step()
    root.says(text("Two lines; the other is gone."))
    root.end()
    return Tree(root)


def parallel_tools() -> Tree:
    root = root_with_turn()
    calls = root.says(*(tool_call("read", {"path": name}) for name in "abc"))
    root.calls(*calls)
    for call in calls:
        root.result(call, call.arguments)
    root.step()
    root.says(text("Read."))
    root.end()
    return Tree(root)


def spawn_and_fork() -> Tree:
    root = root_with_fact()
    (call,) = root.says(reasoning("Ask."), spawn_call("ask", "Say yes."))
    root.returns(finished(root.spawn(call), "yes"))
    root.step()
    (call,) = root.says(text("Ask again."), fork_call("recall", "When?"))
    root.returns(finished(root.fork(call), "noon"))
    root.step()
    root.says(text("yes, noon"))
    root.end()
    return Tree(root)


def first_turn_fork() -> Tree:
    root = root_with_turn()
    (call,) = root.says(fork_call("recall", "What was said?"))
    root.returns(finished(root.fork(call), "nothing"))
    root.end()
    return Tree(root)


def parallel_children() -> Tree:
    root = root_with_fact()
    calls = root.says(
        text("Both."), spawn_call("twin", "Same."), spawn_call("twin", "Same.")
    )
    root.calls(*calls)
    children = [root.spawn(call) for call in calls]
    # The later sibling finishes first: results still stand in the model's order.
    for child in reversed(children):
        finished(child, child.id)
    for child in children:
        root.returns(child)
    root.end()
    return Tree(root)


def nested_forks() -> Tree:
    root = root_with_fact()
    (call,) = root.says(fork_call("outer", "Go deeper."))
    child = root.fork(call)
    child.turn()
    (inner_call,) = child.says(fork_call("inner", "Deepest."))
    child.returns(finished(child.fork(inner_call), "inner, mid-turn"))
    child.end()
    child.turn("Once more.")
    inner_calls = child.says(
        fork_call("late", "Deepest again."), spawn_call("fresh", "From nothing.")
    )
    child.calls(*inner_calls)
    child.returns(finished(child.fork(inner_calls[0]), "inner, later"))
    child.returns(finished(child.spawn(inner_calls[1]), "fresh"))
    child.step()
    child.says(text("outer"))
    child.end()
    root.returns(child)
    root.end()
    return Tree(root)


def many_children_of_one_call() -> Tree:
    root = root_with_turn()
    arguments = {"description": "all", "prompt": "Each."}
    (call,) = root.says(tool_call("fan_out", arguments))
    for _ in range(3):
        finished(root.spawn(call))
    root.result(call, "three answers")
    root.end()
    return Tree(root)


def aborted_call() -> Tree:
    root = root_with_turn()
    root.starts_saying(reasoning("hm"), text("Starting a long task"), chunks=5)
    root.abort()
    root.turn("Go on.")
    root.says(text("Gone on."))
    root.end()
    return Tree(root)


def aborted_tool_call() -> Tree:
    root = root_with_turn()
    root.starts_saying(tool_call("bash", {"command": "sleep 60"}), chunks=2)
    root.abort()
    return Tree(root)


def aborted_between_calls() -> Tree:
    root = root_with_turn()
    (call,) = root.says(tool_call("bash", {"command": "true"}))
    root.result(call, "")
    root.step()
    root.abort()
    return Tree(root)


def crashed_call() -> Tree:
    root = root_with_turn()
    root.starts_saying(text("Nobody will read the end"), chunks=2)
    root.crash()
    return Tree(root)


def crashed_tool() -> Tree:
    root = root_with_turn()
    calls = root.says(*(tool_call("bash", {"command": c}) for c in ("make", "ls")))
    root.calls(calls[0])
    root.crash()
    return Tree(root)


def unlucky_children() -> Tree:
    root = root_with_fact()
    endings: list[Callable[[Composer], None]] = [
        lambda child: _started(child).crash(),
        lambda child: _started(child).abort("parent"),
        lambda child: _failed(child).end(),
        lambda child: child.cut_off(text("too long")),
    ]
    calls = root.says(*(spawn_call("try", f"Try {n}.") for n in range(len(endings))))
    for call, ending in zip(calls, endings, strict=True):
        _child(root, call, ending)
    root.step()
    root.says(text("All of them failed."))
    root.end()
    return Tree(root)


def _child(root: Composer, call: Call, ending: Callable[[Composer], None]) -> None:
    child = root.spawn(call)
    child.turn()
    ending(child)
    if child.log.turns.turn is not None:
        child.end()
    root.returns(child)


def _started(child: Composer) -> Composer:
    child.starts_saying(text("half an answer"), chunks=2)
    return child


def _failed(child: Composer) -> Composer:
    child.fails("SERVER")
    return child


TREES: Final[dict[str, Callable[[], Tree]]] = {
    compose.__name__: compose
    for compose in (
        plain_answer,
        silent_answer,
        retried_call,
        failed_turn,
        cut_off_answer,
        one_tool,
        parallel_tools,
        spawn_and_fork,
        first_turn_fork,
        parallel_children,
        nested_forks,
        many_children_of_one_call,
        aborted_call,
        aborted_tool_call,
        aborted_between_calls,
        crashed_call,
        crashed_tool,
        unlucky_children,
    )
}

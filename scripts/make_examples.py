"""Make the recordings under ``examples/``; running it twice changes nothing.

Usage: ``python scripts/make_examples.py [FOLDER]``, FOLDER being ``examples`` of this
repository by default. The examples were composed here, not recorded from a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nestling.harness.compose import (
    Composer,
    Tree,
    fork_call,
    reasoning,
    spawn_call,
    text,
)
from nestling.harness.scenario_write_io import write_scenario

CREATED_AT: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, in milliseconds."""

SYSTEM: Final = "You keep the harbour's books and may delegate to subagents."


def mixed() -> Tree:
    """Compose a root with a spawn child and a fork child.

    The fork child can answer only from the conversation that it inherits.
    """
    root = Composer("harbour", CREATED_AT, system=SYSTEM)
    root.turn("Note for later: the harbour code is LANTERN. Answer OK.")
    root.says(reasoning("A code to keep: LANTERN. I only confirm."), text("OK"))
    root.end()
    root.turn(
        "Have a fresh helper say GULL, then have one that knows our conversation "
        "name the harbour code. Report both words."
    )
    _ask_spawn_child(root)
    root.step()
    _ask_fork_child(root)
    root.step()
    root.says(
        reasoning("The first helper said GULL, the second knew the code."),
        text("The helper said GULL, and the harbour code is LANTERN."),
    )
    root.end()
    return Tree(root)


def _ask_spawn_child(root: Composer) -> None:
    (call,) = root.says(
        reasoning("A helper without our conversation will do for the first word."),
        spawn_call("Say GULL", "Answer with the single word GULL."),
    )
    child = root.spawn(call)
    child.turn()
    child.says(reasoning("One word is asked for."), text("GULL"))
    child.end()
    root.returns(child)


def _ask_fork_child(root: Composer) -> None:
    (call,) = root.says(
        text("Now the code."),
        fork_call("Recall the code", "Which harbour code was noted? One word."),
    )
    child = root.fork(call)
    child.turn()
    child.says(
        reasoning("The code was noted in the first turn: LANTERN."), text("LANTERN")
    )
    child.end()
    root.returns(child)


EXAMPLES: Final[dict[str, Callable[[], Tree]]] = {"mixed": mixed}


def main(arguments: list[str]) -> None:
    """Write every example into its folder."""
    default = Path(__file__).resolve().parent.parent / "examples"
    folder = Path(arguments[0]) if arguments else default
    for name, compose in EXAMPLES.items():
        write_scenario(folder / name, compose().files())
        print(f"{name}: written")


if __name__ == "__main__":
    main(sys.argv[1:])

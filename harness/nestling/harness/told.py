"""What a recorded session was told, turn by turn, and what of it was told again."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nestling.driver.director import Prompt
from nestling.session.event import Event


class ToldTurn(NamedTuple):
    """One turn.

    Attributes:
        turn: its number.
        prompt: what the user said; None if the log does not hold it.
    """

    turn: int
    prompt: Prompt | None


def told_turns(own: Sequence[Event]) -> list[ToldTurn]:
    """Return what the user said in each of a session's own turns."""
    turns: list[ToldTurn] = []
    for event in own:
        if event.type == "turn/start":
            turns.append(ToldTurn(event.data["turn"], None))
        elif event.type == "user/message" and turns and turns[-1].prompt is None:
            source = event.data.get("source")
            if type(source) is dict and source.get("kind") == "user":
                turns[-1] = turns[-1]._replace(prompt=event.data["content"])
    return turns


def with_told_again(
    prompts: Sequence[Prompt], turns: Sequence[ToldTurn], fatal: AbstractSet[int]
) -> list[Prompt]:
    """Return what a root is told so that it is told again what it was told again then.

    A session that was restarted after its worker had died begins with what it had not
    finished. Whoever names a root's prompts does not say so: the log does, by a turn
    more than there are prompts.

    Args:
        prompts: those that somebody named.
        turns: the recorded ones.
        fatal: the turns in which a worker died.
    """
    told: list[Prompt] = []
    left = list(prompts)
    for n, each in enumerate(turns):
        before = turns[n - 1] if n else None
        may_be_again = (
            before is not None
            and before.turn in fatal
            and (before.prompt is None or before.prompt == each.prompt)
        )
        if may_be_again and len(turns) - n > len(left):
            told.append(told[-1])
        elif left:
            told.append(left.pop(0))
        else:
            break
    return told + left

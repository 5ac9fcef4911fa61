"""The steps of a scenario: what the root is told, and where a turn is cancelled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nestling.driver.stated_cancels import CancelPoint
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import shown
from nestling.session.spawn_path import ROOT

_PATH: Final = re.compile(
    r"/|(?:/t[0-9]+s[0-9]+(?:b[0-9]+(?:\.[0-9]+)?|k[^/]+|d[0-9]+))+"
)
_TURN: Final = re.compile(r"/t([0-9]+)s")


class StepCancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a step's turn is cancelled.

    Attributes:
        path: the spawn path of the session whose call or tool it is.
        call: which model call that session makes in the step, from 1; or, of a tool,
            which call of it.
        after: once exactly so many chunks of the call were served.
        tool: the name of the tool that is asked for, and not run.
        session: the session whose turn is cancelled, with all below it; the root's by
            default.
    """

    path: str = ROOT
    call: Annotated[int, Meta(ge=1)] = 1
    after: Annotated[int, Meta(ge=0)] | None = None
    tool: Annotated[str, Meta(min_length=1)] | None = None
    session: str = ROOT


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of the root.

    Attributes:
        prompt: what the root is told.
        cancel: where the turn that this opens is cancelled, if it is.
    """

    prompt: str
    cancel: StepCancel | None = None


def checked_steps(prompts: Sequence[str], steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a scenario that has either prompts or steps.

    Raises:
        UnreadableError: naming the key, what was found and what was expected.
    """
    if prompts and steps:
        raise UnreadableError("found prompts and steps, expected one of them")
    if not prompts and not steps:
        raise UnreadableError(
            "found no prompts and no steps, expected what the root is told: prompts, a "
            "list of at least one text, or [[steps]]"
        )
    found = list(steps) or [Step(prompt) for prompt in prompts]
    for number, step in enumerate(found, start=1):
        if step.cancel is not None:
            _check_cancel(step.cancel, number)
    return found


def cancel_points(steps: Sequence[Step]) -> list[CancelPoint]:
    """Return where the turns of these steps are cancelled."""
    return [
        CancelPoint(
            number, each.path, each.call, each.after or 0, each.tool, each.session
        )
        for number, step in enumerate(steps, start=1)
        if (each := step.cancel) is not None
    ]


def described_point(point: CancelPoint) -> str:
    """Say where a turn was to be cancelled."""
    if point.tool is not None:
        what = f"call {point.call} of the tool {point.tool}"
    else:
        what = f"model call {point.call} after {point.after} chunks"
    return f"{what} in session {point.path}"


def _check_cancel(cancel: StepCancel, number: int) -> None:
    where = f"step {number}: cancel"
    if (cancel.after is None) == (cancel.tool is None):
        found = "neither" if cancel.after is None else "both"
        raise UnreadableError(
            f"{where}: found {found} of after and tool, expected one: after so many "
            "chunks of a model call, or at a tool"
        )
    for key in ("path", "session"):
        _check_path(getattr(cancel, key), f"{where}.{key}", number)
    if cancel.session != ROOT and not f"{cancel.path}/".startswith(
        f"{cancel.session}/"
    ):
        raise UnreadableError(
            f"{where}.session: found {cancel.session}, expected {cancel.path}, whose "
            "call or tool it is, or a session above it"
        )


def _check_path(path: str, where: str, number: int) -> None:
    if not _PATH.fullmatch(path):
        raise UnreadableError(
            f"{where}: found {shown(path)}, expected a spawn path: / for the root, "
            "/t1s1b0 for the child that block 0 of its turn 1, step 1 delegated"
        )
    turn = _TURN.match(path)
    if turn is not None and int(turn[1]) != number:
        raise UnreadableError(
            f"{where}: found {path}, a session of turn {turn[1]}; expected one of turn "
            f"{number}, which this step opens"
        )

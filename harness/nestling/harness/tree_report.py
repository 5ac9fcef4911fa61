"""What ``nestling show`` and ``nestling sessions`` print: trees, and lists of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.overview import Overview
from nestling.harness.printable import shown
from nestling.harness.replay_report import LABEL_WIDTH, counted, cut
from nestling.session.spawn_path import ROOT


class Drawn(NamedTuple):
    """One session of a drawing.

    Attributes:
        path: its path below what its tree begins with; None if no place is known.
        overview: what is said of it.
    """

    path: str | None
    overview: Overview


def rebased(path: str | None, base: str | None) -> str | None:
    """Return a path below a session as the path below `base`, which is on the way."""
    if path is None or base is None or base == ROOT:
        return path
    return path.removeprefix(base) or ROOT


def trees_text(trees: Iterable[Sequence[Drawn]]) -> str:
    """Return trees as text, a line a session."""
    trees = list(trees)
    rows = [_cells(drawn, label) for tree in trees for drawn, label in _labelled(tree)]
    lines = iter(_aligned(rows))
    return "\n\n".join("\n".join(next(lines) for _ in tree) for tree in trees)


def _labelled(tree: Sequence[Drawn]) -> Iterator[tuple[Drawn, str]]:
    labels = drawn_labels(drawn.path for drawn in tree if drawn.path is not None)
    for drawn in tree:
        if drawn.path is None:
            yield drawn, "(no path)"
        elif drawn.path == ROOT:
            path = drawn.overview.path
            yield drawn, "(no root)" if path is None else shown(path)
        else:
            yield drawn, labels[drawn.path]


def _cells(drawn: Drawn, label: str) -> list[str]:
    told = drawn.overview
    return [
        f"{label:<{LABEL_WIDTH}}",
        told.kind or "",
        shown(told.id),
        *_sizes(told),
        shown(told.state),
        _last(told),
    ]


def _sizes(told: Overview) -> list[str]:
    if told.events is None:
        return ["", "", "", ""]
    own = max(0, told.events - told.inherited)
    return [
        counted(told.events, "event"),
        f"{told.inherited} inherited │ {own} own",
        counted(told.turns, "turn"),
        counted(told.calls, "call"),
    ]


def _last(told: Overview) -> str:
    parts = []
    if told.closers:
        parts.append("(a resume closes it)")
    if told.note:
        parts.append(shown(told.note))
    if told.text:
        parts.append(cut(told.text))
    return "  ".join(parts)


def sessions_text(overviews: Sequence[Overview]) -> str:
    """Return a list of sessions as text, a line each; nothing for none."""
    return "\n".join(_aligned([_listed(told) for told in overviews]))


def _listed(told: Overview) -> list[str]:
    parent = "-" if told.parent is None else shown(told.parent)
    events = "-" if told.events is None else counted(told.events, "event")
    note = shown(told.note)
    kind = told.kind or "-"
    return [
        shown(told.id),
        created_text(told.created_at),
        kind,
        parent,
        events,
        told.state if not note else f"{shown(told.state)}  {note}",
    ]


def created_text(milliseconds: int | None) -> str:
    """Return a time in UTC; as the number it is where no calendar has it."""
    if milliseconds is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, every column but the last as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]

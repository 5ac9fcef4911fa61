"""A tree of spawn paths, drawn with lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nestling.harness.printable import shown
from nestling.session.spawn_path import ROOT, sort_key


def drawn_labels(paths: Iterable[str]) -> Mapping[str, str]:
    """Return for each path how its line in the drawing begins, in the tree's order."""
    ordered = sorted(set(paths), key=sort_key)
    last_of = {_parent(path): path for path in ordered if path != ROOT}
    return {path: _label(path, last_of) for path in ordered}


def _label(path: str, last_of: Mapping[str, str]) -> str:
    if path == ROOT:
        return ROOT
    parent = _parent(path)
    is_last = last_of[parent] == path
    own = "└─ " if is_last else "├─ "
    above = ""
    while parent != ROOT:
        grandparent = _parent(parent)
        goes_on = last_of.get(grandparent, parent) != parent
        above = ("│  " if goes_on else "   ") + above
        parent = grandparent
    return above + own + shown(path.rpartition("/")[2])


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT

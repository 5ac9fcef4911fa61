"""Recorded sessions, imported into every store and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestling.session.errors import SessionNotFoundError
from nestling.session.reading import Recording, read_recording
from support.corpus import dsh_folders, needs_corpus
from support.stores import Place, exact

_BATCH = 50


def _tree(folder: Path) -> list[Recording]:
    files = sorted(folder.glob("session*.jsonl"))
    return [read_recording(path.read_bytes(), path.name) for path in files]


@needs_corpus
@pytest.mark.parametrize("folder", dsh_folders(), ids=lambda path: path.name)
def test_a_recorded_tree_comes_back(place: Place, folder: Path) -> None:
    """C1, O5, O6, O38, with real sessions: headers and events are identical."""
    tree = _tree(folder)
    assert tree
    with place.open() as store:
        for recording in tree:
            store.create(recording.header)
            for first in range(0, len(recording.events), _BATCH):
                batch = recording.events[first : first + _BATCH]
                store.append(recording.header.id, batch)
    with place.open() as store:
        for recording in tree:
            if not recording.events:
                with pytest.raises(SessionNotFoundError):
                    store.inspect(recording.header.id)
                continue
            found = store.inspect(recording.header.id)
            assert found.header.row() == recording.header.row()
            stored = store.read_from(recording.header.id, 0)
            assert exact(stored) == exact(recording.events)
            assert exact(found.events[: len(stored)]) == exact(stored)

"""One contract, several stores: by any history of random logs they are told apart by
nothing but their revisions' texts (D1 to D3).

``NESTLING_EXAMPLES`` says how many histories are tried (40 by default).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestling.session.event import Event
from nestling.session.store_io import SessionStore, Stored
from support.random_logs import RandomLog
from support.stores import BACKENDS, Place, exact, header

EXAMPLES: Final = int(os.environ.get("NESTLING_EXAMPLES", "40"))
FOLDER: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where the stores are: nothing here asks whether a disk keeps them."""

SMALL: Final = 80
"""Of a log of so many events every suffix is read."""

T = TypeVar("T")


class _Stores:
    """The same session in every store; what is done to one is done to all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._places = [Place(scheme, folder) for scheme in BACKENDS]
        self._stack = stack
        self._stores: list[SessionStore] = []
        self._revisions: list[str] = []
        self.reopen()

    def reopen(self) -> None:
        self._stack.close()
        opened = [self._stack.enter_context(place.open()) for place in self._places]
        self._stores = opened

    def same(self, ask: Callable[[SessionStore], T]) -> T:
        """Ask every store, and return the one answer."""
        first, *others = [ask(store) for store in self._stores]
        for other, place in zip(others, self._places[1:], strict=True):
            assert other == first, place.scheme
        return first

    def append(self, batch: Sequence[Event]) -> None:
        """Append to all of them; each revision changes."""
        self.same(lambda store: store.append("s", batch))
        assert self.has_changed()

    def events(self, seq: int) -> list[Event]:
        """Return what all of them hold from `seq` on."""
        self.same(lambda store: exact(store.read_from("s", seq)))
        return self._stores[0].read_from("s", seq)

    def has_changed(self) -> bool:
        """Tell whether the session's revision has changed since this was asked last."""
        revisions = [store.revision("s") for store in self._stores]
        listed = [store.sessions()[0].revision for store in self._stores]
        assert listed == revisions
        before, self._revisions = self._revisions, revisions
        if not before:
            return True
        changes = {a != b for a, b in zip(before, revisions, strict=True)}
        assert len(changes) == 1, "one store's revision changed, another's did not"
        return changes.pop()


def _answer(stored: Stored) -> Any:
    header_row = stored.header.row()
    return header_row, exact(stored.events), stored.closers, stored.tail, stored.is_live


def _batches(chance: Random, events: Sequence[Event]) -> list[Sequence[Event]]:
    batches, first = [], 0
    while first < len(events):
        end = first + chance.choice((1, 1, 2, 3, 5, 8, 40))
        batches.append(events[first:end])
        first = end
    return batches


def _append(stores: _Stores, chance: Random, events: Sequence[Event]) -> None:
    for batch in _batches(chance, events):
        stores.append(batch)


def _reopen(stores: _Stores, chance: Random, log: RandomLog) -> None:
    """Open the stores anew; what was left open is closed, by all of them alike."""
    stores.reopen()
    assert not stores.has_changed()
    seen = stores.same(lambda store: _answer(store.inspect("s")))
    assert not stores.has_changed()
    closers = seen[2]
    assert seen[1][: len(log.events)] == exact(log.events)
    assert len(seen[1]) == len(log.events) + closers
    if chance.random() < 0.5:
        taken = stores.same(lambda store: _answer(store.resume("s")))
    else:
        taken = stores.same(lambda store: _answer(store.load("s")))
    assert taken == seen
    assert stores.has_changed() == bool(closers)
    log.extend(stores.events(len(log.events)))


def _suffixes(stores: _Stores, chance: Random, log: RandomLog) -> None:
    count = len(log.events)
    seqs = list(range(count + 2))
    if count > SMALL:
        seqs = [chance.randrange(count) for _ in range(10)]
    expected = exact(log.events)
    for seq in seqs:
        assert exact(stores.events(seq)) == expected[seq:]


@pytest.mark.timeout(600)  # a failure is made smaller before it is shown
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_stores_are_told_apart_by_nothing(
    chance: Random, rounds: int, is_first_small: bool
) -> None:
    """D1, D2, D3: every kind of event, any batches, reopened and repaired anywhere."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, ExitStack() as stack:
        stores = _Stores(Path(folder), stack)
        log = RandomLog(chance)
        stores.same(lambda store: store.create(header(cwd="/w")))
        first = log.grow(1 if is_first_small else 12) or log.grow(1)
        _append(stores, chance, first)
        for _ in range(rounds):
            _append(stores, chance, log.grow(chance.randrange(12)))
            if chance.random() < 0.6:
                _reopen(stores, chance, log)
        assert stores.same(lambda store: len(store.sessions())) == 1
        _suffixes(stores, chance, log)

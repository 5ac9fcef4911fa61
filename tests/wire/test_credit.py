"""The two halves of flow control, alone and against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Refill, Window

sizes = st.lists(st.integers(0, 3000), max_size=200)


def test_defaults() -> None:
    assert (WINDOW_BYTES, WINDOW_FRAMES) == (256 * 1024, 64)
    window = Window()
    assert (window.bytes, window.frames) == (WINDOW_BYTES, WINDOW_FRAMES)


def test_one_message_may_take_the_window_below_zero() -> None:
    window = Window(10, 5)
    window.spend(9)
    assert window.open
    window.spend(1000)
    assert (window.bytes, window.open) == (-999, False)
    with pytest.raises(ValueError, match="closed window"):
        window.spend(0)


def test_frames_close_the_window_too() -> None:
    window = Window(10, 2)
    window.spend(0)
    window.spend(0)
    assert not window.open
    window.grant(0, 1)
    assert window.open


@pytest.mark.parametrize("grant", [(11, 0), (0, 2), (-1, 1), (1, -1), (2**60, 1)])
def test_a_bad_grant_is_refused_and_changes_nothing(grant: tuple[int, int]) -> None:
    window = Window(20, 5)
    window.spend(10)
    with pytest.raises(WireError):
        window.grant(*grant)
    assert (window.bytes, window.frames) == (10, 4)
    window.grant(10, 1)
    assert (window.bytes, window.frames) == (20, 5)


@pytest.mark.parametrize("kind", [Window, Refill])
@pytest.mark.parametrize("size", [(0, 1), (1, 0), (-1, 1)])
def test_a_window_that_never_opens_is_refused(
    kind: type[Window | Refill], size: tuple[int, int]
) -> None:
    with pytest.raises(WireError, match="expected at least 1"):
        kind(*size)


def test_refill_at_half_of_either() -> None:
    by_bytes = Refill(100, 64)
    assert by_bytes.consumed(49) is None
    assert by_bytes.consumed(1) == (50, 2)
    assert by_bytes.consumed(49) is None
    by_frames = Refill(100, 4)
    assert by_frames.consumed(0) is None
    assert by_frames.consumed(0) == (0, 2)


@given(sizes, st.integers(1, 2000), st.integers(1, 20), st.randoms())
def test_the_stream_never_stops_and_the_window_is_never_overrun(
    messages: list[int], max_bytes: int, max_frames: int, chance: object
) -> None:
    window, refill = Window(max_bytes, max_frames), Refill(max_bytes, max_frames)
    todo, flying = list(messages), list[int]()
    while todo or flying:
        if todo and window.open and (not flying or chance.random() < 0.7):  # type: ignore[attr-defined]  # a Random
            flying.append(todo.pop(0))
            window.spend(flying[-1])
        else:
            assert flying, "both sides wait"
            if grant := refill.consumed(flying.pop(0)):
                window.grant(*grant)
        assert len(flying) <= max_frames
        assert sum(flying[:-1]) < max_bytes
    assert window.open

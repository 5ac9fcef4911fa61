"""Write-behind, by the numbers of the format's own tests (W1-W9)."""

from __future__ import annotations

from nestling.driver.write_behind import WriteBehind


def _queues(*, is_shared: bool = False) -> WriteBehind[str, int]:
    return WriteBehind(0.2, is_shared=is_shared)


def test_one_window_from_the_first_item() -> None:
    """W1: later items do not move it."""
    queues = _queues()
    assert queues.next_due() is None
    queues.add("a", 1, 10.0)
    queues.add("a", 2, 10.15)
    assert queues.next_due() == 10.2
    assert queues.take(10.19) == {}
    assert queues.take(10.2) == {"a": [1, 2]}
    assert queues.next_due() is None


def test_twenty_items_ten_ms_apart_are_one_batch() -> None:
    """W2."""
    queues = _queues()
    for number in range(20):
        queues.add("a", number, 10 + number / 100)
    assert queues.take(10.2) == {"a": list(range(20))}


def test_a_flush_is_due_now_and_takes_what_came_meanwhile() -> None:
    """W3: two flushes are one barrier."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.flush("a", 10.01)
    queues.add("a", 2, 10.02)
    queues.flush("a", 10.02)
    assert queues.next_due() == 10.01
    assert queues.take(10.02) == {"a": [1, 2]}
    assert queues.take(11.0) == {}


def test_work_after_a_barrier_opens_a_new_window() -> None:
    """W4."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.flush("a", 10.0)
    queues.take(10.0)
    queues.add("a", 2, 10.1)
    assert queues.next_due() == 10.1 + 0.2


def test_a_window_that_passed_during_a_write_is_due_at_once() -> None:
    """W5: the time of an item is when it was handed over, not when it was looked at."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.take(10.2)  # and the write takes until 10.5
    queues.add("a", 2, 10.21)
    assert queues.take(10.5) == {"a": [2]}


def test_a_window_that_did_not_pass_goes_on() -> None:
    """W6."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.take(10.2)  # and the write takes until 10.3
    queues.add("a", 2, 10.25)
    assert queues.take(10.3) == {}
    assert queues.next_due() == 10.25 + 0.2


def test_what_failed_stays_in_front_and_is_not_tried_again_by_itself() -> None:
    """W7."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    taken = queues.take(10.2)
    queues.put_back("a", taken["a"])
    assert queues.next_due() is None
    assert queues.take(99.0) == {}
    queues.add("a", 2, 100.0)
    assert queues.next_due() == 100.2
    assert queues.take(100.2) == {"a": [1, 2]}


def test_what_failed_stays_before_what_came_during_the_write() -> None:
    """W7: in order, and the window of what came goes on."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    taken = queues.take(10.2)
    queues.add("a", 2, 10.3)
    queues.put_back("a", taken["a"])
    assert queues.take(10.5) == {"a": [1, 2]}


def test_a_flush_tries_again_what_failed() -> None:
    """W8, W9: the batch is kept until it is written."""
    queues = _queues()
    queues.add("a", 1, 10.0)
    for now in (11.0, 12.0):
        queues.flush("a", now)
        queues.put_back("a", queues.take(now)["a"])
    queues.flush("a", 13.0)
    assert queues.take(13.0) == {"a": [1]}


def test_a_flush_of_nothing() -> None:
    queues = _queues()
    queues.flush("a", 10.0)
    assert queues.next_due() is None


def test_each_key_has_a_window_of_its_own() -> None:
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.add("b", 2, 10.1)
    queues.flush("b", 10.11)
    assert queues.take(10.12) == {"b": [2]}
    assert queues.take(10.2) == {"a": [1]}


def test_where_a_commit_is_shared_what_is_due_takes_the_rest_with_it() -> None:
    queues = _queues(is_shared=True)
    queues.add("a", 1, 10.0)
    queues.add("b", 2, 10.1)
    assert queues.take(10.05) == {}
    queues.flush("b", 10.11)
    assert queues.take(10.12) == {"a": [1], "b": [2]}


def test_a_shared_commit_does_not_try_what_failed() -> None:
    """It waits for its own next item, or its own flush."""
    queues = _queues(is_shared=True)
    queues.add("a", 1, 10.0)
    queues.put_back("a", queues.take(10.2)["a"])
    queues.add("b", 2, 10.3)
    assert queues.take(10.5) == {"b": [2]}
    queues.flush_all(11.0)
    assert queues.take(11.0) == {"a": [1]}


def test_what_is_dropped_is_gone() -> None:
    queues = _queues()
    queues.add("a", 1, 10.0)
    queues.drop("a")
    queues.drop("b")
    assert queues.next_due() is None
    assert queues.take(99.0) == {}

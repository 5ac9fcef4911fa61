"""The turn loop: which verb may follow which, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nestling.session.errors import LoopError, UnreadableError
from nestling.session.log import SessionLog
from nestling.worker.loop import TurnLoop
from support.loops import STOP, USER, Driver, result_of, tool_chunks
from support.session_logs import LogWriter, delta, rows, types

# --- the orders ----------------------------------------------------------------

Verb = Callable[[TurnLoop], object]
VERBS: dict[str, Verb] = {
    "start_turn": lambda loop: loop.start_turn(),
    "start_step": lambda loop: loop.start_step(),
    "end_step": lambda loop: loop.end_step(),
    "end_turn": lambda loop: loop.end_turn(),
    "cancel": lambda loop: loop.cancel(USER),
    "begin_call": lambda loop: loop.begin_call(),
    "add_chunk": lambda loop: loop.add_chunk(delta("x")),
    "end_call": lambda loop: loop.end_call(),
    "fail_call": lambda loop: loop.fail_call({"message": "m", "code": "SERVER"}),
    "cut_call": lambda loop: loop.cut_call(USER),
    "commit": lambda loop: loop.commit("m"),
    "dispatch": lambda loop: loop.dispatch(0),
    "collect": lambda loop: loop.collect(0, result_of("a"), "r"),
}


def idle(driver: Driver) -> None:
    """Nothing has happened."""


def in_turn(driver: Driver) -> None:
    driver.loop.start_turn()


def in_step(driver: Driver) -> None:
    driver.start()


def calling(driver: Driver) -> None:
    driver.start()
    driver.open(delta("hi"))


def answered(driver: Driver) -> None:
    driver.start()
    driver.answer(*tool_chunks("a", "b"))


def empty(driver: Driver) -> None:
    driver.start()
    driver.answer(STOP)


def failed(driver: Driver) -> None:
    driver.start()
    driver.open(delta("hi"))
    driver.loop.fail_call({"message": "m", "code": "SERVER"})


def cut(driver: Driver) -> None:
    driver.start()
    driver.open(delta("hi"))
    driver.loop.cut_call(USER)


def cut_blank(driver: Driver) -> None:
    driver.start()
    driver.open(delta(" \n"))
    driver.loop.cut_call(USER)


def committed(driver: Driver) -> None:
    answered(driver)
    driver.loop.commit("m")


def dispatched(driver: Driver) -> None:
    committed(driver)
    driver.loop.dispatch(0)


def collected(driver: Driver) -> None:
    dispatched(driver)
    driver.loop.collect(0, result_of("a"), "r")


def all_collected(driver: Driver) -> None:
    collected(driver)
    driver.loop.dispatch(1)
    driver.loop.collect(1, result_of("b"), "r2")


def after_step(driver: Driver) -> None:
    all_collected(driver)
    driver.loop.end_step()


def after_turn(driver: Driver) -> None:
    after_step(driver)
    driver.loop.end_turn()


NO_TURN = "no turn is open"
NO_STEP = "turn 1 has no open step"
NO_CALL = "turn 1, step 1 has not called the model"
OPEN = "the call of turn 1, step 1 is open after 1 chunks"
CLOSED = "the call of turn 1, step 1 has failed or awaits its message"
PLACES: list[tuple[Callable[[Driver], None], str, str]] = [
    (idle, "start_turn", NO_TURN),
    (in_turn, "start_step end_turn cancel", NO_STEP),
    (in_step, "begin_call end_step cancel", NO_CALL),
    (calling, "add_chunk end_call fail_call cut_call", OPEN),
    (answered, "commit cancel", CLOSED),
    (empty, "commit end_step cancel", CLOSED),
    (failed, "begin_call end_step cancel", CLOSED),
    (cut, "commit cancel", CLOSED),
    (cut_blank, "end_step cancel", CLOSED),
    (committed, "dispatch cancel", "awaits the tool call of block 0 (bash)"),
    (dispatched, "collect cancel", "awaits the tool result of block 0 (bash)"),
    (collected, "cancel", "awaits the tool call of block 1 (bash)"),
    (all_collected, "end_step cancel", "turn 1, step 1 has all its tool results"),
    (after_step, "start_step end_turn cancel", NO_STEP),
    (after_turn, "start_turn", NO_TURN),
]
OWN_WORDS = {
    ("cut_blank", "commit"): "left nothing readable",
    ("dispatched", "dispatch"): "block 0 was dispatched before",
    ("collected", "dispatch"): "block 0 was dispatched before",
    ("all_collected", "dispatch"): "block 0 was dispatched before",
    ("committed", "collect"): "block 0 was not dispatched",
    ("collected", "collect"): "block 0 was answered before",
    ("all_collected", "collect"): "block 0 was answered before",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("place", "allowed", "state"), PLACES, ids=[place.__name__ for place, *_ in PLACES]
)
def test_which_verb_may_follow(
    place: Callable[[Driver], None], allowed: str, state: str, verb: str
) -> None:
    driver = Driver()
    place(driver)
    before = len(driver.loop.log)
    if verb in allowed.split():
        VERBS[verb](driver.loop)
        return
    with pytest.raises(LoopError) as caught:
        VERBS[verb](driver.loop)
    expected = OWN_WORDS.get((place.__name__, verb), state)
    assert expected in str(caught.value)
    assert len(driver.loop.log) == before, "a refused verb writes nothing"


def test_an_error_names_what_was_asked() -> None:
    loop = Driver().loop
    for verb, what in {
        "start_step": "a step start",
        "end_step": "a step end",
        "end_turn": "a turn end",
        "cancel": "a cancel",
        "begin_call": "a model call",
        "add_chunk": "a chunk",
        "end_call": "the end of a call",
        "cut_call": "a cut",
        "commit": "an assistant message",
        "dispatch": "a tool call",
        "collect": "a tool result",
    }.items():
        with pytest.raises(LoopError, match=f"^{what} cannot follow here: no turn"):
            VERBS[verb](loop)


def test_a_refused_verb_leaves_the_loop_usable() -> None:
    driver = Driver()
    driver.start()
    for name, verb in VERBS.items():
        if name not in ("begin_call", "end_step", "cancel"):
            with pytest.raises(LoopError):
                verb(driver.loop)
    driver.answer(delta("hi"), STOP)
    driver.loop.commit("m")
    driver.close()
    assert driver.reason() == {"kind": "completed"}


# --- tools ---------------------------------------------------------------------


def test_blocks_that_are_no_tool_calls() -> None:
    driver = Driver()
    driver.start()
    driver.answer(delta("hi"), *tool_chunks("zero", "one"))
    driver.loop.commit("m")
    # Block 0 was text when it was first seen; its end says it is a tool call.
    for block in (2, 99):
        with pytest.raises(LoopError, match=f"block {block} of the message is no tool"):
            driver.loop.dispatch(block)


def test_a_result_must_answer_its_own_call() -> None:
    driver = Driver()
    dispatched(driver)
    with pytest.raises(LoopError, match="the result answers 'b', block 0 is 'a'"):
        driver.loop.collect(0, result_of("b"), "r")
    driver.loop.collect(0, result_of("a"), "r")


def test_a_step_ends_only_when_all_is_answered() -> None:
    driver = Driver()
    dispatched(driver)
    driver.loop.dispatch(1)
    driver.loop.collect(1, result_of("b"), "r")
    with pytest.raises(LoopError, match="awaits the tool result of block 0"):
        driver.loop.end_step()


def test_a_block_of_an_unknown_kind_must_be_closed() -> None:
    driver = Driver()
    driver.start()
    driver.open({"type": "block-start", "index": 0, "blockType": "image"}, STOP)
    with pytest.raises(UnreadableError, match="'image' was never closed"):
        driver.loop.end_call()


def test_a_block_of_an_unknown_kind_may_be_cut() -> None:
    driver = Driver()
    driver.start()
    driver.open(delta("hi"), {"type": "block-start", "index": 1, "blockType": "image"})
    driver.loop.cut_call(USER)
    driver.loop.commit("m")
    message = driver.loop.log.events[-1].data["message"]
    assert message["content"] == [{"type": "text", "text": "hi"}]


# --- starting from a seed ------------------------------------------------------


def test_turns_go_on_after_a_fork() -> None:
    seed = LogWriter()
    seed.answered_turn("a", "b")
    seed.answered_turn("c", "d")
    driver = Driver(SessionLog(seed.events))
    driver.start()
    assert driver.loop.place == (3, 1)
    driver.close()
    driver.start()
    assert driver.loop.place == (4, 1)
    assert rows(driver.loop.log.events[: len(seed.events)]) == rows(seed.events)
    assert types(driver.loop.log.events)[-6:] == [
        *("turn/start", "step/start", "step/end", "turn/end"),
        *("turn/start", "step/start"),
    ]

"""Comparing a session that an agent plays: skeleton, inputs, requests, levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from nestling.harness.compare import SKELETON
from nestling.harness.comparison import (
    AgentComparison,
    CallAt,
    Finding,
    TapeComparison,
    Verify,
)
from nestling.harness.compose import Composer, text, tool_call
from nestling.harness.matching import Matcher, Renaming
from nestling.harness.normalise import Normalisers
from nestling.session.event import Event

LEVELS: Final[tuple[Verify, ...]] = ("off", "warn", "strict")


def composed(
    prompt: str = "Go.",
    *,
    system: str = "You help.",
    result: str = "42",
    said: str = "It is 42.",
    notes: Sequence[str] = (),
    late: Sequence[str] = (),
    hint: str | None = None,
) -> list[Event]:
    """A session of two calls with a tool between them.

    Args:
        prompt: what the user says.
        system: the system prompt.
        result: what the tool returns.
        said: what the model says in the end.
        notes: events before the first call that no model sees.
        late: the same, after the last call.
        hint: a message before the second call.
    """
    root = Composer("s", 1_000, system=system)
    root.begin()
    for note in notes:
        root.add("inbox/note", {"note": note})
    root.step(prompt)
    (call,) = root.says(text("Let me look."), tool_call("look", {}), usage={})
    root.result(call, [{"type": "text", "text": result}])
    root.step(*([] if hint is None else [hint]))
    root.says(text(said), usage={})
    for note in late:
        root.add("inbox/note", {"note": note})
    root.end()
    return list(root.log.events)


def comparison(
    recorded: Sequence[Event], verify: Verify = "strict", stops: Sequence[int] = ()
) -> AgentComparison:
    matcher = Matcher(Normalisers(), Renaming())
    return AgentComparison(recorded, 0, verify, matcher, stops)


def findings(
    compared: AgentComparison | TapeComparison, live: Sequence[Event]
) -> list[Finding]:
    """What is found up to the first problem; each call is opened where it was."""
    found: list[Finding] = []
    calls, before = 0, ""
    for event in live:
        if event.type == "assistant/chunk" != before:
            calls += 1
            at = CallAt(calls, event.data["turn"], event.data["step"])
            finding = compared.call(at)
            found += [finding] if finding else []
            if finding is not None and finding.is_problem:
                return found
        found += compared.take(event)
        if any(each.is_problem for each in found):
            return found
        before = event.type
    finding = compared.end()
    return [*found, finding] if finding else found


def found(
    live: Sequence[Event], recorded: Sequence[Event], verify: Verify = "strict"
) -> list[tuple[str, str]]:
    return [
        (each.kind, each.message)
        for each in findings(comparison(recorded, verify), live)
    ]


# --- equal -----------------------------------------------------------------------


@pytest.mark.parametrize("verify", LEVELS)
def test_equal_logs(verify: Verify) -> None:
    compared = comparison(composed(), verify)
    assert findings(compared, composed()) == []
    assert compared.position == len(composed())
    assert not compared.has_other_inputs


def test_a_tape_is_exact() -> None:
    (finding,) = findings(TapeComparison(composed()), composed(prompt="Stop."))
    assert finding.kind == "log-differs"
    assert finding.message.startswith("event 2: user/message: data.content[0].text is")


# --- what the model is told ------------------------------------------------------


def test_a_prompt_is_told_at_its_call() -> None:
    ((kind, message),) = found(composed("Stop."), composed())
    assert kind == "request-differs"
    assert message.split("\n") == [
        "call 1 (turn 1, step 1): the request is not the recorded one, in the messages",
        "messages[0] (user):",
        "  - Go.",
        "  + Stop.",
    ]


def test_a_system_prompt() -> None:
    ((kind, message),) = found(composed(system="You help!"), composed())
    assert kind == "request-differs"
    assert message.split("\n")[1:] == ["system:", "  - You help.", "  + You help!"]


def test_a_tool_result_is_told_at_the_next_call() -> None:
    ((kind, message),) = found(composed(result="43"), composed())
    assert kind == "request-differs"
    assert message.startswith("call 2 (turn 1, step 2): ")
    assert message.split("\n")[1:] == [
        "messages[2] (user):",
        "  - [result of s-c1] 42",
        "  + [result of s-c1] 43",
    ]


def test_a_message_that_is_new() -> None:
    ((kind, message),) = found(composed(hint="Quick!"), composed())
    assert kind == "request-differs"
    assert message.startswith("call 2 (turn 1, step 2): ")
    assert message.split("\n")[1:] == ["messages[3] (user) is new:", "  + Quick!"]


def test_a_message_that_is_missing() -> None:
    """Whether it was to come during the call, only the call's first chunk tells."""
    ((kind, message),) = found(composed(), composed(hint="Quick!"))
    assert kind == "request-differs"
    assert message.startswith("call 2 (turn 1, step 2): ")
    assert message.split("\n")[1:] == ["messages[3] (user) is missing:", "  - Quick!"]


@pytest.mark.parametrize(
    "live",
    [
        composed("Stop.", system="Other.", result="1", notes="ab", late="c", hint="!"),
        composed(notes=["one"]),
        composed(late=["two"]),
        composed(hint="Quick!"),
    ],
)
def test_inputs_are_nothing_where_nothing_is_verified(live: list[Event]) -> None:
    for one, other in ((live, composed()), (composed(), live)):
        compared = comparison(other, "off")
        assert findings(compared, one) == []
        assert compared.has_other_inputs
        assert compared.position == len(other)


def test_warnings_say_each_thing_once() -> None:
    live = composed(system="Other.", result="43")
    first, second = findings(comparison(composed(), "warn"), live)
    assert not first.is_problem
    assert not second.is_problem
    assert "system:" in first.message
    assert "system:" not in second.message
    assert "messages[2] (user):" in second.message


# --- what no model sees ----------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "recorded", "told"),
    [
        (["a"], ["b"], 'event 1: inbox/note: data.note is "a", recorded was "b"'),
        (["a"], [], "event 1: inbox/note was not recorded"),
        ([], ["b"], "recorded event 1: inbox/note is missing"),
        (["a", "b"], ["b"], "event 1: inbox/note was not recorded"),
        (["b"], ["a", "b"], "recorded event 1: inbox/note is missing"),
    ],
)
def test_what_no_model_sees(live: list[str], recorded: list[str], told: str) -> None:
    one, other = composed(notes=live), composed(notes=recorded)
    assert found(one, other) == [("log-differs", told)]
    assert found(one, other, "off") == []
    (warning,) = findings(comparison(other, "warn"), one)
    assert warning == Finding("log-differs", told, is_problem=False)


def test_what_came_after_the_last_call() -> None:
    ((kind, message),) = found(composed(late=["a"]), composed(late=["b"]))
    assert kind == "log-differs"
    assert "inbox/note: data.note is" in message
    (warning,) = findings(comparison(composed(), "warn"), composed(late=["a"]))
    assert not warning.is_problem


# --- what the model says ---------------------------------------------------------


@pytest.mark.parametrize("verify", LEVELS)
def test_the_skeleton_is_exact_at_any_level(verify: Verify) -> None:
    ((kind, message),) = found(composed(said="It is 43."), composed(), verify)
    assert kind == "log-differs"
    assert "assistant/chunk" in message


@pytest.mark.parametrize("verify", LEVELS)
def test_a_log_that_ends_early(verify: Verify) -> None:
    live = composed()[:-2]
    ((kind, message),) = found(live, composed(), verify)
    assert kind == "log-differs"
    assert message == (
        f"the log ended after {len(live)} events; recorded was step/end next, "
        f"{len(live) + 2} in all"
    )


@pytest.mark.parametrize("verify", LEVELS)
def test_a_log_that_goes_on(verify: Verify) -> None:
    ((kind, message),) = found(composed(), composed()[:-1], verify)
    assert kind == "log-differs"
    assert "it is turn/end, the recorded log has only" in message


def test_the_likely_cause_is_named() -> None:
    """Another input, and then the code goes another way."""
    live = [
        e for e in composed(result="43") if e.seq < _seq(composed(), "step/end") + 1
    ]
    last = live[-1]
    live.append(Event(last.seq + 1, "turn/end", 0, {"turn": 1, "reason": {}}))
    ((kind, message),) = found(live, composed())
    assert kind == "log-differs"
    assert "it is turn/end, recorded was step/start; before that, event " in message
    assert 'text is "43", recorded was "42"' in message


def _seq(events: Sequence[Event], kind: str) -> int:
    return next(event.seq for event in events if event.type == kind)


# --- inputs during a call --------------------------------------------------------


def with_note(events: Sequence[Event], at: int) -> list[Event]:
    """A log with a note more; what cites later events cites them where they are."""
    made = [
        Event(
            event.seq + (event.seq >= at),
            event.type,
            event.time,
            event.data,
            event.surface_op,
            event.source_event_seqs
            and [seq + (seq >= at) for seq in event.source_event_seqs],
        )
        for event in events
    ]
    made.insert(at, Event(at, "inbox/note", 0, {"note": "new"}))
    return made


def test_an_input_before_the_first_chunk_of_a_call() -> None:
    """It came while the call was open, on both sides: nothing is missing."""
    log = with_note(composed(), _seq(composed(), "assistant/chunk"))
    compared = comparison(log)
    at = _seq(log, "inbox/note")
    for event in log:
        if event.seq == at:
            assert compared.call(CallAt(1, 1, 1)) is None
        assert not compared.take(event)
    assert compared.end() is None


def test_an_input_among_chunks() -> None:
    chunk = _seq(composed(), "assistant/chunk")
    live, recorded = with_note(composed(), chunk + 1), with_note(composed(), chunk + 2)
    assert found(recorded, recorded) == []
    assert found(live, recorded) == [
        ("log-differs", f"event {chunk + 1}: inbox/note was not recorded")
    ]
    assert found(live, recorded, "off") == []


# --- stops -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verify", "kind"),
    [("strict", "log-differs"), ("warn", "not-supported"), ("off", "not-supported")],
)
def test_a_stop_at_a_length_that_is_another(verify: Verify, kind: str) -> None:
    recorded = composed()
    compared = comparison(recorded, verify, [len(recorded)])
    (finding,) = findings(compared, composed(notes=["a"]))
    assert (finding.kind, finding.is_problem) == (kind, True)
    assert "event 1: inbox/note was not recorded" in finding.message
    compared = comparison(recorded, "off", [len(recorded)])
    assert findings(compared, composed("Stop.")) == []


# --- every single event ----------------------------------------------------------

LOG: Final = composed(notes=["a"], late=["b"], hint="Quick!")


def rewritten(events: Sequence[Event]) -> list[Event]:
    """Events as one log, each citing what it cited, where that is there now."""
    now = {event.seq: n for n, event in enumerate(events)}
    return [
        Event(
            n,
            each.type,
            each.time,
            each.data,
            each.surface_op,
            each.source_event_seqs
            and [now[seq] for seq in each.source_event_seqs if seq in now],
        )
        for n, each in enumerate(events)
    ]


EDITS: Final[dict[str, Callable[[Event], list[Event]]]] = {
    "left out": lambda event: [],
    "twice": lambda event: [event, event],
    "of another type": lambda event: [Event(event.seq, "note/other", 0, {})],
}


@pytest.mark.parametrize("seq", range(len(LOG)))
@pytest.mark.parametrize("verify", LEVELS)
@pytest.mark.parametrize("edit", EDITS)
def test_any_event(seq: int, verify: Verify, edit: str) -> None:
    """Nothing of a skeleton may be another at any level, and nothing at all if strict."""
    live = rewritten([*LOG[:seq], *EDITS[edit](LOG[seq]), *LOG[seq + 1 :]])
    all_found = findings(comparison(LOG, verify), live)
    problems = [each for each in all_found if each.is_problem]
    assert bool(problems) == (verify == "strict" or LOG[seq].type in SKELETON)
    assert bool(all_found) == (verify != "off" or LOG[seq].type in SKELETON)

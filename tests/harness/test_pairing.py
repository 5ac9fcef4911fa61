"""Which delegation started which child."""

from __future__ import annotations

import pytest

from nestling.harness.scenario import RecordedSession, Scenario, build_scenario
from nestling.session.errors import UnreadableError
from support.logs import Ask, Log, recordings, text_chunks


def _scenario(*logs: Log) -> Scenario:
    return build_scenario("tree", recordings(*logs))


def _paths(*logs: Log) -> dict[str, str | None]:
    return {session.id: session.path for session in _scenario(*logs).sessions}


def _session(session_id: str, *logs: Log) -> RecordedSession:
    return _scenario(*logs).by_id[session_id]


def _refusal(*logs: Log) -> str:
    with pytest.raises(UnreadableError) as caught:
        _scenario(*logs)
    return str(caught.value)


def _root(*steps: list[Ask]) -> Log:
    log = Log("root").turn("go")
    for asks in steps:
        log.ask(*asks)
    return log.say("done").end()


def _child(name: str, at: int, prompt: str, answer: str = "ok") -> Log:
    return Log(name, at, parentSession="root").answered(prompt, answer)


# --- prompts and kinds ---------------------------------------------------------


def test_prompts_decide_whatever_the_age() -> None:
    root = _root([Ask("x"), Ask("y")])
    paths = _paths(root, _child("cx", 2, "x"), _child("cy", 1, "y"))
    assert paths == {"root": "/", "cx": "/t1s1b1", "cy": "/t1s1b2"}


def test_a_fork_and_a_spawn_with_one_prompt() -> None:
    root = Log("root").answered("hi", "hello")
    fork = root.fork("fork", 1).answered("x", "forked")
    root.turn("go").ask(Ask("x"), Ask("x", "subagent_fork")).say("done").end()
    paths = _paths(root, fork, _child("spawn", 2, "x"))
    assert paths == {"root": "/", "spawn": "/t2s1b1", "fork": "/t2s1b2"}


def test_the_fork_of_a_first_turn_inherits_nothing() -> None:
    root = _root([Ask("x", "subagent_fork")])
    child = _session("c", root, _child("c", 1, "x"))
    assert (child.path, child.kind, child.seed_length) == ("/t1s1b1", "fork", 0)


def test_a_later_fork_must_inherit() -> None:
    root = Log("root").answered("hi", "a").turn("go").ask(Ask("x", "subagent_fork"))
    child = _session("c", root.say("b").end(), _child("c", 1, "x"))
    assert (child.path, child.kind) == (None, "spawn")


def test_descriptors_tell_a_first_turn_fork_from_a_spawn() -> None:
    def told(name: str, at: int, provider: str, answer: str) -> Log:
        log = Log(name, at, parentSession="root").turn()
        log.add("subagent/descriptor", {"version": 2, "provider": provider})
        return log.user("x").say(answer).end()

    root = _root([Ask("x", "subagent_fork"), Ask("x")])
    paths = _paths(root, told("s", 1, "spawn", "one"), told("f", 2, "fork", "two"))
    assert paths == {"root": "/", "f": "/t1s1b1", "s": "/t1s1b2"}


def test_instructions_before_the_prompt_are_not_the_prompt() -> None:
    child = Log("c", 1, parentSession="root").turn()
    child.user("house rules", source="agent-instructions").user("x").say("ok").end()
    assert _paths(_root([Ask("x")]), child)["c"] == "/t1s1b1"


def test_the_facts_of_a_delegation() -> None:
    root = _root([Ask("x", more={"run_in_background": True}), Ask("y", result=None)])
    scenario = _scenario(root, _child("cx", 1, "x"), _child("cy", 2, "y"))
    x, y = (scenario.by_id[name].delegation for name in ("cx", "cy"))
    assert x is not None
    assert (x.call_seq, x.result_seq, x.is_background) == (8, 10, True)
    assert (x.spawned_by.block, x.spawned_by.context) == (1, "spawn")
    assert y is not None
    assert (y.call_seq, y.result_seq, y.is_background) == (9, None, False)
    assert scenario.by_id["cx"].is_foreign
    assert not scenario.root.is_foreign
    assert scenario.children(scenario.root) == list(scenario.sessions[1:])


def test_a_repeated_call_id_counts_blocks_in_order() -> None:
    root = _root([Ask("x", call_id="same"), Ask("y", call_id="same")])
    paths = _paths(root, _child("cx", 1, "x"), _child("cy", 2, "y"))
    assert (paths["cx"], paths["cy"]) == ("/t1s1b1", "/t1s1b2")


def test_sessions_stand_depth_first_and_numbers_as_numbers() -> None:
    root = _root(*([Ask(f"p{n}")] for n in range(1, 12)))
    children = [_child(f"c{n}", n, f"p{n}") for n in (11, 10, 2)]
    children[2].turn("more").ask(Ask("deep")).say("x").end()
    deep = Log("deep", 1, parentSession="c2").answered("deep", "ok")
    scenario = _scenario(root, *children, deep)
    assert [s.path for s in scenario.sessions] == [
        "/",
        "/t1s2b1",
        "/t1s2b1/t2s1b1",
        "/t1s10b1",
        "/t1s11b1",
    ]
    assert [s.depth for s in scenario.sessions] == [0, 1, 2, 1, 1]
    assert scenario.by_path["/t1s2b1/t2s1b1"].parent_path == "/t1s2b1"


# --- calls without children ----------------------------------------------------


def test_a_refused_call_has_no_child() -> None:
    root = _root([Ask("x", is_error=True)], [Ask("x")])
    assert _paths(root, _child("c", 1, "x"))["c"] == "/t1s2b1"
    assert _paths(_root([Ask("x", is_error=True)])) == {"root": "/"}


def test_a_failed_call_may_have_one() -> None:
    root = _root([Ask("x", is_error=True)])
    assert _paths(root, _child("c", 1, "x"))["c"] == "/t1s1b1"


def test_two_failed_calls_and_one_child_are_ambiguous() -> None:
    root = _root([Ask("x", is_error=True)], [Ask("x", is_error=True)])
    message = _refusal(root, _child("c", 1, "x"))
    for fact in (
        "session.jsonl",
        "session.1.jsonl",
        "turn 1 step 1 block 1",
        "turn 1 step 2 block 1",
        "ambiguous",
        "spawnedBy",
    ):
        assert fact in message


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"prompt": 7}', '{"p": 1}'])
def test_a_call_whose_arguments_say_no_prompt_starts_nobody(arguments: str) -> None:
    root = _root([Ask("x")])
    for row in root.rows:
        if row["type"] == "tool/call":
            row["data"]["arguments"] = arguments
    assert _paths(root, _child("c", 1, "x"))["c"] is None


# --- children without a message ------------------------------------------------


def test_a_child_without_a_message_takes_the_call_that_is_left() -> None:
    root = _root([Ask("x"), Ask("y", is_error=True)])
    silent = Log("silent", 1, parentSession="root")
    paths = _paths(root, silent, _child("cx", 2, "x"))
    assert paths == {"root": "/", "cx": "/t1s1b1", "silent": "/t1s1b2"}


def test_silent_children_of_several_steps_go_in_order() -> None:
    root = _root([Ask("x", is_error=True)], [Ask("y", is_error=True)])
    one = Log("one", 1, parentSession="root").add("note", {"n": 1})
    two = Log("two", 2, parentSession="root")
    assert _paths(root, two, one)["one"] == "/t1s1b1"


# --- twins ---------------------------------------------------------------------


def test_equal_prompts_in_different_steps_go_by_age() -> None:
    root = _root([Ask("x")], [Ask("x")])
    paths = _paths(root, _child("b", 2, "x", "two"), _child("a", 1, "x", "one"))
    assert (paths["a"], paths["b"]) == ("/t1s1b1", "/t1s2b1")


def test_twins_of_one_message_go_by_age() -> None:
    root = _root([Ask("x"), Ask("x")])
    paths = _paths(root, _child("b", 1, "x"), _child("a", 1, "x"))
    assert (paths["a"], paths["b"]) == ("/t1s1b1", "/t1s1b2")


def test_rivals_of_one_message_that_differ_are_ambiguous() -> None:
    root = _root([Ask("x"), Ask("x")])
    message = _refusal(root, _child("a", 1, "x", "one"), _child("b", 2, "x", "two"))
    for fact in ("session.1.jsonl", "session.2.jsonl", "block 1", "block 2", "differ"):
        assert fact in message


def test_three_rivals_of_which_two_are_equal_are_ambiguous() -> None:
    root = _root([Ask("x"), Ask("x"), Ask("x")])
    children = [
        _child(n, i, "x", a)
        for i, (n, a) in enumerate([("a", "1"), ("b", "1"), ("c", "2")])
    ]
    assert "ambiguous" in _refusal(root, *children)


def test_ids_that_texts_repeat_do_not_tell_twins_apart() -> None:
    def twin(name: str) -> Log:
        log = Log(name, 1, parentSession="root").turn("x")
        return log.say(f"I am {name}.").end()

    root = _root([Ask("x"), Ask("x")])
    assert _paths(root, twin("session-aaaa"), twin("session-bbbb"))


def _nested_twin(name: str, at: int, answers: tuple[str, str]) -> list[Log]:
    twin = Log(name, at, parentSession="root").turn("x")
    twin.ask(Ask("deep")).ask(Ask("deeper")).say("ok").end()
    below = [
        twin.child(f"{name}-{n}", 10 - at - n).answered(prompt, answers[n])
        for n, prompt in enumerate(("deep", "deeper"))
    ]
    return [twin, *below]


def test_nested_twins_are_equal_with_all_below_them() -> None:
    root = _root([Ask("x"), Ask("x")])
    a, b = (_nested_twin(name, at, ("1", "2")) for at, name in enumerate("ab"))
    paths = _paths(root, *b, *a)
    assert paths["a"] == "/t1s1b1"
    assert paths["b-1"] == "/t1s1b2/t1s2b1"


def test_twins_that_differ_below_are_ambiguous() -> None:
    root = _root([Ask("x"), Ask("x")])
    a = _nested_twin("a", 1, ("1", "2"))
    b = _nested_twin("b", 2, ("1", "3"))
    assert "ambiguous" in _refusal(root, *a, *b)
    assert "ambiguous" in _refusal(root, *a, *b[:2])


def test_twins_of_which_one_has_one_child_more_are_ambiguous() -> None:
    root = _root([Ask("x"), Ask("x")])
    stray = Log("stray", 5, parentSession="b")
    a, b = _child("a", 1, "x"), _child("b", 2, "x")
    assert "ambiguous" in _refusal(root, a, b, stray)


# --- children that no call explains --------------------------------------------


def test_a_child_that_no_call_explains_has_no_path_and_stands_last() -> None:
    root = _root([Ask("x")])
    stray = _child("stray", 1, "from a workflow")
    below = stray.child("below", 0)
    scenario = _scenario(root, stray, below, _child("c", 2, "x"))
    assert [(s.id, s.path) for s in scenario.sessions] == [
        ("root", "/"),
        ("c", "/t1s1b1"),
        ("below", None),
        ("stray", None),
    ]
    assert scenario.by_id["stray"].delegation is None
    assert scenario.by_id["stray"].kind == "spawn"


def test_one_child_too_many_is_ambiguous_unless_they_are_equal() -> None:
    root = _root([Ask("x")])
    twins = [_child("a", 1, "x"), _child("b", 2, "x")]
    assert _paths(root, *twins) == {"root": "/", "a": "/t1s1b1", "b": None}
    assert "ambiguous" in _refusal(root, twins[0], _child("c", 3, "x", "other"))


# --- spawnedBy -----------------------------------------------------------------


def _stated(name: str, **spawned_by: object) -> Log:
    stated = {"turn": 1, "step": 1, "context": "spawn", **spawned_by}
    log = Log(name, 1, parentSession="root", spawnedBy=stated)
    return log.answered("x", name)


def test_what_the_header_states_is_taken() -> None:
    root = _root([Ask("x", "subagent_fork"), Ask("x")])
    scenario = _scenario(
        root,
        _stated("b2", block=2),
        _stated("b1", block=1, context="fork", callId="root-c3-0"),
        _stated("again", block=1, n=1, context="fork"),
        _stated("code", key="k.1"),
        _stated("count", n=3),
    )
    paths = {s.id: (s.path, s.kind, s.is_foreign) for s in scenario.sessions[1:]}
    assert paths == {
        "b1": ("/t1s1b1", "fork", False),
        "again": ("/t1s1b1.1", "fork", False),
        "b2": ("/t1s1b2", "spawn", False),
        "code": ("/t1s1kk%2E1", "spawn", False),
        "count": ("/t1s1d3", "spawn", False),
    }


def test_a_silent_child_takes_what_stated_ones_leave() -> None:
    root = _root([Ask("x"), Ask("x")])
    paths = _paths(root, _stated("told", block=2), _child("silent", 2, "x", "other"))
    assert paths["silent"] == "/t1s1b1"


@pytest.mark.parametrize(
    ("spawned_by", "facts"),
    [
        ({"block": 0}, ("turn 1, step 1, block 0", "tool call")),
        ({"block": 3}, ("block 3", "tool call")),
        ({"block": 1, "turn": 2}, ("turn 2, step 1", "tool call")),
        ({"key": "k", "step": 9}, ("turn 1, step 9", "no step")),
        ({"block": 1, "callId": "other"}, ("callId", "'other'", "'root-c3-0'")),
        ({"block": 1, "context": "fork"}, ("context", "subagent", "expected spawn")),
    ],
)
def test_what_the_parent_does_not_have_is_refused(
    spawned_by: dict[str, object], facts: tuple[str, ...]
) -> None:
    message = _refusal(_root([Ask("x")]), _stated("c", **spawned_by))
    assert all(fact in message for fact in ("session.1.jsonl", *facts))


def test_two_children_on_one_path_are_refused() -> None:
    message = _refusal(_root([Ask("x")]), *(_stated(n, block=1) for n in "ab"))
    assert "session.1.jsonl and session.2.jsonl" in message
    assert "/t1s1b1" in message


def test_a_spawn_that_inherited_is_refused() -> None:
    root = Log("root").answered("hi", "a")
    stated = {"turn": 2, "step": 1, "context": "spawn", "block": 1}
    child = root.fork("c", 1, spawnedBy=stated)
    root.turn("go").ask(Ask("x")).say("b").end()
    message = _refusal(root, child.answered("x", "c"))
    assert "session.1.jsonl" in message
    assert "seedLength is 8" in message


# --- malformed parents ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["assistant/message", "tool/call", "tool/result"])
def test_a_malformed_event_of_a_parent_is_refused(kind: str) -> None:
    root = _root([Ask("x")])
    root.add(kind, {"turn": 1})
    assert "session.jsonl line" in _refusal(root, _child("c", 1, "x"))
    assert _paths(root) == {"root": "/"}


def test_a_call_that_no_message_asked_for_starts_nobody() -> None:
    root = Log("root").turn("go").chunks(text_chunks("a"))
    call = {"callId": "c", "name": "subagent", "arguments": '{"prompt": "x"}'}
    root.add("tool/call", {"turn": 1, "step": 1, **call}).end()
    assert _paths(root, _child("c", 1, "x"))["c"] is None

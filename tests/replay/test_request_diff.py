"""What is told of two requests that differ."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.harness.matching import Matcher, Renaming
from nestling.harness.normalise import Normalisers
from nestling.harness.request_diff import Change, changes_text, request_changes
from nestling.harness.volatile import advice
from nestling.session.jsontext import Json, JsonObject
from nestling.session.request import Request

A = "0f8fad5b-d9cb-469f-a165-70867728950e"
B = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def said(text: str, role: str = "user", **more: Json) -> JsonObject:
    return {"role": role, "content": [{"type": "text", "text": text}], **more}


def request(*messages: JsonObject, **more: Any) -> Request:
    config = {"provider": "p", "model": "m", **more.pop("config", {})}
    return Request("p", "m", config, more.get("system"), more.get("tools"), [*messages])


def changes(live: Request, recorded: Request) -> list[Change]:
    return request_changes(live, recorded, Matcher(Normalisers(), Renaming()))


def told(live: Request, recorded: Request) -> list[tuple[str, tuple[str, ...]]]:
    return [(change.place, change.lines) for change in changes(live, recorded)]


# --- what differs ----------------------------------------------------------------


def test_equal_requests() -> None:
    one = request(said("a", id="1"), system="s", tools=[{"name": "t"}])
    assert (
        told(one, request(said("a", id="2"), system="s", tools=[{"name": "t"}])) == []
    )


def test_what_a_model_does_not_see() -> None:
    assert told(request(said("a", source={"k": 1})), request(said("a"))) == []


def test_options() -> None:
    one, other = request(config={"t": 1, "x": 2}), request(config={"t": 0, "y": 3})
    assert told(one, other) == [
        ("config.t", ("- 0", "+ 1")),
        ("config.y", ("- 3",)),
        ("config.x", ("+ 2",)),
    ]


def test_no_system_prompt() -> None:
    assert told(request(system="s"), request()) == [("system", ("- null", "+ s"))]


def test_lines_of_a_prompt() -> None:
    one, other = request(system="a\nb\nc\nd"), request(system="a\nB\nc\nd\ne")
    assert told(one, other) == [("system", ("- B", "+ b", "- e"))]


def test_a_long_line_is_cut_down_to_its_difference() -> None:
    one, other = (request(system="x" * 500 + word + "y" * 500) for word in "pq")
    ((_, (was, now)),) = told(one, other)
    assert was == f"- …{'x' * 30}q{'y' * 69}…"
    assert now == f"+ …{'x' * 30}p{'y' * 69}…"


def test_many_lines_are_cut_short() -> None:
    one, other = (request(system="\n".join(word * 40)) for word in "ab")
    ((_, lines),) = told(one, other)
    assert len(lines) == 25
    assert lines[-1] == "… 56 more lines"


def test_a_text_of_thousands_of_lines() -> None:
    """It is not compared line by line with every other line."""
    one, other = (
        request(system="\n".join(f"{word}{n}" for n in range(5000))) for word in "ab"
    )
    ((_, lines),) = told(one, other)
    assert lines[:2] == ("- b0", "+ a0")


def test_tools() -> None:
    deploy = {"name": "deploy", "description": "Go.", "parameters": {"a": 1}}
    other = {**deploy, "parameters": {"a": 2}}
    one = request(tools=[deploy, {"name": "new"}])
    assert told(one, request(tools=[{"name": "old"}, other])) == [
        ("tools.old", ('- {"name":"old"}',)),
        ("tools.deploy.parameters.a", ("- 2", "+ 1")),
        ("tools.new", ('+ {"name":"new"}',)),
    ]


def test_the_order_of_tools() -> None:
    one, other = [{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]
    assert told(request(tools=one), request(tools=other)) == [
        ("the order of tools", ("- b, a", "+ a, b"))
    ]


@pytest.mark.parametrize("tools", ["{{tools}}", [1], [{"name": "a"}, {"name": "a"}]])
def test_tools_that_have_no_names(tools: Json) -> None:
    ((place, _),) = told(request(tools=tools), request(tools=[{"name": "b"}]))
    assert place == "tools"


def test_messages() -> None:
    one = request(said("a"), said("new"), said("b"), said("c", "assistant"))
    other = request(said("a"), said("b"), said("C", "assistant"), said("old"))
    assert told(one, other) == [
        ("messages[1] (user) is new", ("+ new",)),
        ("messages[3] (assistant)", ("- C", "+ c")),
        ("messages[3] (user) is missing", ("- old",)),
    ]


def test_messages_whose_text_is_the_same() -> None:
    block = {"type": "image", "url": "x"}
    one = request({"role": "user", "content": [block]})
    other = request({"role": "user", "content": [{**block, "url": "y"}]})
    assert told(one, other) == [
        (
            "messages[0] (user)",
            ('- {"type":"image","url":"y"}', '+ {"type":"image","url":"x"}'),
        )
    ]


def test_another_role() -> None:
    ((place, lines),) = told(request(said("a", "system")), request(said("a")))
    assert (place, lines) == ("messages[0] (system).role", ("- user", "+ system"))


def test_one_id_for_two() -> None:
    ((place, (line,)),) = told(request(said(A), said(A)), request(said(B), said(A)))
    assert place == "messages[1] (user)"
    assert line == f"{{{{uuid}}}} {A} stands for {A}, and elsewhere for {B}"


def test_a_difference_is_shown_without_what_varies() -> None:
    one, other = request(said(f"{A} x 2026-12-01")), request(said(f"{B} y 2020-01-01"))
    ((_, lines),) = told(one, other)
    assert lines == ("- {{uuid}} y {{time}}", "+ {{uuid}} x {{time}}")


def test_nothing_of_a_text_reaches_a_terminal_raw() -> None:
    ((_, lines),) = told(request(said("\x1b[31m")), request(said("b")))
    assert lines == ("- b", "+ \\x1b[31m")


def test_the_text() -> None:
    found = changes(request(system="a", config={"t": 1}), request(system="b"))
    assert changes_text(found) == (
        "the request is not the recorded one, in the model options and the system "
        "prompt\nconfig.t:\n  + 1\nsystem:\n  - b\n  + a"
    )


# --- what looks volatile ---------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "recorded", "what"),
    [
        (f"id {A}.", f"id {B}.", "a uuid"),
        ("on 2026-12-01", "on 2026-12-02", "a time"),
        ("at 1796122055", "at 1796122056", "a time"),
        ("on Tue Dec 1", "on Wed Dec 2", "a date"),
        ("Dec 1, 2026", "Nov 30, 2026", "a date"),
        ("in /tmp/abc/x", "in /tmp/xyz/x", "a temporary path"),
        ("in /var/folders/a1", "in /var/folders/b2", "a temporary path"),
        ("took 12 ms.", "took 9 ms.", "a duration"),
        ("http://localhost:4711/a", "http://localhost:4712/a", "a port"),
        ("port 4711", "port 4712", "a port"),
        ("pid 17", "pid 18", "a process id"),
        ("commit 3f2a9bc", "commit 9bc3f2a", "an id of hexadecimal digits"),
        ("at 0x7f330ef8a7d0>", "at 0x7f3315a6d850>", "an id of hexadecimal digits"),
    ],
)
def test_what_looks_volatile(live: str, recorded: str, what: str) -> None:
    found = advice(live, recorded, Normalisers(()))
    assert found is not None
    assert f"it looks like {what}, which changes from run to run: " in found
    assert "scenario.toml" in found


@pytest.mark.parametrize(
    ("live", "recorded"),
    [
        ("Hello.", "Goodbye."),
        ("pid 17 ok", "pid 17 bad"),
        ("2026-12-01", "2026-12-02"),
        ("a", None),
        (f"{A} one", f"{B} two"),
        ("deadbeef", "coffee"),
    ],
)
def test_what_does_not(live: str, recorded: str | None) -> None:
    assert advice(live, recorded, Normalisers()) is None


def test_a_built_in_normaliser_is_named() -> None:
    told = advice(A, B, Normalisers(("time",)))
    assert told is not None
    assert 'add "uuid" to `normalise` in scenario.toml' in told

"""What normalisers find, and what is the same under them."""

from __future__ import annotations

import re

import pytest

from nestling.driver.run_directory_io import RunDirectory
from nestling.harness import normalise
from nestling.harness.matching import Matcher, Renaming, normalised_equal
from nestling.harness.normalise import Normalisers
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject

A = "0f8fad5b-d9cb-469f-a165-70867728950e"
B = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
C = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def matcher(*built_in: str, **declared: str) -> Matcher:
    return Matcher(Normalisers(built_in, declared), Renaming())


# --- time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-01",
        "2026-12-01T16:18:47Z",
        "2026-12-01T16:18:47.123456+01:00",
        "2026-12-01 16:18:47",
        "2026-12-01 16:18",
        "16:18:47",
        "20261201T161847Z",
        "1796122055",
        "1796122055206",
        "1796122055.206",
    ],
)
@pytest.mark.parametrize("around", ["{}", "It is {}.", '{{"at":{}}}', "({}) {}"])
def test_what_is_a_time(text: str, around: str) -> None:
    found = Normalisers(("time",)).normalised(around.format(text, text))
    assert found == around.format("{{time}}", "{{time}}")


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01",
        "2026-12-32",
        "berth 10:30",
        "ticket-1796122055",
        "x1796122055",
        "17961220552",
        "3796122055",
        "v2026-12-01-beta",
        "1.2026-12-01",
        "123456",
    ],
)
def test_what_is_no_time(text: str) -> None:
    assert Normalisers(("time",)).normalised(text) == text


def test_times_are_not_told_apart() -> None:
    """Two looks at a clock may give one time or two."""
    times = matcher("time")
    assert times.is_same(["2026-12-01", "2026-12-02"], ["2020-01-01", "2020-01-01"])
    assert times.is_same({"at": 1796122055206}, {"at": 1796122055999})
    assert not times.is_same({"at": 1796122055206}, {"at": 12})
    assert not times.is_same({"at": 1796122055206}, {"at": "1796122055206"})


# --- ids -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "recorded", "is_same"),
    [
        ([A, A], [B, B], True),
        ([A, B], [B, C], True),
        ([A, A], [B, C], False),
        ([A, B], [C, C], False),
        ([A, B], [B, A], True),
        ([f"{A} {A}"], [f"{B} {C}"], False),
        ([{"a": A, "b": B}], [{"b": C, "a": B}], True),
        ([A], [A.upper()], True),
        ([A], ["no id"], False),
        ([A, A], [A, B], False),
        # What a model was recorded to say quotes the recorded id.
        ([A, B], [B, B], True),
    ],
)
def test_ids_are_renamed(live: Json, recorded: Json, is_same: bool) -> None:
    assert matcher("uuid").is_same(live, recorded) is is_same


def test_a_name_holds_from_one_value_to_the_next() -> None:
    ids = matcher("uuid")
    assert ids.is_same({"id": A}, {"id": B})
    assert ids.is_same({"again": A}, {"again": B})
    assert ids.difference(A, C) == (
        f"{{{{uuid}}}} {A} stands for {C}, and elsewhere for {B}"
    )
    assert ids.difference(C, B) == (
        f"{{{{uuid}}}} {C} stands for {B}, which elsewhere is {A}"
    )


def test_what_differs_names_nothing() -> None:
    ids = matcher("uuid")
    assert not ids.is_same([A, "x"], [B, "y"])
    assert ids.is_same([A], [C])


def test_without_the_normaliser_ids_are_texts() -> None:
    assert not matcher("time").is_same(A, B)


@pytest.mark.parametrize(
    ("live", "recorded"), [(1, 1.0), ([1], [1.0]), ({}, {}), (None, None)]
)
def test_equal_json_is_the_same(live: Json, recorded: Json) -> None:
    assert matcher().is_same(live, recorded)


@pytest.mark.parametrize(
    ("live", "recorded"),
    [(1, True), ("1", 1), ([], {}), ([1], [1, 1]), ({"a": 1}, {"b": 1}), (1, 2)],
)
def test_other_json_is_not(live: Json, recorded: Json) -> None:
    assert not matcher("time", "cwd", "uuid").is_same(live, recorded)


# --- places --------------------------------------------------------------------


def test_a_workers_directory_is_found() -> None:
    """Whatever the run directory's module calls it."""
    run = RunDirectory()
    try:
        work = str(run.work_of("w0"))
    finally:
        run.remove()
    normalisers = Normalisers(("cwd",))
    assert normalisers.normalised(work) == "{{cwd}}"
    assert normalisers.normalised(f"{work}.2/x") == "{{cwd}}/x"
    assert normalisers.normalised(f"in {work}/a.txt.") == "in {{cwd}}/a.txt."
    assert normalisers.normalised(f"{work}x") == f"{work}x"


def test_places_go_longest_first_and_end_where_names_end() -> None:
    places = {"/home/x": "cwd", "/home/x/case": "scenario", "/": "cwd"}
    normalisers = Normalisers(places=places)
    for text, told in (
        ("/home/x/case/a /home/x/b", "{{scenario}}/a {{cwd}}/b"),
        ("file:///home/x", "file://{{cwd}}"),
        ("see /home/x.", "see {{cwd}}."),
        ("/home/xy", "/home/xy"),
        ("/home/x.d", "/home/x.d"),
        ("/mnt/home/x", "/mnt/home/x"),
        ("/home/x/case-2", "{{cwd}}/case-2"),
        ('{"cwd":"/home/x"}', '{"cwd":"{{cwd}}"}'),
    ):
        assert normalisers.normalised(text) == told
        assert normalisers.without_places([{"a": text}]) == [{"a": told}]


def test_a_recording_holds_tokens() -> None:
    live = Normalisers(places={"/home/x": "cwd"})
    assert Matcher(live, Renaming()).is_same("in /home/x/a", "in {{cwd}}/a")
    assert live.without_places("{{cwd}} 2026-12-01") == "{{cwd}} 2026-12-01"


def test_without_the_normaliser_recordings_keep_their_paths() -> None:
    assert (
        Normalisers(("time",), places={"/a/b": "cwd"}).without_places("/a/b") == "/a/b"
    )


def test_other_places() -> None:
    moved = Normalisers(places={"/a/b": "cwd"}).at({"/c/d": "scenario"})
    assert moved.normalised("/a/b /c/d") == "/a/b {{scenario}}"


# --- declared ones -------------------------------------------------------------


def test_a_declared_normaliser_goes_first() -> None:
    declared = matcher("time", ticket="T-[0-9-]+")
    assert declared.normalisers.normalised("T-2026-12-01") == "{{ticket}}"
    assert declared.is_same("T-1 T-2 T-1", "T-7 T-8 T-7")
    assert not declared.is_same("T-3 T-3", "T-4 T-5")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"x": "["}, "normalisers.x: '[' is no regular expression: "),
        ({"x": "a*"}, "normalisers.x: 'a*' matches the empty text"),
        ({"uuid": "a"}, "normalisers.uuid: expected another name"),
        ({"scenario": "a"}, "normalisers.scenario: expected another name"),
        ({"a b": "a"}, "normalisers.a b: expected another name"),
    ],
)
def test_a_normaliser_that_is_none(declared: dict[str, str], told: str) -> None:
    with pytest.raises(UnreadableError) as error:
        Normalisers(declared=declared)
    assert str(error.value).startswith(told)


def test_a_built_in_normaliser_that_is_none() -> None:
    with pytest.raises(UnreadableError, match="found 'clock', expected some of time"):
        Normalisers(("time", "clock"))


# --- logs ----------------------------------------------------------------------


class Log:
    def __init__(self, *texts: str, **fields: Json) -> None:
        self.header = Header("s", fields.pop("created", 0), fields)
        self.events = [Event(n, "note", n, {"t": t}) for n, t in enumerate(texts)]


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (Log(A, A), Log(B, B), True),
        (Log(A, A), Log(B, C), False),
        (Log("x"), Log("x", "y"), False),
        (Log("x"), Log("y"), False),
        (Log("x", created=5), Log("x"), True),
        (Log("x", seedLength=2), Log("x", seedLength=3), False),
        (Log("x", seedDigest="1"), Log("x", seedDigest="2"), True),
    ],
)
def test_logs_that_are_equal_when_normalised(
    one: Log, other: Log, is_equal: bool
) -> None:
    assert normalised_equal(one, other, Normalisers()) is is_equal


def test_the_names_of_one_log_hold_in_the_next() -> None:
    renaming = Renaming()
    assert normalised_equal(Log(A), Log(B), Normalisers(), renaming)
    assert not normalised_equal(Log(A), Log(C), Normalisers(), renaming)


def test_tokens_in_json() -> None:
    value: JsonObject = {"a": [A, 1796122055206, 5], "b": "2026-12-01"}
    told = {"a": ["{{uuid}}", "{{time}}", 5], "b": "{{time}}"}
    assert Normalisers().normalised_json(value) == told


def test_a_long_text_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many sessions have one system prompt; its megabytes are compared in each of them."""
    looked: list[str] = []
    cut = normalise._cut

    def counting(
        text: str, patterns: list[tuple[str, re.Pattern[str]]]
    ) -> list[normalise.Piece]:
        looked.append(text)
        return cut(text, patterns)

    monkeypatch.setattr(normalise, "_cut", counting)
    normalisers = Normalisers(("uuid",)).at({})
    text = f"{A} and {B}" + "." * normalise._LONG
    for _ in range(3):
        pieces = normalisers.pieces(text)
        assert [each for each in pieces if not isinstance(each, str)] == [
            normalise.Value("uuid", A),
            normalise.Value("uuid", B),
        ]
        pieces.clear()  # what is handed out is the caller's
        assert len(list(normalisers.values(text))) == 2
    assert len(looked) == 2

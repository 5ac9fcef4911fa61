"""Session ids as file names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.ids import LONGEST_NAME, encode_id, id_of_parts, id_parts

_ANY_TEXT = st.text(st.characters(exclude_categories=()), min_size=1)
_TRICKY = st.text("./\\~.:aA0\ud83d\ude00\U0001f600", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("session_id", "name"),
    [
        ("session-1_A.b", "session-1_A.b"),
        ("...", "~002E.~002E"),
        (".hidden", "~002Ehidden"),
        ("a.b.", "a.b~002E"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("../x", "~002E.~002Fx"),
        ("/etc", "~002Fetc"),
        ("a\\b:c", "a~005Cb~003Ac"),
        ("~", "~007E"),
        ("~002E", "~007E002E"),
        ("\0\n ", "~0000~000A~0020"),
        ("é", "~00E9"),
        ("\U0001f600", "~D83D~DE00"),
        ("\ud83d", "~D83D"),
        ("--help", "--help"),
        ("session.jsonl", "session.jsonl"),
        ("CON", "~0043ON"),
        ("nul.txt", "~006Eul.txt"),
        ("Com1", "~0043om1"),
        ("LPT9.", "~004CPT9~002E"),
        ("console", "console"),
        ("x.con", "x.con"),
        ("COM10", "COM10"),
    ],
)
def test_known_names(session_id: str, name: str) -> None:
    """J1: traversal, separators and absolute paths are neutralised."""
    assert encode_id(session_id) == name


def test_an_empty_id_is_refused() -> None:
    """J3."""
    for encode in (encode_id, id_parts):
        with pytest.raises(ValueError, match="must not be empty"):
            encode("")


def _utf16(text: str) -> bytes:
    """What an id is in a file: a split pair and its character are the same there."""
    return text.encode("utf-16-be", "surrogatepass")


@given(_ANY_TEXT | _TRICKY, _ANY_TEXT | _TRICKY)
@settings(max_examples=200, deadline=None)
def test_no_two_ids_share_a_name(a: str, b: str) -> None:
    """J2."""
    assert (encode_id(a) == encode_id(b)) == (_utf16(a) == _utf16(b))


def _decoded(name: str) -> bytes:
    return re.sub(
        rb"~([0-9A-F]{4})|([^~])",
        lambda match: (
            bytes.fromhex(match[1].decode()) if match[1] else b"\0" + match[2]
        ),
        name.encode("ascii"),
    )


@given(_ANY_TEXT | _TRICKY)
@settings(max_examples=200, deadline=None)
def test_a_name_can_be_read_back_and_is_harmless(session_id: str) -> None:
    name = encode_id(session_id)
    assert _decoded(name) == _utf16(session_id)
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", name)
    assert not name.startswith(".")
    assert not name.endswith((".", "~"))


# --- components ------------------------------------------------------------------

_LONG = st.text("a.~é\U0001f600", min_size=LONGEST_NAME // 2, max_size=512)
_DEVICES = {"CON", "PRN", "AUX", "NUL", "COM1", "LPT9"}


def test_a_name_is_one_component_as_long_as_it_fits() -> None:
    assert id_parts("a" * LONGEST_NAME) == ["a" * LONGEST_NAME]
    first, second = id_parts("a" * (LONGEST_NAME + 1))
    assert first == "a" * (len(first) - 1) + "~"
    assert second == "a" * (LONGEST_NAME + 2 - len(first))


@pytest.mark.parametrize("middle", ["CON", ".", "..", ".x.", "nul.x", "session.jsonl"])
@pytest.mark.parametrize("fill", ["a", "é", ".", "\U0001f600"])
def test_a_component_is_harmless_wherever_the_cut_falls(fill: str, middle: str) -> None:
    for length in range(185, 200):
        session_id = "a" * length + middle + fill * 300
        parts = id_parts(session_id)
        assert id_of_parts(parts) == session_id
        _check_harmless(parts)
    parts = id_parts(fill * 300 + middle)
    _check_harmless(parts)


def _check_harmless(parts: list[str]) -> None:
    assert len(parts) > 1
    for part in parts:
        assert len(part) <= LONGEST_NAME
        assert not part.startswith(".")
        assert not part.endswith(".")
        assert part.split(".")[0].upper() not in _DEVICES
    assert [part.endswith("~") for part in parts] == [True] * (len(parts) - 1) + [False]


@given(_ANY_TEXT | _TRICKY | _LONG)
@settings(max_examples=200, deadline=None)
def test_components_can_be_read_back(session_id: str) -> None:
    parts = id_parts(session_id)
    assert _utf16(id_of_parts(parts)) == _utf16(session_id)
    if len(parts) == 1:
        assert parts == [encode_id(session_id)]


@given(_LONG, _LONG)
@settings(max_examples=200, deadline=None)
def test_no_ids_path_leads_through_another_ones(a: str, b: str) -> None:
    """Files lie in the last component only, so none can be where a directory is."""
    shorter, longer = sorted((id_parts(a), id_parts(b)), key=len)
    assert longer[: len(shorter)] != shorter or a == b


@pytest.mark.parametrize(
    "parts",
    [
        [], [""], ["~"], ["a~"], ["a", "b"], ["a~", "b"], ["~0061"], ["~002e"], ["lost+"],
        [".x"], ["x."], ["CON"], ["a" * 201], ["é"], ["~12"], ["~D83D~"],
    ],
)  # fmt: skip
def test_what_is_no_ids_path_is_refused(parts: list[str]) -> None:
    with pytest.raises(ValueError, match="is not the path of a session id"):
        id_of_parts(parts)

"""Session ids as file names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.ids import encode_id

_ANY_TEXT = st.text(st.characters(exclude_categories=()), min_size=1)
_TRICKY = st.text("./\\~.:aA0\ud83d\ude00\U0001f600", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("session_id", "name"),
    [
        ("session-1_A.b", "session-1_A.b"),
        ("...", "..."),
        (".hidden", ".hidden"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("../x", "..~002Fx"),
        ("/etc", "~002Fetc"),
        ("a\\b:c", "a~005Cb~003Ac"),
        ("~", "~007E"),
        ("~002E", "~007E002E"),
        ("\0\n ", "~0000~000A~0020"),
        ("é", "~00E9"),
        ("\U0001f600", "~D83D~DE00"),
        ("\ud83d", "~D83D"),
    ],
)
def test_known_names(session_id: str, name: str) -> None:
    assert encode_id(session_id) == name


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        encode_id("")


def _utf16(text: str) -> bytes:
    """What an id is in a file: a split pair and its character are the same there."""
    return text.encode("utf-16-be", "surrogatepass")


@given(_ANY_TEXT | _TRICKY, _ANY_TEXT | _TRICKY)
@settings(max_examples=200, deadline=None)
def test_no_two_ids_share_a_name(a: str, b: str) -> None:
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
    assert name not in (".", "..")

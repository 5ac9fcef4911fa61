"""Who is let in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.wire.admission import REFUSALS_KEPT, Admission, parse_peer_pid

# expected pid, token shown, peer pid -> reason
TABLE: list[tuple[int | None, bytes | str, int | None, str | None]] = [
    (None, "right", None, None),
    (None, b"right", 7, None),
    (7, "right", 7, None),
    (7, "right", None, None),
    (7, "right", 8, "pid 8, expected 7"),
    (7, "wrong", 7, "wrong token"),
    (7, "", 7, "wrong token"),
    (None, b"\xff\xfe", None, "wrong token"),
    (None, "right ", None, "wrong token"),
    (7, "wrong", 8, "wrong token"),
]


@pytest.mark.parametrize(("pid", "token", "peer_pid", "reason"), TABLE)
def test_admission_table(
    pid: int | None, token: bytes | str, peer_pid: int | None, reason: str | None
) -> None:
    admission = Admission()
    admission.expect("u", "right", pid)
    assert admission.admit("u", token, peer_pid) == reason
    expected = [] if reason is None else [("u", reason)]
    assert admission.refusals == expected
    assert admission.refused == len(expected)


def test_nobody_is_admitted_unexpected() -> None:
    admission = Admission()
    assert admission.admit("u", "right") == "unknown user"
    admission.expect("u", "right")
    assert admission.admit("v", "right") == "unknown user"
    assert admission.admit("", "") == "unknown user"


def test_a_token_works_once() -> None:
    admission = Admission()
    admission.expect("u", "right")
    assert admission.admit("u", "right") is None
    assert admission.admit("u", "right") == "token already used"
    assert admission.admit("u", "wrong") == "wrong token"


def test_a_wrong_guess_does_not_lock_the_right_peer_out() -> None:
    admission = Admission()
    admission.expect("u", "right", 7)
    assert admission.admit("u", "wrong", 7) == "wrong token"
    assert admission.admit("u", "right", 8) == "pid 8, expected 7"
    assert admission.admit("u", "right", 7) is None


def test_a_token_is_only_its_own_users() -> None:
    admission = Admission()
    admission.expect("u", "tu")
    admission.expect("v", "tv")
    assert admission.admit("u", "tv") == "wrong token"
    assert admission.admit("v", "tv") is None


def test_a_pid_that_comes_late_is_compared_late() -> None:
    admission = Admission()
    for user in "uvwx":
        admission.expect(user, "right")
    admission.admit("u", "right", 7)
    admission.admit("v", "right", 7)
    admission.admit("w", "right", None)
    assert admission.set_pid("u", 7) is None
    assert admission.set_pid("v", 8) == "pid 7, expected 8"
    assert admission.set_pid("w", 8) is None
    assert admission.set_pid("x", 8) is None
    assert admission.set_pid("nobody", 8) is None
    assert admission.admit("x", "right", 9) == "pid 9, expected 8"
    assert admission.refusals == [
        ("v", "pid 7, expected 8"),
        ("x", "pid 9, expected 8"),
    ]


def test_forget() -> None:
    admission = Admission()
    admission.expect("u", "right")
    admission.forget("u")
    admission.forget("u")
    assert admission.admit("u", "right") == "unknown user"
    admission.expect("u", "new")
    assert admission.admit("u", "new") is None


def test_what_cannot_be_expected() -> None:
    admission = Admission()
    admission.expect("u", "t")
    for user, token in (("u", "t"), ("", "t"), ("v", ""), ("é" * 128, "t")):
        with pytest.raises(ValueError, match="expected"):
            admission.expect(user, token)
    with pytest.raises(ValueError, match="a token of 256 bytes"):
        admission.expect("v", b"t" * 256)


def test_only_the_last_refusals_are_kept() -> None:
    admission = Admission()
    for n in range(REFUSALS_KEPT + 5):
        admission.admit(str(n), "t")
    assert admission.refused == REFUSALS_KEPT + 5
    assert len(admission.refusals) == REFUSALS_KEPT == 100
    assert admission.refusals[-1] == ("104", "unknown user")


def test_no_token_is_kept() -> None:
    admission = Admission()
    admission.expect("u", "secret-token")
    assert "secret-token" not in repr(vars(admission))


@pytest.mark.parametrize(
    ("address", "pid"),
    [
        ("localhost:1000:100:4242", 4242),
        ("localhost:0:0:1", 1),
        ("localhost:1000:100:0", None),
        ("localhost:1000:100", None),
        ("localhost:1000:100:-1", None),
        ("localhost:1000:100:1:2", None),
        ("localhost:1000:100:1\n", None),
        ("localhost:1000:100:\u0661", None),
        ("localhost:1000:100:99999999999", None),
        ("127.0.0.1", None),
        ("::1", None),
        ("", None),
    ],
)
def test_parse_peer_pid(address: str, pid: int | None) -> None:
    assert parse_peer_pid(address) == pid


@given(st.text())
def test_parse_peer_pid_takes_anything(address: str) -> None:
    pid = parse_peer_pid(address)
    assert pid is None or pid > 0

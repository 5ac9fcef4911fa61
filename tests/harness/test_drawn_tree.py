"""A tree of spawn paths as it is drawn: one line a session, in the tree's order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nestling.harness.drawn_tree import drawn_labels

DRAWN: list[tuple[str, Sequence[str], str]] = [
    ("nothing", [], ""),
    ("a root", ["/"], "/"),
    (
        "one child",
        ["/", "/t1s1b0"],
        """
/
└─ t1s1b0
""",
    ),
    (
        "siblings, numbers as numbers",
        ["/t1s1b10", "/t1s1b2", "/", "/t1s2b0"],
        """
/
├─ t1s1b2
├─ t1s1b10
└─ t1s2b0
""",
    ),
    (
        "nested under the last and under another",
        [
            *("/", "/t1s1b0", "/t1s1b0/t1s1b0", "/t1s1b0/t1s1b1"),
            *("/t1s1b1", "/t1s1b1/t1s1b0", "/t1s1b1/t1s1b0/t2s1b0"),
        ],
        """
/
├─ t1s1b0
│  ├─ t1s1b0
│  └─ t1s1b1
└─ t1s1b1
   └─ t1s1b0
      └─ t2s1b0
""",
    ),
    (
        "a line goes on past what lies below",
        ["/", "/t1s1b0", "/t1s1b0/t1s1b0", "/t1s1b0/t1s1b0/t1s1b0", "/t2s1b0"],
        """
/
├─ t1s1b0
│  └─ t1s1b0
│     └─ t1s1b0
└─ t2s1b0
""",
    ),
    (
        "further ones of one call, keys and counts",
        ["/", "/t1s1b0.1", "/t1s1b0", "/t1s1b0.10", "/t1s1b0.2", "/t1s1ka%20b", "/t1s1d0"],
        """
/
├─ t1s1b0
├─ t1s1b0.1
├─ t1s1b0.2
├─ t1s1b0.10
├─ t1s1d0
└─ t1s1ka%20b
""",
    ),
    (
        "many roots, of which none is there",
        ["/t1s1b0", "/t1s1b1/t1s1b0", "/t1s1b1"],
        """
├─ t1s1b0
└─ t1s1b1
   └─ t1s1b0
""",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "drawn"), [case[1:] for case in DRAWN], ids=[case[0] for case in DRAWN]
)
def test_a_tree_is_drawn(paths: Sequence[str], drawn: str) -> None:
    for given in (paths, paths[::-1], [*paths, *paths]):
        labels = drawn_labels(given)
        assert "\n".join(labels.values()) == drawn.strip("\n")
        assert sorted(labels) == sorted(paths)


def test_each_line_is_of_its_path() -> None:
    labels = drawn_labels(["/t1s1b0/t9s9b9", "/", "/t1s1b0", "/t3s1b0"])
    assert labels == {
        "/": "/",
        "/t1s1b0": "├─ t1s1b0",
        "/t1s1b0/t9s9b9": "│  └─ t9s9b9",
        "/t3s1b0": "└─ t3s1b0",
    }


def test_a_parent_that_is_not_there() -> None:
    """A session may be drawn before its parent has said anything."""
    assert list(drawn_labels(["/", "/t1s1b0/t1s1b0"]).values()) == [
        "/",
        "   └─ t1s1b0",
    ]

"""Spawn paths: how they are made, and how they sort."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.header import SpawnedBy
from nestling.session.spawn_path import ROOT, child_path, sort_key

_ANY_TEXT = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("parent", "spawned_by", "path"),
    [
        ("/", SpawnedBy(2, 1, "fork", block=1), "/t2s1b1"),
        ("/t2s1b1", SpawnedBy(1, 1, "spawn", block=0), "/t2s1b1/t1s1b0"),
        ("/", SpawnedBy(1, 2, "spawn", block=0, n=1), "/t1s2b0.1"),
        ("/", SpawnedBy(1, 2, "spawn", block=0, n=10), "/t1s2b0.10"),
        ("/", SpawnedBy(1, 2, "spawn"), "/t1s2d0"),
        ("/", SpawnedBy(1, 2, "spawn", n=3), "/t1s2d3"),
        ("/", SpawnedBy(1, 2, "spawn", key="Ab_9-"), "/t1s2kAb_9-"),
        ("/", SpawnedBy(1, 2, "spawn", key="a/b.c~d e"), "/t1s2ka%2Fb%2Ec%7Ed%20e"),
        ("/", SpawnedBy(1, 2, "spawn", key="é%\ud800"), "/t1s2k%C3%A9%25%ED%A0%80"),
        ("/", SpawnedBy(1, 2, "spawn", key=""), "/t1s2k"),
        ("/", SpawnedBy(1, 1, "fork", block=0, call_id="c"), "/t1s1b0"),
    ],
)
def test_child_path(parent: str, spawned_by: SpawnedBy, path: str) -> None:
    assert child_path(parent, spawned_by) == path


_IN_ORDER = [
    "/",
    "/t1s1b0",
    "/t1s1b0/t1s1b0",
    "/t1s1b0/t1s1b0/t3s1b0",
    "/t1s1b0/t1s1b0/t20s1b0",
    "/t1s1b0/t2s1b0",
    "/t1s1b0.1",
    "/t1s1b0.1/t1s1b0",
    "/t1s1b0.2",
    "/t1s1b0.10",
    "/t1s1b1",
    "/t1s1b2",
    "/t1s1b10",
    "/t1s1d0",
    "/t1s1d2",
    "/t1s1d11",
    "/t1s1kkey2",
    "/t1s1kkey10",
    "/t1s2b0",
    "/t1s10b0",
    "/t2s1b0",
    "/t2s1b0/t9s9b9",
    "/t10s1b0",
]


@pytest.mark.parametrize("seed", range(5))
def test_paths_sort_depth_first_and_numbers_as_numbers(seed: int) -> None:
    shuffled = random.Random(seed).sample(_IN_ORDER, len(_IN_ORDER))
    assert sorted(shuffled, key=sort_key) == _IN_ORDER


def test_the_root_comes_first() -> None:
    assert sort_key(ROOT) == ()


_SPAWNED = st.one_of(
    st.builds(
        SpawnedBy,
        st.integers(0, 12),
        st.integers(0, 12),
        st.just("spawn"),
        block=st.none() | st.integers(0, 12),
        n=st.integers(0, 12),
    ),
    st.builds(
        SpawnedBy,
        st.integers(0, 12),
        st.integers(0, 12),
        st.just("spawn"),
        key=_ANY_TEXT | st.sampled_from(["1", "01", "7" * 5000, "²", "٣", ".", ".."]),
    ),
)


@given(st.lists(_SPAWNED, max_size=4), st.lists(_SPAWNED, max_size=4))
@settings(max_examples=200, deadline=None)
def test_other_places_have_other_paths(a: list[SpawnedBy], b: list[SpawnedBy]) -> None:
    first, second = _path(a), _path(b)
    assert (first == second) == (a == b)
    # The order is total: no two paths stand in the same place.
    assert (sort_key(first) == sort_key(second)) == (first == second)
    assert sort_key(first) <= sort_key(first + "/t0s0b0")


def _path(places: list[SpawnedBy]) -> str:
    path = ROOT
    for place in places:
        path = child_path(path, place)
    return path


@given(_ANY_TEXT)
@settings(max_examples=100, deadline=None)
def test_a_key_never_leaves_its_element(key: str) -> None:
    path = child_path("/t1s1b0", SpawnedBy(1, 1, "spawn", key=key))
    assert re.fullmatch(r"/t1s1b0/t1s1k[A-Za-z0-9_%-]*", path)


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_has_a_sort_key(text: str) -> None:
    """A path may also come from a command line."""
    assert sort_key(text) == sort_key(text)


def test_numbers_of_any_length_sort() -> None:
    paths = [f"/t1s1k{'9' * length}" for length in (5000, 1, 20)]
    assert sorted(paths, key=sort_key) == sorted(paths, key=len)

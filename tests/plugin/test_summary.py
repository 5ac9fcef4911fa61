"""What the summary says lies about, and when it does not say it."""

from __future__ import annotations

import pytest

from nestling.harness.recordings_report import Facts, left_lines, merged, orphans
from support.plugin_projects import TEST, Project
from support.processes import needs_linux


def test_what_is_an_orphan() -> None:
    assert dict(
        orphans(
            {
                "session.jsonl",
                "session.1.jsonl",
                "session.3.jsonl",
                "session.04.jsonl",
                "session.x.jsonl",
                ".session.1.jsonl.new",
                ".session.undo",
                "scenario.toml",
                "agent.py",
                "replay.override.json",
            }
        )
    ) == {
        "session.3.jsonl": "there is no session.2.jsonl",
        "session.04.jsonl": "children are numbered 1, 2, 3 and so on",
        "session.x.jsonl": "children are numbered 1, 2, 3 and so on",
        ".session.1.jsonl.new": "left by a write that was killed",
        ".session.undo": "left by a write that was killed",
    }
    assert dict(orphans({"session.1.jsonl", "replay.override.json"})) == {
        "session.1.jsonl": "there is no session.jsonl",
        "replay.override.json": "there is no session.jsonl",
    }


def test_what_is_unused() -> None:
    facts = merged(
        [
            Facts(["/a"], [], {}, ["w"]),
            Facts(["/a", "/b"], ["/b"], {"/a": ["session.jsonl"]}, ["w"], 1),
        ]
    )
    assert facts == Facts(["/a", "/b"], ["/b"], {"/a": ["session.jsonl"]}, ["w"], 1)
    found = {
        "/a": {"session.jsonl"},
        "/c": {"scenario.toml"},
        "/d": {"session.1.jsonl"},
    }
    assert list(left_lines(facts, found)) == [
        "unused recording: /c",
        "orphan file: /d/session.1.jsonl (there is no session.jsonl)",
    ]


UNUSED = "unused recording: sub/old"
ORPHAN = "orphan file: tree/session.9.jsonl (there is no session.8.jsonl)"


@pytest.fixture
def untidy(project: Project) -> Project:
    """A project with a recording that no test uses and a file that nobody knows."""
    (project.folder / "sub").mkdir()
    project.scenario("sub/old")
    project.scenario("build/generated")  # pytest does not look in there either
    project.write("test_tree.py", TEST + "\ndef test_other(): pass\n")
    project.write("tree/.session.1.jsonl.new", "{}")
    return project


@needs_linux
@pytest.mark.parametrize(
    "arguments", [(), (".",), ("-n", "2")], ids=["all", "dot", "xdist"]
)
def test_a_whole_run_tells(untidy: Project, arguments: tuple[str, ...]) -> None:
    run = untidy.pytest(*arguments)
    assert (run.code, run.count("passed")) == (0, 2), run.out
    assert f"\n{UNUSED}\n" in run.out
    assert "orphan file: tree/.session.1.jsonl.new (left by a write" in run.out
    assert run.out.count("unused recording") == run.out.count("orphan file") == 1


@needs_linux
@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "other or tree"),
        ("test_tree.py",),
        ("test_tree.py::test_tree",),
        ("-n", "2", "-k", "tree"),
        ("--deselect", "test_tree.py::test_other"),
        ("-x",),
    ],
    ids=" ".join,
)
def test_a_part_of_it_does_not(untidy: Project, arguments: tuple[str, ...]) -> None:
    run = untidy.pytest(*arguments)
    assert run.code == 0, run.out
    assert "unused" not in run.out


DESELECTS = """
def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=items[1:])
    del items[1:]
"""


@needs_linux
@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_what_a_plugin_deselects_is_a_part_too(
    untidy: Project, more: tuple[str, ...]
) -> None:
    untidy.write("conftest.py", DESELECTS)
    run = untidy.pytest(*more)
    assert (run.code, run.count("passed")) == (0, 1), run.out
    assert "unused" not in run.out


@needs_linux
def test_a_suite_without_scenarios_looks_for_none(untidy: Project) -> None:
    untidy.write("test_tree.py", "def test_other(): pass\n")
    assert "unused" not in untidy.pytest().out


@needs_linux
def test_the_roots_of_tests_are_what_is_looked_at(untidy: Project) -> None:
    untidy.write("pytest.ini", "[pytest]\ntestpaths = suite\n")
    untidy.write("suite/test_tree.py", TEST.replace('"tree"', '"../tree"'))
    untidy.scenario("suite/older")
    for arguments in ((), ("suite",)):
        run = untidy.pytest(*arguments)
        assert run.code == 0, run.out
        assert "unused recording: suite/older" in run.out
        assert UNUSED not in run.out

"""Recordings name no path of the machine that they were made on."""

from __future__ import annotations

from nestling.driver.exits import Log
from nestling.harness.compose import (
    Composer,
    Tree,
    fork_call,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.harvest import harvest, read_harvest
from nestling.harness.normalise import Normalisers
from nestling.harness.placeless import placeless
from support.replays import replayed

PATH = "/home/somebody/case"
NORMALISERS = Normalisers(places={PATH: "scenario"})


def logs() -> dict[str, Log]:
    """A root that tells of a path, and has its children tell of it."""
    root = Composer("root", 1_000)
    root.turn(f"Look at {PATH}/a.")
    (looked,) = root.says(text(f"In {PATH}."), tool_call("look", {"at": PATH}))
    root.result(looked, [{"type": "text", "text": f"{PATH}/b"}])
    root.step()
    root.says(text("Seen."))
    root.end()
    root.turn("Ask.")
    spawned, forked = root.says(
        spawn_call("one", f"Say {PATH}."), fork_call("two", f"Say {PATH}, too.")
    )
    for child in (root.spawn(spawned), root.fork(forked)):
        child.turn()
        child.says(text(f"{PATH}!"))
        child.end()
        root.returns(child)
    root.step()
    root.says(text("Done."))
    root.end()
    return {
        each.path: Log(each.header, each.events) for each in Tree(root).recordings()
    }


def texts(log: Log, kind: str) -> list[str]:
    return [str(event.data) for event in log.events if event.type == kind]


def test_what_a_model_was_told() -> None:
    made = placeless(logs(), NORMALISERS)
    assert PATH not in texts(made["/"], "user/message")[0]
    assert "{{scenario}}/a." in texts(made["/"], "user/message")[0]
    assert "{{scenario}}/b" in texts(made["/"], "tool/result")[0]


def test_what_a_model_said_and_what_quotes_it() -> None:
    before, made = logs(), placeless(logs(), NORMALISERS)
    for kind in ("assistant/chunk", "assistant/message", "tool/call"):
        assert texts(made["/"], kind) == texts(before["/"], kind)
    assert texts(made["/"], "tool/result")[1:] == texts(before["/"], "tool/result")[1:]
    for path in ("/t2s1b0", "/t2s1b1"):
        assert PATH in texts(made[path], "user/message")[-1]


def test_the_tree_fits_together_and_replays() -> None:
    """Digests are those of what was written."""
    made = placeless(logs(), NORMALISERS)
    scenario = read_harvest("tree", harvest(made))
    assert replayed(scenario).problems == []
    assert made["/t2s1b1"].header.seed_length > 0


def test_logs_without_paths_are_left_as_they_are() -> None:
    assert harvest(placeless(logs(), Normalisers())) == harvest(logs())
    without = Normalisers(("time",), places={PATH: "scenario"})
    assert harvest(placeless(logs(), without)) == harvest(logs())

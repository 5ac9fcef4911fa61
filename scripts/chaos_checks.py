"""What a disturbed run must have left, and must not have left (``chaos.py``)."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from chaos_faults import Told, key_of

from nestling.driver.exits import Log
from nestling.driver.guardian_io import is_guardian
from nestling.driver.live_director import STARTED_AS
from nestling.driver.processes_io import Process
from nestling.harness.leaks_io import all_processes
from nestling.harness.scenario import Scenario
from nestling.session.boundary import own_events
from nestling.session.chunk import is_finish
from nestling.session.delegation import delegation_result
from nestling.session.event import Event
from nestling.session.invariants import log_findings
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.log import SessionLog
from nestling.session.outcome import outcome
from nestling.session.request import rebuild_request
from nestling.session.spawn_path import ROOT
from nestling.session.store_io import SessionStore
from support.leaks import is_spare, processes_of

REAPED: Final = 2.0
"""Seconds after a run in which what it left may still go."""

Logs: TypeAlias = Mapping[str, Log]
Tree: TypeAlias = dict[str, tuple[bytes, list[bytes]]]


# --- trees ---------------------------------------------------------------------------


def tree_of(logs: Logs, name: str, root_id: str) -> Tree:
    """Return logs without times, and as if the root's id were `name`."""
    found, wanted = root_id.encode(), name.encode()
    tree: Tree = {}
    for path, log in logs.items():
        # The digest of a seed follows from the ids in it.
        header = log.header.with_fields(**{STARTED_AS: None, "seedDigest": None}).row()
        header["createdAt"] = 0
        events = [dumps(event.content()) for event in log.events]
        tree[path] = (
            dumps(header).replace(found, wanted),
            [event.replace(found, wanted) for event in events],
        )
    return tree


def recorded(scenario: Scenario) -> Logs:
    """Return the recorded logs of a scenario."""
    return {
        path: Log(session.recording.header, session.recording.events)
        for path, session in scenario.by_path.items()
    }


def own(log: Log) -> Sequence[Event]:
    """Return the events that a session did not inherit."""
    return own_events(log.events, log.header.seed_length)


# --- logs ------------------------------------------------------------------------------


def log_problems(logs: Logs) -> Iterator[str]:
    """Yield what is wrong with logs by themselves: each is valid, and closed once."""
    for path, log in logs.items():
        for finding in log_findings(log.header, log.events):
            if not finding.is_remark:
                yield f"{path}: {finding.line}"


def result_problems(
    logs: Logs, told: Sequence[Told], reported: AbstractSet[str]
) -> Iterator[str]:
    """Yield where a parent was told something else than its child came to.

    Args:
        logs: of the tree.
        told: what parents were told.
        reported: children that a replay has stopped, and reports. Their parents are
            told what was recorded, so that they can be judged, too.
    """
    for each in told:
        if each.child in reported:
            continue
        is_error = each.result["block"].get("isError", False)
        if each.child is None:
            if not is_error:
                yield f"{each.parent}: success of a child that there was not"
            continue
        came_to = outcome(own(logs[each.child]))
        if is_error:
            continue  # at worst it is told less than there was
        if came_to.stop_reason != "completed":
            yield f"{each.child} ended {came_to.stop_reason}, told was a success"
        expected = delegation_result(came_to)["content"]
        if each.result["block"]["content"] != expected:
            yield f"{each.child} came to {expected}, told was {each.result}"
    for path, log in logs.items():
        if path != ROOT and path not in reported:
            yield from _logged_result_problems(path, log, logs)


def _logged_result_problems(path: str, log: Log, logs: Logs) -> Iterator[str]:
    """Yield where the log of a parent calls a child a success that was none."""
    spawned = log.header.spawned_by
    parent = logs[path.rpartition("/")[0] or ROOT]
    if spawned is None or spawned.call_id is None:
        return
    if outcome(own(log)).stop_reason == "completed":
        return
    turn = None
    for event in own(parent):
        if event.type == "turn/start":
            turn = event.data["turn"]
        if event.type != "tool/result" or turn != spawned.turn:
            continue
        block = event.data["message"]["content"][0]
        is_its = block["toolCallId"] == spawned.call_id
        if is_its and not block.get("isError", False):
            yield f"{path} did not complete, its parent's log has a success"


class Call(NamedTuple):
    """What one call of a session was served.

    Attributes:
        start: the position of its first chunk in the log.
        chunks: without what ended it.
    """

    start: int
    chunks: list[JsonObject]


def calls_of(log: Log) -> list[Call]:
    """Cut a session's own events into the calls that were answered."""
    calls: list[Call] = []
    is_open = False
    first = len(log.events) - len(own(log))
    for position, event in enumerate(log.events[first:], first):
        if event.type != "assistant/chunk":
            is_open = is_open and event.type not in _ENDS
            continue
        if not is_open:
            calls.append(Call(position, []))
        is_open = not is_finish(event.data["chunk"])
        if is_open:
            calls[-1].chunks.append(event.data["chunk"])
    return calls


_ENDS: Final = ("assistant/message", "llm/retry", "step/end", "turn/end")


def request_of(log: Log, call: Call) -> bytes:
    """Return the request that a call was, as its own log has it."""
    before = SessionLog()
    for event in log.events[: call.start]:
        before.append_trusted(event)
    return key_of(rebuild_request(before))


def misrouted_live(
    logs: Logs, said: Mapping[bytes, list[list[JsonObject]]]
) -> Iterator[str]:
    """Yield calls that were served what was not said to their own request."""
    for path, log in logs.items():
        for call in calls_of(log):
            answers = said.get(request_of(log, call), [])
            if not any(_begins(answer, call.chunks) for answer in answers):
                yield f"{path}: event {call.start}: answered with {call.chunks}"


def misrouted_replay(logs: Logs, scenario: Scenario) -> Iterator[str]:
    """Yield calls that were served another answer than the recorded one."""
    for path, log in recorded(scenario).items():
        if path not in logs:
            continue
        wanted = calls_of(log)
        for number, call in enumerate(calls_of(logs[path])):
            expected = wanted[number].chunks if number < len(wanted) else []
            if not _begins(expected, call.chunks):
                yield f"{path}: call {number}: answered with {call.chunks}"


def _begins(answer: list[JsonObject], chunks: list[JsonObject]) -> bool:
    return answer[: len(chunks)] == chunks


def store_problems(store: SessionStore, logs: Logs, *, failed: bool) -> Iterator[str]:
    """Yield where a store holds something else than the logs of a run."""
    listed = {each.id for each in store.sessions() if not each.problem}
    for path, log in logs.items():
        wanted = [dumps(event.row()) for event in log.events]
        if log.header.id not in listed:
            if wanted and not failed:
                yield f"{path}: the store does not have it"
            continue
        events = store.read_from(log.header.id, 0)
        found = [dumps(event.row()) for event in events]
        if found != (wanted[: len(found)] if failed else wanted):
            counts = f"{len(found)} events, the log {len(wanted)}"
            yield f"{path}: the store has {counts}, or others"


# --- what is left ------------------------------------------------------------------------


class Leftovers:
    """Looks for what runs of this process have left behind."""

    def __init__(self, box: Path) -> None:
        self._box = box
        self._strangers: AbstractSet[Process] = all_processes()

    def of_run(self, templates: AbstractSet[int], most: int) -> Iterator[str]:
        """Yield what a run has left, while its driver goes on.

        Args:
            templates: the templates that stay.
            most: so many descriptors may be open.
        """
        yield from self._files()
        yield from self._processes(templates)
        for thread in threading.enumerate():
            if thread.name.startswith("nestling-hub"):
                yield f"leaked: thread {thread.name}"
        if descriptors() > most:
            gc.collect()
        if descriptors() > most:
            yield f"leaked: {descriptors()} descriptors, expected at most {most}"

    def of_driver(self, before: int) -> Iterator[str]:
        """Yield what a driver has left that is closed."""
        yield from self._files()
        yield from self._processes(frozenset(), guardians=True)
        for thread in threading.enumerate():
            if thread.name.startswith("nestling-"):
                yield f"leaked: thread {thread.name}"
        gc.collect()
        if descriptors() > before:
            yield f"leaked: {descriptors() - before} descriptors: {_open_files()}"

    def _files(self) -> Iterator[str]:
        for path in sorted(self._box.glob("nestling-*")):
            kind = "socket in" if any(p.is_socket() for p in path.rglob("*")) else ""
            yield f"leaked: {kind} run directory {path.name}"

    def _processes(
        self, templates: AbstractSet[int], *, guardians: bool = False
    ) -> Iterator[str]:
        deadline = time.monotonic() + REAPED
        while left := self._processes_now(templates, guardians):
            if time.monotonic() > deadline:
                for process in left:
                    state = "" if process.is_alive else "zombie "
                    yield f"leaked: {state}{process}, child of {process.parent}"
                return
            time.sleep(0.01)

    def _processes_now(
        self, templates: AbstractSet[int], guardians: bool
    ) -> list[Process]:
        return [
            each
            for each in processes_of(self._box)
            if each not in self._strangers
            and each.pid not in templates
            and not (each.parent in templates and is_spare(each.pid))
            and (guardians or not is_guardian(each.pid))
        ]


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(found)

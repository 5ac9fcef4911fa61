"""Pairing: which delegation started which recorded child, and so its spawn path.

A child whose header says ``spawnedBy`` is believed and checked. For the others,
per parent, delegating calls (``subagent``, ``subagent_fork``) in log order meet
children by (createdAt, id); prompt and spawn/fork must match. A child that no call
explains was started by some other tool and has no path. Where two pairings are
possible and it matters which is taken, there is an error and no guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from nestling.harness.delegation import Delegation, delegation_by
from nestling.harness.lineage import Lineage
from nestling.harness.own import own_part
from nestling.harness.stated import own_parent, stated_delegation
from nestling.harness.tool_calls import ToolCall
from nestling.harness.twins import Twins
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import Json
from nestling.session.reading import Recording
from nestling.session.spawn_path import ROOT, child_path

_Pairs: TypeAlias = dict[str, ToolCall]


def pair(lineage: Lineage) -> dict[str, Delegation | None]:
    """Find the delegation of every session of a tree, by its id.

    The root has none, nor has a child that nothing in its parent explains.

    Raises:
        UnreadableError: if a stated delegation is not in the parent's log, or several
            pairings are possible.
    """
    root = lineage.sessions[0]
    delegations: dict[str, Delegation | None] = {root.header.id: None}
    twins = Twins(lineage, delegations)
    # Leaves first: whether two subtrees are twins depends on how they are paired.
    for parent in reversed(lineage.sessions):
        children = lineage.children[parent.header.id]
        if children:
            delegations.update(_Family(parent, children, twins).delegations())
    return delegations


def spawn_paths(
    lineage: Lineage, delegations: Mapping[str, Delegation | None]
) -> dict[str, str | None]:
    """Return the spawn path of every session by its id; None where there is none.

    Raises:
        UnreadableError: if two sessions have one path.
    """
    root = lineage.sessions[0]
    paths: dict[str, str | None] = {root.header.id: ROOT}
    taken = {ROOT: root.name}
    for session in lineage.sessions[1:]:
        parent = paths[session.header.parent_session or ""]
        delegation = delegations[session.header.id]
        paths[session.header.id] = None
        if parent is None or delegation is None:
            continue
        path = child_path(parent, delegation.spawned_by)
        if path in taken:
            raise UnreadableError(
                f"{taken[path]} and {session.name} are both at spawn path {path}, "
                "expected one session at each"
            )
        taken[path] = session.name
        paths[session.header.id] = path
    return paths


class _Child(NamedTuple):
    """What a child without ``spawnedBy`` tells about its delegation."""

    recording: Recording
    prompt: str | None
    is_seeded: bool
    context: str | None


class _Family:
    """One session and the children it started."""

    def __init__(
        self, parent: Recording, children: Sequence[Recording], twins: Twins
    ) -> None:
        self._parent = parent
        self._children = children
        self._twins = twins
        self._told = own_parent(parent)
        ends = (event.seq for event in parent.events if event.type == "turn/end")
        self._first_turn_end = next(ends, len(parent.events))

    def delegations(self) -> dict[str, Delegation | None]:
        """Return the delegation of each child by its id."""
        found: dict[str, Delegation | None] = {}
        silent = []
        for child in self._children:
            found[child.header.id] = None
            stated = child.header.spawned_by
            if stated is None:
                silent.append(_child(child))
            else:
                found[child.header.id] = stated_delegation(self._told, child, stated)
        for child_id, call in self._pair_silent(silent, found.values()).items():
            found[child_id] = delegation_by(call, call.place)
        return found

    def _pair_silent(
        self, children: Sequence[_Child], stated: Iterable[Delegation | None]
    ) -> _Pairs:
        used = {delegation.call_seq for delegation in stated if delegation is not None}
        by_prompt = self._calls_by_prompt() if children else {}
        pairs: _Pairs = {}
        # Those that say most choose first; what they leave is for the others.
        for alike in _alike(children):
            calls = [
                call
                for call in by_prompt.get(alike[0].prompt, ())
                if call.seq not in used and self._may_have_started(call, alike[0])
            ]
            matched = self._match([child.recording for child in alike], calls)
            used.update(call.seq for call in matched.values())
            pairs.update(matched)
        return pairs

    def _calls_by_prompt(self) -> Mapping[str | None, Sequence[ToolCall]]:
        """Return the delegating calls by prompt; under None all of them."""
        calls: dict[str | None, list[ToolCall]] = {None: []}
        for call in self._told.calls:
            prompt = None if call.context is None else call.prompt
            if prompt is not None:
                calls[None].append(call)
                calls.setdefault(prompt, []).append(call)
        return calls

    def _may_have_started(self, call: ToolCall, child: _Child) -> bool:
        seed_length = child.recording.header.seed_length
        starts_seeded = call.context == "fork" and self._first_turn_end < call.seq
        return (
            starts_seeded == child.is_seeded
            and seed_length <= call.seq
            and child.context in (None, call.context)
        )

    def _match(self, children: list[Recording], calls: list[ToolCall]) -> _Pairs:
        """Pair children and calls that fit each other equally well, both in order."""
        if not children or not calls:
            return {}
        if len(calls) > len(children):
            # A call that was refused has no child; one that went well must have one.
            went_well = [call for call in calls if call.is_error is False]
            if len(went_well) != len(children):
                raise self._ambiguous(children, calls)
            calls = went_well
        elif len(calls) < len(children) and not self._twins.are_equal(children):
            raise self._ambiguous(children, calls)
        self._check_parallel(children, calls)
        pairs = zip(children, calls, strict=False)  # a child may be left over
        return {child.header.id: call for child, call in pairs}

    def _check_parallel(
        self, children: Sequence[Recording], calls: Sequence[ToolCall]
    ) -> None:
        """Check that the order of calls of one message is told, or does not matter."""
        pairs = list(zip(children, calls, strict=False))
        for _, group in groupby(pairs, lambda pair: (pair[1].turn, pair[1].step)):
            rivals, of_one_message = zip(*group, strict=True)
            if len(rivals) > 1 and not self._twins.are_equal(rivals):
                raise self._ambiguous(rivals, of_one_message)

    def _ambiguous(
        self, children: Sequence[Recording], calls: Sequence[ToolCall]
    ) -> UnreadableError:
        places = ", ".join(
            f"turn {c.turn} step {c.step} block {c.block}" for c in calls
        )
        return UnreadableError(
            f"{self._parent.name}: which of its delegations ({places}) started "
            f"{' and '.join(child.name for child in children)} is ambiguous, because "
            "prompt and kind are equal and their subtrees differ; expected spawnedBy "
            "in their headers"
        )


def _alike(children: Sequence[_Child]) -> list[list[_Child]]:
    """Group children that the same calls can explain, the most telling first."""
    groups: dict[tuple[bool, bool, Json, Json, bool], list[_Child]] = {}
    for child in children:
        key = (
            child.prompt is None,
            child.context is None,
            child.prompt,
            child.context,
            child.is_seeded,
        )
        groups.setdefault(key, []).append(child)
    return [groups[key] for key in sorted(groups, key=lambda key: key[:2])]


def _child(recording: Recording) -> _Child:
    own = own_part(recording)
    return _Child(
        recording,
        first_prompt(own),
        recording.header.seed_length > 0,
        _told_context(own),
    )


def first_prompt(own: Sequence[Event]) -> str | None:
    """Return the text of the first own user message; a person's goes first.

    Instructions that a host puts in front of the prompt have other sources.
    """
    messages = [
        event.data
        for event in own
        if event.type == "user/message" and type(event.data) is dict
    ]
    prompts = [message for message in messages if _source_kind(message) == "user"]
    first = next(iter(prompts or messages), None)
    return None if first is None else _text(first.get("content"))


def _source_kind(message: Json) -> Json:
    source = message.get("source")
    return source.get("kind") if type(source) is dict else None


def _text(content: Json) -> str:
    blocks = content if type(content) is list else []
    texts = [block.get("text") for block in blocks if type(block) is dict]
    return "".join(text for text in texts if type(text) is str)


def _told_context(own: Sequence[Event]) -> str | None:
    """Return whether a child was told to be a fork or a spawn, if its log says."""
    for event in own:
        if event.type == "subagent/descriptor" and type(event.data) is dict:
            told = event.data.get("provider")
            return told if told in ("spawn", "fork") else None
    return None

"""Overrides: the sidecar ``replay.override.json`` of a scenario's root.

The document is either an array, which replaces the whole script, or
``{"patches": [{"at", "entry"}]}``, which replaces single calls or, at the script's
length, appends one. Keys are exact: a misspelt one must not pass unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nestling.harness.scripts import Entry, ScriptCall
from nestling.session.chunk import chunk_problem
from nestling.session.errors import JsonDomainError, UnreadableError
from nestling.session.jsontext import Json, JsonObject, is_int0, loads


def apply_override(
    text: bytes, name: str, derived: Sequence[ScriptCall]
) -> list[ScriptCall]:
    """Return a script with an override applied.

    A replaced call keeps the purpose and the place of the derived one.

    Args:
        text: the sidecar's content.
        name: what errors call it.
        derived: the script as recorded.

    Raises:
        UnreadableError: naming the sidecar, the patch or entry, what was found and
            what was expected.
    """
    try:
        return _applied(_document(text), derived)
    except UnreadableError as error:
        raise UnreadableError(f"{name}: {error}") from None


def _document(text: bytes) -> Json:
    try:
        return loads(text)
    except JsonDomainError as error:
        raise UnreadableError(str(error)) from None


def _applied(document: Json, derived: Sequence[ScriptCall]) -> list[ScriptCall]:
    if type(document) is list:
        entries = [_entry(e, f"entry {i}") for i, e in enumerate(document)]
        return [_placed(e, i, derived) for i, e in enumerate(entries)]
    patches = document.get("patches") if type(document) is dict else None
    if type(patches) is not list or document.keys() != {"patches"}:
        raise UnreadableError(
            "the document must be an array of entries or an object with exactly "
            f"patches, found {_shown(document)}"
        )
    return _patched(patches, derived)


def _patched(patches: list[Json], derived: Sequence[ScriptCall]) -> list[ScriptCall]:
    calls = list(derived)
    seen: set[int] = set()
    for number, patch in enumerate(patches):
        at, entry = _patch(patch, number)
        if at in seen:
            raise UnreadableError(f"patch {number} repeats index {at}")
        if at > len(derived):
            raise UnreadableError(
                f"patch {number} is at {at}, expected at most {len(derived)}, the "
                "length of the derived script"
            )
        seen.add(at)
        calls[at : at + 1] = [_placed(entry, at, derived)]
    return calls


def _patch(patch: Json, number: int) -> tuple[int, Entry]:
    if type(patch) is not dict or patch.keys() != {"at", "entry"}:
        raise UnreadableError(
            f"patch {number} must have exactly at and entry, found {_shown(patch)}"
        )
    if not is_int0(patch["at"]):
        raise UnreadableError(
            f"patch {number}: at must be an integer >= 0, found {patch['at']!r}"
        )
    return patch["at"], _entry(patch["entry"], f"patch {number} entry")


def _placed(entry: Entry, index: int, derived: Sequence[ScriptCall]) -> ScriptCall:
    if index >= len(derived):
        return ScriptCall(entry)
    return ScriptCall(entry, derived[index].purpose, derived[index].place)


# --- entries -------------------------------------------------------------------


def _entry(value: Json, where: str) -> Entry:
    if type(value) is not dict:
        raise UnreadableError(f"{where} must be an object, found {_shown(value)}")
    kind = value.get("kind")
    build = _BUILDERS.get(kind) if type(kind) is str else None
    if build is None:
        raise UnreadableError(
            f"{where} has unknown kind {kind!r}, expected {', '.join(_BUILDERS)}"
        )
    return build(value, where)


def _chunks_entry(value: JsonObject, where: str) -> Entry:
    _require_keys(value, {"kind", "chunks"}, where)
    return Entry("chunks", _chunks(value["chunks"], where))


def _throw_entry(value: JsonObject, where: str) -> Entry:
    _require_keys(value, {"kind", "chunks", "message", "code"}, where)
    chunks = _chunks(value["chunks"], where)
    message, code = (_non_empty(value, key, where) for key in ("message", "code"))
    return Entry("throw", chunks, message, code)


def _hang_entry(value: JsonObject, where: str) -> Entry:
    if "readyFile" not in value:
        _require_keys(value, {"kind"}, where)
        return Entry("hang")
    _require_keys(value, {"kind", "readyFile"}, where)
    return Entry("hang", ready_file=_non_empty(value, "readyFile", where))


_BUILDERS: Final[dict[str, Callable[[JsonObject, str], Entry]]] = {
    "chunks": _chunks_entry,
    "throw": _throw_entry,
    "hang": _hang_entry,
}


def _require_keys(value: JsonObject, keys: set[str], where: str) -> None:
    if value.keys() != keys:
        raise UnreadableError(
            f"{where} of kind {value['kind']} must have exactly "
            f"{', '.join(sorted(keys))}, found {', '.join(sorted(value))}"
        )


def _chunks(value: Json, where: str) -> tuple[JsonObject, ...]:
    if type(value) is not list:
        raise UnreadableError(f"{where}: chunks must be a list, found {_shown(value)}")
    for index, chunk in enumerate(value):
        problem = chunk_problem(chunk)
        if problem is not None:
            raise UnreadableError(f"{where}.chunks[{index}]: {problem}")
    return tuple(value)


def _non_empty(value: JsonObject, key: str, where: str) -> str:
    text = value[key]
    if type(text) is not str or not text:
        raise UnreadableError(
            f"{where}: {key} must be a non-empty string, found {text!r}"
        )
    return text


def _shown(value: Json) -> str:
    """Name a value in an error: an object by its keys, others by their kind."""
    if type(value) is dict:
        return f"an object with {', '.join(sorted(value)) or 'no keys'}"
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")

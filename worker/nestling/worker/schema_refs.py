"""The schema of a struct as one self-contained object.

``msgspec`` describes each named type once, under ``$defs``, the struct itself too.
Model providers want an object at the top, and several of them take no ``$defs``. So
each reference is replaced by what it refers to; only types that hold themselves keep a
definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from nestling.session.jsontext import Json, JsonObject

_PREFIX: Final = "#/$defs/"


def inlined(struct: type[msgspec.Struct]) -> JsonObject:
    """Return the JSON schema of a struct.

    Returns:
        An object with ``type``, ``properties`` and ``required``, and with ``$defs``
        where a type holds itself.

    Raises:
        TypeError: if JSON schema cannot express a field's type.
    """
    (top,), parts = msgspec.json.schema_components(
        [struct], ref_template=_PREFIX + "{name}"
    )
    recursive = {name for name in parts if name in _reached(name, parts)}
    schema: JsonObject = _replaced(top, parts, recursive)
    del schema["title"]
    if recursive:
        schema["$defs"] = {
            name: _replaced(parts[name], parts, recursive) for name in sorted(recursive)
        }
    return schema


def _reached(name: str, parts: dict[str, Any]) -> set[str]:
    """Return the names that a definition refers to, directly or not."""
    reached: set[str] = set()
    open_names = [name]
    while open_names:
        new = set(_names(parts[open_names.pop()])) - reached
        reached |= new
        open_names.extend(new)
    return reached


def _names(schema: Json) -> Iterator[str]:
    name = _referred(schema)
    if name is not None:
        yield name
    inside = schema.values() if isinstance(schema, dict) else schema
    for part in inside if isinstance(schema, dict | list) else ():
        yield from _names(part)


def _referred(schema: Json) -> str | None:
    target = schema.get("$ref") if isinstance(schema, dict) else None
    return target.removeprefix(_PREFIX) if isinstance(target, str) else None


def _replaced(schema: Json, parts: dict[str, Any], kept: set[str]) -> Json:
    """Return a copy with every reference but those to `kept` replaced."""
    if isinstance(schema, list):
        return [_replaced(part, parts, kept) for part in schema]
    if not isinstance(schema, dict):
        return schema
    name = _referred(schema)
    if name is not None and name not in kept:
        # What stands beside a reference (a description) wins over what it refers to.
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _replaced({**parts[name], **beside}, parts, kept)
    return {key: _replaced(part, parts, kept) for key, part in schema.items()}

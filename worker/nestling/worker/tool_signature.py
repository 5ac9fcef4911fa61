"""From a tool's signature to the schema a model is shown, and back to arguments.

``msgspec`` does both: the parameters become the fields of a struct, its JSON schema is
the tool's, and what a model writes is converted to it or refused with a sentence that
the model can read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

import msgspec
import msgspec.inspect as kinds

from nestling.session.errors import (
    JsonDomainError,
    ToolArgumentError,
    ToolSignatureError,
)
from nestling.session.jsontext import JsonObject, check, loads
from nestling.worker.docstrings import parameter_docs
from nestling.worker.schema_refs import inlined

_UNNAMED: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
}
_UNWRITABLE: Final = (
    kinds.CustomType,
    kinds.ExtType,
    kinds.RawType,
    # JSON has no bytes: a model would have to write base64, which it gets wrong.
    kinds.BytesType,
    kinds.ByteArrayType,
    kinds.MemoryViewType,
)
_HINT_ERRORS: Final = (NameError, AttributeError, SyntaxError, TypeError, ValueError)
"""What evaluating an annotation, or asking msgspec about a type, may raise."""


class Signature:
    """The parameters of one tool.

    Attributes:
        schema: their JSON schema, an object's, which refers to nothing outside itself.
    """

    def __init__(self, function: Callable[..., object], name: str) -> None:
        """Read a function's parameters.

        Args:
            function: a function or a bound method.
            name: what errors call the tool.

        Raises:
            ToolSignatureError: naming the tool and the parameter, if one has no type
                hint, a type that JSON cannot express, or cannot be passed by name.
        """
        self._name = name
        parameters = inspect.signature(function).parameters.values()
        hints = {each.name: _hint(function, each, name) for each in parameters}
        self._struct = msgspec.defstruct(
            f"arguments of {name}",
            [_field(each, hints[each.name]) for each in parameters],
            kw_only=True,
            forbid_unknown_fields=True,
        )
        self.schema = inlined(self._struct)
        docs = parameter_docs(inspect.getdoc(function) or "")
        for each in parameters:
            _describe(self.schema["properties"][each.name], each, hints, docs)
        self._check_domain()

    def read(self, text: str) -> dict[str, Any]:
        """Read the arguments that a model wrote.

        Args:
            text: a JSON object; nothing at all stands for an empty one.

        Returns:
            What the model gave, by parameter; for what it left out, the function's own
            defaults hold.

        Raises:
            ToolArgumentError: saying what does not fit, and where, for the model.
        """
        try:
            value = loads(text if text.strip() else "{}")
            found = msgspec.convert(value, self._struct, str_keys=True)
        except (JsonDomainError, msgspec.ValidationError) as error:
            raise ToolArgumentError(f"arguments of {self._name}: {error}") from None
        except UnicodeEncodeError:
            raise ToolArgumentError(
                f"arguments of {self._name}: half of a surrogate pair stands "
                "where only a whole character can"
            ) from None
        except Exception as error:  # a type of the user's refused a value in its way
            raise ToolArgumentError(
                f"arguments of {self._name}: {type(error).__name__}: {error}"
            ) from error
        given = ((key, getattr(found, key)) for key in self._struct.__struct_fields__)
        return {key: value for key, value in given if value is not msgspec.UNSET}

    def _check_domain(self) -> None:
        try:
            check(self.schema)
        except JsonDomainError as error:
            raise ToolSignatureError(
                f"the schema of tool {self._name} cannot be logged: {error}"
            ) from None


def _hint(
    function: Callable[..., object], parameter: inspect.Parameter, tool: str
) -> Any:
    """Return a parameter's type, after checking that a model can write its values."""
    where = f"parameter {parameter.name} of tool {tool}"
    if parameter.kind in _UNNAMED:
        raise ToolSignatureError(
            f"{where} {_UNNAMED[parameter.kind]}, "
            "but a model passes each argument by its name"
        )
    if parameter.annotation is inspect.Parameter.empty:
        raise ToolSignatureError(f"{where} has no type hint to make its schema from")
    hint = parameter.annotation
    written = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    try:
        hint = _resolved(function, hint)
    except _HINT_ERRORS as error:
        raise ToolSignatureError(
            f"{where} has the type hint {written}, which does not resolve: {error}"
        ) from None
    problem = _problem(hint)
    if problem is not None:
        raise ToolSignatureError(
            f"{where} has the type {written}, which a model cannot write as JSON: "
            f"{problem}"
        )
    return hint


def _resolved(function: Callable[..., object], annotation: Any) -> Any:
    """Evaluate one annotation; others of the function need not resolve."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    alone = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(alone, globalns=names, include_extras=True)["it"]


def _problem(hint: Any) -> str | None:
    """Say what keeps JSON, as a model writes it, from expressing a type."""
    try:
        found = next(_unwritable(kinds.type_info(hint), set()), None)
        if found is None:
            msgspec.json.schema(hint)
    except _HINT_ERRORS as error:
        return str(error).splitlines()[-1]
    return None if found is None else f"{found} is no JSON type"


def _unwritable(node: object, seen: set[int]) -> Iterator[str]:
    """Yield the names of the types inside `node` that JSON cannot express."""
    if isinstance(node, kinds.CustomType):
        yield str(getattr(node.cls, "__name__", node.cls))
    elif isinstance(node, _UNWRITABLE):
        yield type(node).__name__.removesuffix("Type").lower()
    elif isinstance(node, tuple):
        for part in node:
            yield from _unwritable(part, seen)
    elif isinstance(node, kinds.Type | kinds.Field) and id(node) not in seen:
        seen.add(id(node))  # a type may hold itself
        yield from _unwritable(msgspec.structs.astuple(node), seen)


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, hint
    # Unset, not the default itself: so the function's own default holds, be it a list
    # or of another type than the hint says.
    return parameter.name, hint | msgspec.UnsetType, msgspec.UNSET


def _describe(
    schema: JsonObject,
    parameter: inspect.Parameter,
    hints: dict[str, Any],
    docs: dict[str, str],
) -> None:
    """Add to a parameter's schema what its type does not say."""
    described = _own_description(hints[parameter.name]) or docs.get(parameter.name)
    if described:
        schema["description"] = described
    if parameter.default is not inspect.Parameter.empty:
        schema.update(_default(parameter.default, hints[parameter.name]))


def _own_description(hint: Any) -> str | None:
    """Return the description that a hint is annotated with; it wins over its type's."""
    metas = [
        m for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta)
    ]
    return next((m.description for m in reversed(metas) if m.description), None)


def _default(value: object, hint: Any) -> JsonObject:
    """Return the schema's entry for a default, none if the model could not write it."""
    try:
        written = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        msgspec.convert(written, hint, str_keys=True)
        check(written)
    except (JsonDomainError, msgspec.ValidationError, TypeError, ValueError):
        return {}
    return {"default": written}

"""Tools: from a signature to a schema, from a model's words to arguments, and back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict, Union

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import (
    JsonDomainError,
    ToolArgumentError,
    ToolSignatureError,
)
from nestling.session.jsontext import JsonObject, check, dumps
from nestling.worker.tools import (
    DelegationTool,
    Tool,
    error_result,
    subagent,
    subagent_fork,
    tool,
    tool_result,
    toolbox,
)

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Place(TypedDict):
    city: str


@dataclasses.dataclass
class Box:
    width: int
    height: int = 1


class Tree(msgspec.Struct):
    """A tree."""

    value: int
    branches: list[Tree] = []


class Leaf(msgspec.Struct):
    """A leaf."""

    place: Place


def schema_of(hint: Any, *default: Any) -> JsonObject:
    """The schema of the one parameter of a tool."""

    def one(it: Any = None) -> None: ...

    one.__annotations__["it"] = hint
    one.__defaults__ = default or None
    schema: JsonObject = tool(one).parameters["properties"]["it"]
    return schema


def text_of(result: JsonObject) -> str:
    """The text of a result of one text block."""
    (block,) = result["block"]["content"]
    assert block["type"] == "text"
    return str(block["text"])


# --- declarations --------------------------------------------------------------


def test_a_function_becomes_a_tool_and_stays_callable() -> None:
    @tool
    def add(first: int, second: int = 1) -> int:
        """Add two
        numbers.

        It is quick.

        Args:
            first: where
                to start.
            second (int): how much.

        Returns:
            the sum.
        """
        return first + second

    assert isinstance(add, Tool)
    assert add(1, second=2) == 3
    assert not add.is_async
    assert add.declaration() == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "first": {"type": "integer", "description": "where to start."},
                "second": {"type": "integer", "description": "how much.", "default": 1},
            },
            "required": ["first"],
            "additionalProperties": False,
        },
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        add.name = "other"  # type: ignore[misc]


async def test_a_coroutine_function_becomes_one_with_the_given_words() -> None:
    @tool(name="look-up", description="Looks.")
    async def look() -> str:
        """Not this."""
        return "seen"

    assert look.is_async
    assert await look() == "seen"
    nothing = {"type": "object", "properties": {}, "required": []}
    assert look.declaration() == {
        "name": "look-up",
        "description": "Looks.",
        "parameters": {**nothing, "additionalProperties": False},
    }


def test_a_bound_method_can_be_a_tool() -> None:
    class Shelf:
        def put(self, book: str) -> str:
            """Put a book here."""
            return f"put {book}"

    put = tool(Shelf().put)
    assert list(put.parameters["properties"]) == ["book"]
    assert put.function(**put.read('{"book": "x"}')) == "put x"


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        (None, ""),
        ("", ""),
        ("Args:\n    it: x", ""),
        ("One.\nArgs:\n    it: x", "One."),
    ],
)
def test_the_description_is_the_first_paragraph(
    docstring: str | None, description: str
) -> None:
    def one(it: int) -> None: ...

    one.__doc__ = docstring
    assert tool(one).description == description


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a.b", "a\n", 3])
def test_a_name_that_providers_refuse(name: Any) -> None:
    with pytest.raises(
        ToolSignatureError, match=r"a tool cannot be named .*expected 1"
    ):
        tool(name=name)(lambda: None)


def test_a_tool_cannot_take_the_name_of_a_delegation() -> None:
    with pytest.raises(ToolSignatureError, match="name of a delegation tool"):
        tool(name="subagent")(lambda: None)


def test_names_of_every_allowed_kind() -> None:
    for name in ("a", "A-b_9", "x" * 64):
        assert tool(name=name)(lambda: None).name == name


def test_a_description_must_be_text() -> None:
    with pytest.raises(ToolSignatureError, match="must be a string, found 3"):
        tool(name="a", description=3)(lambda: None)  # type: ignore[call-overload]


# --- schemas -------------------------------------------------------------------

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NULL = {"type": "null"}
PLACE = {
    "title": "Place",
    "type": "object",
    "properties": {"city": TEXT},
    "required": ["city"],
}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, TEXT),
        ("str", TEXT),
        (int, WHOLE),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, NULL),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": WHOLE}),
        (dict, {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": WHOLE}),
        (Optional[int], {"anyOf": [WHOLE, NULL]}),  # noqa: UP045
        (Union[int, str, None], {"anyOf": [WHOLE, TEXT, NULL]}),  # noqa: UP007
        (int | list[str], {"anyOf": [WHOLE, {"type": "array", "items": TEXT}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (set[int], {"type": "array", "items": WHOLE, "uniqueItems": True}),
        (datetime.date, {**TEXT, "format": "date"}),
        (Place, PLACE),
        (list[Place], {"type": "array", "items": PLACE}),
        (Place | None, {"anyOf": [PLACE, NULL]}),
        (Annotated[int, msgspec.Meta(ge=1)], {**WHOLE, "minimum": 1}),
    ],
)
def test_the_schema_of_a_type(hint: Any, schema: JsonObject) -> None:
    assert schema_of(hint) == schema
    assert schema_of(hint, object()) == schema  # a default no model could write


def test_named_types_are_written_out_where_they_stand() -> None:
    assert schema_of(Colour)["enum"] == ["green", "red"]
    assert schema_of(Box)["properties"]["height"] == {**WHOLE, "default": 1}
    leaf = schema_of(Leaf)
    assert leaf["description"] == "A leaf."
    leaves = schema_of(list[Annotated[Leaf, msgspec.Meta(description="One.")]])
    assert leaves["items"] == {**leaf, "description": "One."}
    assert leaf["properties"] == {"place": PLACE}


def test_only_a_type_that_holds_itself_keeps_a_definition() -> None:
    @tool
    def climb(tree: Tree, leaf: Leaf) -> None:
        """Climb.

        Args:
            tree: this one.
        """

    schema = climb.parameters
    assert schema["type"] == "object"
    tree = {"$ref": "#/$defs/Tree", "description": "this one."}
    assert schema["properties"]["tree"] == tree
    assert list(schema["$defs"]) == ["Tree"]
    branches = schema["$defs"]["Tree"]["properties"]["branches"]
    assert branches["items"] == {"$ref": "#/$defs/Tree"}
    assert "$ref" not in json.dumps(schema["properties"]["leaf"])
    read = climb.read(
        '{"tree": {"value": 1, "branches": [{"value": 2}]}, '
        '"leaf": {"place": {"city": "Rome"}}}'
    )
    assert read == {"tree": Tree(1, [Tree(2)]), "leaf": Leaf({"city": "Rome"})}


@pytest.mark.parametrize(
    ("hint", "default", "written"),
    [
        (int, 3, 3),
        (Optional[int], None, None),  # noqa: UP045
        (list[int], [1, 2], [1, 2]),
        (Colour, Colour.RED, "red"),
        (Place, {"city": "Rome"}, {"city": "Rome"}),
        (Box, Box(1), {"width": 1, "height": 1}),
        (set[str], {"b", "a", "c"}, ["a", "b", "c"]),
    ],
)
def test_a_default_is_shown_as_a_model_would_write_it(
    hint: Any, default: Any, written: Any
) -> None:
    assert schema_of(hint, default)["default"] == written


@pytest.mark.parametrize("default", [None, "x", 2**60, float("nan"), object()])
def test_a_default_that_no_model_could_write_is_not_shown(default: Any) -> None:
    assert schema_of(int, default) == WHOLE


def test_descriptions_come_from_the_hint_then_the_docstring_then_the_type() -> None:
    @tool
    def ask(
        first: Annotated[str, msgspec.Meta(description="from the hint")],
        second: Leaf,
        third: Leaf,
    ) -> None:
        """Ask.

        Args:
            first: not this.
            second: from the docstring.
        """

    described = {k: v["description"] for k, v in ask.parameters["properties"].items()}
    assert described == {
        "first": "from the hint",
        "second": "from the docstring.",
        "third": "A leaf.",
    }


def test_every_declaration_can_be_logged() -> None:
    for each in (subagent, subagent_fork, tool(bad_return)):
        check(each.declaration())
        assert json.loads(dumps(each.declaration())) == each.declaration()


# --- signatures that cannot be used --------------------------------------------


def bad_return(it: int) -> OnlyForCheckers | None:
    """A return type does not matter."""
    return None


def no_hint(a: int, it) -> None: ...  # type: ignore[no-untyped-def]
def many(*it: int) -> None: ...
def names(**it: int) -> None: ...
def positional(it: int, /) -> None: ...
def a_class(it: Hidden) -> None: ...
def a_type(it: type[int]) -> None: ...
def raw(it: bytes) -> None: ...
def raws(it: set[bytes]) -> None: ...
def deep_raw(it: dict[str, list[Sealed]]) -> None: ...
def a_callable(it: Callable[[], None]) -> None: ...
def an_object(it: object) -> None: ...
def a_number(it: complex) -> None: ...
def two_objects(it: Box | Leaf) -> None: ...
def unknown(it: OnlyForCheckers) -> None: ...
def no_attribute(it: datetime.nothing) -> None: ...  # type: ignore[name-defined]
def not_a_type(it: 3) -> None: ...  # type: ignore[valid-type]


class Hidden:
    pass


class Sealed(msgspec.Struct):
    key: bytes


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_hint, "has no type hint"),
        (many, "takes any number of values, but a model passes each argument by its"),
        (names, "takes any names"),
        (positional, "is positional-only"),
        (a_class, "the type Hidden, .* cannot write as JSON: Hidden is no JSON type"),
        (a_type, "cannot write as JSON: type is no JSON type"),
        (raw, "the type bytes, .*: bytes is no JSON type"),
        (raws, r"the type set\[bytes\], .*: bytes is no JSON type"),
        (deep_raw, "bytes is no JSON type"),
        (a_callable, "Callable is no JSON type"),
        (an_object, "object is no JSON type"),
        (a_number, "complex is no JSON type"),
        (two_objects, "more than one dict-like type"),
        (unknown, "hint OnlyForCheckers, which does not resolve: name 'OnlyForCheck"),
        (no_attribute, "does not resolve: module 'datetime' has no attribute"),
        (not_a_type, "the type 3, which a model cannot write as JSON"),
    ],
)
def test_a_signature_that_no_schema_can_express(
    function: Callable[..., None], why: str
) -> None:
    where = f"parameter it of tool {function.__name__} .*{why}"
    with pytest.raises(ToolSignatureError, match=where) as caught:
        tool(function)
    assert "\n" not in str(caught.value)


def test_only_functions_that_return_once_are_tools() -> None:
    def yields() -> Iterator[int]:
        yield 1

    async def streams() -> AsyncIterator[int]:
        yield 1

    for function in (yields, streams):
        with pytest.raises(ToolSignatureError, match="yields, but a tool returns"):
            tool(function)
    for thing in (len, 3, Hidden, functools.partial(yields), tool(bad_return)):
        with pytest.raises(ToolSignatureError, match="made of a def or an async def"):
            tool(thing)  # type: ignore[arg-type]


def test_a_schema_outside_of_the_json_domain() -> None:
    with pytest.raises(ToolSignatureError, match=r"tool one cannot be logged: .*maxi"):
        schema_of(Annotated[int, msgspec.Meta(le=2**60)])


# --- arguments -----------------------------------------------------------------


@tool
def book(
    city: str,
    nights: int = 1,
    colour: Colour = Colour.RED,
    extras: list[Box] = [],  # noqa: B006 - the function's own default holds
    ages: dict[int, str] | None = None,
) -> None:
    """Book a room."""


def test_arguments_are_converted_and_defaults_left_to_the_function() -> None:
    assert book.read('{"city": "Rome"}') == {"city": "Rome"}
    written = {
        "ages": {"7": "Ann"},
        "extras": [{"width": 2}],
        "city": "\ud83d",
        "colour": "green",
    }
    assert book.read(json.dumps(written)) == {
        "city": "\ud83d",
        "colour": Colour.GREEN,
        "extras": [Box(2)],
        "ages": {7: "Ann"},
    }


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_nothing_stands_for_no_arguments(text: str) -> None:
    assert tool(name="now")(lambda: None).read(text) == {}
    with pytest.raises(ToolArgumentError, match="missing required field `city`"):
        book.read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON: "),
        ("nonsense", "not JSON: "),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ('{"city": "x", "night": 1}', "unknown field `night`"),
        ('{"city": 3}', r"Expected `str`, got `int` - at `\$.city`"),
        ('{"city": "x", "nights": "2"}', r"Expected `int`, .* at `\$.nights`"),
        ('{"city": "x", "nights": true}', "Expected `int`, got `bool`"),
        ('{"city": "x", "nights": 1.5}', "Expected `int`, got `float`"),
        ('{"city": "x", "nights": null}', "Expected `int`, got `null`"),
        ('{"city": "x", "colour": "blue"}', r"Invalid enum value 'blue' - at `\$.colo"),
        ('{"city": "x", "extras": [{}]}', r"field `width` - at `\$.extras\[0\]`"),
        (
            '{"city": "x", "ages": {"x": ""}}',
            r"Expected `int`, got `str` - at `key` in `\$.ages`",
        ),
        ('{"city": NaN}', "NaN is not a JSON number"),
        ('{"city": 1e999}', "is not a JSON number"),
        ("[" * 300, "nested deeper|not JSON"),
        (r'{"city": "x", "colour": "\ud83d"}', "half of a surrogate pair"),
        (r'{"\ud83d": "x"}', "half of a surrogate pair"),
    ],
)
def test_arguments_that_do_not_fit(text: str, why: str) -> None:
    with pytest.raises(ToolArgumentError, match=f"^arguments of book: .*{why}"):
        book.read(text)


@given(st.text().filter(lambda text: "city" not in text))
def test_no_text_of_a_model_is_more_than_a_tool_error(text: str) -> None:
    with pytest.raises(ToolArgumentError, match=r"^arguments of book: "):
        book.read(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab\ud83d"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\ud83d"), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["city", "nights", "ages", "x"]), JSON))
def test_no_json_of_a_model_is_more_than_a_tool_error(written: JsonObject) -> None:
    try:
        read = book.read(json.dumps(written))
    except ToolArgumentError:
        return
    assert read["city"] == written["city"]


class Picky(msgspec.Struct):
    """Refuses values in its own ways."""

    value: int

    def __post_init__(self) -> None:
        if self.value == 1:
            raise ValueError("one is too few")
        raise KeyError(self.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [(1, r"one is too few - at `\$.it`"), (2, "KeyError: 2")],
)
def test_arguments_that_a_type_of_the_users_refuses(value: int, why: str) -> None:
    @tool
    def pick(it: Picky) -> None: ...

    with pytest.raises(ToolArgumentError, match=f"^arguments of pick: {why}$"):
        pick.read(f'{{"it": {{"value": {value}}}}}')


# --- the toolbox ---------------------------------------------------------------


def test_a_toolbox_holds_tools_by_name() -> None:
    box = toolbox([book, subagent, subagent_fork])
    assert box == {"book": book, "subagent": subagent, "subagent_fork": subagent_fork}
    assert list(box) == ["book", "subagent", "subagent_fork"]
    assert toolbox([]) == {}


def test_two_tools_of_one_name() -> None:
    second = tool(name="book")(bad_return)
    with pytest.raises(ToolSignatureError, match="an agent has two tools named book"):
        toolbox([book, subagent, second])


def test_a_toolbox_of_what_is_no_tool() -> None:
    with pytest.raises(ToolSignatureError, match="marked with @tool, found <function"):
        toolbox([bad_return])  # type: ignore[list-item]


# --- delegations ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "name", "context"),
    [(subagent, "subagent", "spawn"), (subagent_fork, "subagent_fork", "fork")],
)
def test_a_delegation_tool(each: DelegationTool, name: str, context: str) -> None:
    assert (each.name, each.context) == (name, context)
    declaration = each.declaration()
    assert declaration["name"] == name
    schema = declaration["parameters"]
    assert list(schema["properties"]) == ["description", "prompt", "run_in_background"]
    assert schema["required"] == ["description", "prompt"]
    read = each.read('{"description": "d", "prompt": "p", "run_in_background": true}')
    assert read == ("d", "p", True)
    with pytest.raises(ToolArgumentError, match="prompt must be a string"):
        each.read("{}")


# --- results -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("seen", "seen"),
        ("", ""),
        ("half \ud83d", "half \ud83d"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, "é"]}, '{"a":[1,"é"]}'),
        ({"half": "\ud83d"}, '{"half":"\\ud83d"}'),
        ([{"type": "user", "id": 1}], '[{"type":"user","id":1}]'),
        ([{"type": "text"}], '[{"type":"text"}]'),
        ([{"type": "text", "text": 3}], '[{"type":"text","text":3}]'),
        (["a", {"type": "text", "text": "b"}], '["a",{"type":"text","text":"b"}]'),
        (b"caf\xc3\xa9", "café"),
        (bytearray(b"x"), "x"),
        (enum.StrEnum("Word", ["YES"]).YES, "yes"),  # type: ignore[attr-defined]
    ],
)
def test_what_a_tool_returns_becomes_text(value: object, text: str) -> None:
    result = tool_result("c1", value)
    content = [{"type": "text", "text": text}]
    assert result == {
        "block": {
            "type": "tool-result",
            "toolCallId": "c1",
            "content": content,
            "isError": False,
        }
    }
    assert type(result["block"]["content"][0]["text"]) is str
    check(result)


def test_bytes_that_are_no_text_are_shown_with_a_mark() -> None:
    result = tool_result("c1", b"a\xff\xfeb")
    assert text_of(result) == "a\\xff\\xfeb"
    assert result["meta"] == {"lossyText": True}
    assert result["block"]["isError"] is False


def test_content_blocks_are_taken_as_they_are_and_kept() -> None:
    blocks = [
        {"type": "text", "text": "half \ud83d", "more": {"x": 1}},
        {"type": "image", "attachment": {"id": "a1"}},
    ]
    result = tool_result("c1", blocks)
    assert result["block"]["content"] == blocks
    blocks[0]["text"] = "changed later"
    assert result["block"]["content"][0]["text"] == "half \ud83d"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object is not a JSON value"),
        ({1, 2}, "set is not a JSON value"),
        ((1, 2), "tuple is not a JSON value"),
        (Box(1), "Box is not a JSON value"),
        (float("nan"), "nan is not a JSON number"),
        (float("inf"), "inf is not"),
        (-0.0, "negative zero"),
        (2**53, "beyond"),
        ({1: 2}, "object key 1 is not a string"),
        ({"a": [b"x"]}, r"a\[0\]: bytes is not a JSON value"),
        (nested(201), "nested deeper than 200"),
        (circle(), "nested deeper than 200"),
        (
            [{"type": "text", "text": "x", "more": nested(198)}],
            "nested deeper than 200",
        ),
        ([{"type": "image", "attachment": b""}], "bytes is not a JSON value"),
    ],
)
def test_what_no_result_can_hold_is_an_error(value: object, why: str) -> None:
    result = tool_result("c1", value)
    assert result["block"]["isError"] is True
    assert result["error"] == {"name": "JsonDomainError", "code": "TOOL_ERROR"}
    with pytest.raises(JsonDomainError, match=why):
        raise JsonDomainError(text_of(result))


def test_an_error_result_names_its_code() -> None:
    assert error_result("c1", "ToolArgumentError", "INVALID_ARGS", "not JSON") == {
        "block": {
            "type": "tool-result",
            "toolCallId": "c1",
            "content": [{"type": "text", "text": "Error: not JSON"}],
            "isError": True,
        },
        "error": {"name": "ToolArgumentError", "code": "INVALID_ARGS"},
    }


@given(JSON)
def test_every_result_can_be_logged(value: Any) -> None:
    result = tool_result("c1", value)
    check({"turn": 1, "step": 1, "message": {"content": [result["block"]]}})

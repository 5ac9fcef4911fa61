"""Agent references: what names an agent, what loads it, and every way it goes wrong."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nestling.session.errors import AgentReferenceError
from nestling.wire.agent_reference import Reference, absolute, parse_reference
from nestling.worker.references_io import load_agent, load_module, reference_of

AGENT = """
    async def agent(turn):
        return __name__

    class Shop:
        async def run_turn(self, turn): ...
        agent = agent

    shop = Shop()
"""


@pytest.fixture(autouse=True)
def _modules_and_path() -> Iterator[None]:
    """Forget what a test imported, and where it looked."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def write(folder: Path, source: str, name: str = "my_agents.py") -> str:
    """Write a source file and return its path."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return str(path)


def importable(folder: Path, source: str, name: str = "my_agents") -> None:
    """Write a module that can be imported by its name."""
    write(folder, source, f"{name}.py")
    sys.path.insert(0, str(folder))


# --- parsing -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("a:b", Reference("a", False, "b")),
        ("a.b.c:D.e", Reference("a.b.c", False, "D.e")),
        ("my-agents:a", Reference("my-agents", False, "a")),
        ("agents.py:a", Reference("agents.py", True, "a")),
        ("../x/agents.py:a", Reference("../x/agents.py", True, "a")),
        ("/x:y/agents.py:a.b", Reference("/x:y/agents.py", True, "a.b")),
        ("/x/__main__.py:a", Reference("/x/__main__.py", True, "a")),
        ("ipykernels:é", Reference("ipykernels", False, "é")),
    ],
)
def test_a_reference_is_parsed_and_written(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no colon, expected module:name or path/file.py:name"),
        ("agents", "has no colon"),
        ("agents.py", "has no colon"),
        (":a", "has no module"),
        ("agents:", "has no name"),
        (":", "has no module"),
        ("a::b", "no dotted name"),
        ("a..b:c", "no dotted name"),
        (".a:b", "no dotted name"),
        ("a\n:b", "no dotted name"),
        ("x/agents:a", "path that does not end in .py"),
        ("x/agents.txt:a", "path that does not end in .py"),
        ("x\0.py:a", "NUL"),
        ("a:b-c", "has the name 'b-c', which is no attribute"),
        ("a:b.", "which is no attribute"),
        ("a: b", "which is no attribute"),
        ("a:1", "which is no attribute"),
        ("__main__:a", "is in __main__, .* move the agent to a module of its own"),
        ("__mp_main__:a", "is in __mp_main__"),
        ("a:f.<locals>.g", "is made inside a function, .* at the top level"),
        ("a:<lambda>", "is a lambda, .* at the top level"),
        ("a:f.<locals>.<lambda>", "is a lambda"),
        ("book.ipynb:a", "is in a notebook, .* write the agent to a file"),
        ("<ipython-input-3-af>:a", "is in a notebook"),
        ("/tmp/ipykernel_12/34.py:a", "is in a notebook"),
        ("ipykernel.kernel:a", "is in a notebook"),
    ],
)
def test_what_is_no_reference(text: str, why: str) -> None:
    with pytest.raises(AgentReferenceError, match=f"^agent reference .*{why}"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a.b:c", "a.b:c"),
        ("a.py:c", "/base/dir/a.py:c"),
        ("./x//a.py:c", "/base/dir/x/a.py:c"),
        ("../a.py:c", "/base/dir/../a.py:c"),
        ("/x/./a.py:c", "/x/a.py:c"),
    ],
)
def test_a_file_reference_is_made_absolute(text: str, made: str) -> None:
    assert str(absolute(parse_reference(text), "/base/dir")) == made


# --- loading -------------------------------------------------------------------


def test_an_agent_of_a_module_is_loaded(tmp_path: Path) -> None:
    importable(tmp_path, AGENT)
    module = sys.modules.get("my_agents") or load_module("my_agents")
    assert load_agent("my_agents:agent") is module.agent
    assert load_agent("my_agents:shop") is module.shop
    assert load_agent("my_agents:Shop.agent") is module.agent


async def test_an_agent_of_a_file_is_loaded_once_under_a_name_of_its_own(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, AGENT)
    agent: Any = load_agent(f"{path}:agent")
    name = await agent(None)
    assert load_module(path) is sys.modules[name]
    assert "my_agents" not in sys.modules
    other = write(tmp_path / "other", AGENT)
    assert load_module(other).__name__ != name
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert load_module(str(link)) is sys.modules[name]


def test_a_module_is_found_that_was_written_a_moment_ago(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    before = tmp_path.stat()
    with pytest.raises(AgentReferenceError, match="No module named"):
        load_module("my_agents")
    write(tmp_path, AGENT)
    # As if the clock had not ticked in between.
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load_agent("my_agents:shop") is load_module("my_agents").shop


def test_a_relative_file_starts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, AGENT)
    monkeypatch.chdir(tmp_path)
    assert load_module("my_agents.py") is load_module(path)


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "WORD = 'hello'", "neighbour_of_agent.py")
    path = write(tmp_path, f"from neighbour_of_agent import WORD\n{dedented()}")
    assert load_module(path).WORD == "hello"
    assert sys.path[0] == str(tmp_path)
    before = list(sys.path)
    load_module(path)
    load_module(write(tmp_path, AGENT, "second.py"))
    assert sys.path == before


def dedented() -> str:
    return textwrap.dedent(AGENT)


# --- what goes wrong -----------------------------------------------------------


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    why = f"^agent module no_such: No module named 'no_such'; searched {tmp_path}, "
    with pytest.raises(AgentReferenceError, match=why):
        load_agent("no_such:agent")
    importable(tmp_path, AGENT)
    with pytest.raises(
        AgentReferenceError, match=r"my_agents.x: No module named .*; se"
    ):
        load_agent("my_agents.x:agent")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AgentReferenceError, match=rf"^agent file {tmp_path}/a.py does"):
        load_agent(f"{tmp_path}/a.py:agent")
    (tmp_path / "b.py").mkdir()
    with pytest.raises(AgentReferenceError, match=r"b.py is not a file$"):
        load_agent(f"{tmp_path}/b.py:agent")
    with pytest.raises(AgentReferenceError, match="does not exist"):
        load_module("a\0.py")


def test_a_relative_file_that_is_not_there_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentReferenceError, match=f"^agent file {tmp_path}/a.py does"):
        load_module("a.py")


IMPORTS: dict[str, tuple[str | bytes, str]] = {
    "no Python": ("def agent(:\n", "is not Python: invalid syntax .*my_agents.py, li"),
    "no text": (b"\xff\xfe\x00", "is not Python: |raises when it is imported"),
    "an error": ("1 / 0", "raises when it is imported: ZeroDivisionError: division"),
    "a missing import": ("import no_such", "ModuleNotFoundError: No module named 'no"),
    "its own base": (
        "class Stop(BaseException): ...\nraise Stop('here')",
        "raises when it is imported: Stop: here",
    ),
    "an exit": ("import sys; sys.exit(3)", "exits when it is imported, with 3$"),
    "a quit": ("raise SystemExit('bye')", "exits when it is imported, with 'bye'$"),
}


@pytest.mark.parametrize("kind", ["my_agents", "file"])
@pytest.mark.parametrize(("source", "why"), IMPORTS.values(), ids=IMPORTS)
def test_a_module_that_cannot_be_imported(
    source: str | bytes,
    why: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "my_agents.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    sys.path.append(str(tmp_path))
    before = list(sys.path)
    module, loaded = str(path) if kind == "file" else kind, set(sys.modules)
    with pytest.raises(AgentReferenceError, match=f"^agent module {module} .*({why})"):
        load_agent(f"{module}:agent")
    assert "Traceback" in capsys.readouterr().err
    assert sys.path == before
    left = sys.modules.keys() - loaded
    assert not [name for name in left if "agent" in name]


def test_an_interrupt_is_not_taken_for_a_bad_module(tmp_path: Path) -> None:
    importable(tmp_path, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_module("my_agents")


def test_a_file_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = write(tmp_path, "1 / 0")
    with pytest.raises(AgentReferenceError):
        load_module(path)
    write(tmp_path, f"# mended\n{dedented()}")
    assert load_agent(f"{path}:shop") is load_module(path).shop


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("agnet", "my_agents has no attribute 'agnet'; did you mean agent[?]$"),
        ("xyz", "my_agents has no attribute 'xyz'$"),
        ("Shop.agnt", "my_agents:Shop has no attribute 'agnt'; did you mean agent[?]$"),
        ("Shop.a.b", "my_agents:Shop has no attribute 'a'"),
    ],
)
def test_an_attribute_that_is_not_there(name: str, why: str, tmp_path: Path) -> None:
    importable(tmp_path, AGENT)
    with pytest.raises(AgentReferenceError, match=why):
        load_agent(f"my_agents:{name}")


NO_AGENTS = """
    class Shop:
        async def run_turn(self, turn): ...
    def plain(turn): ...
    async def none(): ...
    async def two(turn, more): ...
    async def by_name(*, turn): ...
    async def names(**turn): ...
    async def streams(turn):
        yield turn
    number = 3
"""


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Shop", "the class Shop"),
        ("plain", "a plain function"),
        ("none", r"an async function with the parameters \(\)"),
        ("two", r"an async function with the parameters \(turn, more\)"),
        ("by_name", r"an async function with the parameters \(\*, turn\)"),
        ("names", r"an async function with the parameters \(\*\*turn\)"),
        ("streams", "an async generator function"),
        ("number", "3"),
    ],
)
def test_what_is_no_agent(name: str, what: str, tmp_path: Path) -> None:
    importable(tmp_path, NO_AGENTS)
    expected = "expected an agent or an async function that takes one argument"
    why = f"^my_agents:{name} is {what}, {expected}"
    with pytest.raises(AgentReferenceError, match=why):
        load_agent(f"my_agents:{name}")


# --- naming --------------------------------------------------------------------


class Keeper:
    """An agent that is an instance."""

    async def run_turn(self, turn: object) -> None: ...

    @staticmethod
    async def inside(turn: object) -> None: ...


keeper = Keeper()


async def agent(turn: object) -> None: ...


anonymous = lambda turn: None


def made() -> Callable[[object], Awaitable[None]]:
    async def inner(turn: object) -> None: ...

    return inner


closure = made()


def test_objects_of_a_module_are_named() -> None:
    assert reference_of(agent) == f"{__name__}:agent"
    assert reference_of(Keeper.inside) == f"{__name__}:Keeper.inside"
    assert reference_of(keeper) == f"{__name__}:keeper"


def test_an_instance_that_another_module_holds_is_found(tmp_path: Path) -> None:
    source = f"from {__name__} import Keeper\nhere = Keeper()\n"
    importable(tmp_path, source)
    assert reference_of(load_module("my_agents").here) == "my_agents:here"


def test_objects_of_a_file_are_named_by_their_path(tmp_path: Path) -> None:
    path = write(tmp_path, AGENT)
    module = load_module(path)
    assert reference_of(module.agent) == f"{path}:agent"
    assert reference_of(module.shop) == f"{path}:shop"
    assert load_agent(reference_of(module.shop)) is module.shop


def test_an_instance_of_several_modules_is_not_guessed(tmp_path: Path) -> None:
    importable(tmp_path, f"from {__name__} import Keeper\nhere = Keeper()\n")
    importable(tmp_path, "from my_agents import here as there\n", "more_agents")
    there = load_module("more_agents").there
    why = "several references, pass the one to load: .*more_agents:there"
    with pytest.raises(AgentReferenceError, match=why):
        reference_of(there)
    there.__module__ = "my_agents"
    assert reference_of(there) == "my_agents:here"


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (anonymous, "is a lambda"),
        (closure, "is made inside a function, .* at the top level"),
        (functools.partial(agent), "is a partial, which no other process can find"),
        (Keeper(), "is no attribute of any module: assign the agent to a name at the"),
        (keeper.run_turn, "is not <bound method .* but <function"),
        (3, "is no attribute|several references"),
    ],
)
def test_what_no_other_process_can_find(thing: object, why: str) -> None:
    with pytest.raises(AgentReferenceError, match=why):
        reference_of(thing)


def _in_main(filename: str) -> ModuleType:
    """What a script or a notebook has made so far."""
    main = ModuleType("__main__")
    source = f"{dedented()}\n"
    exec(compile(source, filename, "exec"), main.__dict__)  # noqa: S102 - as a REPL does
    return main


@pytest.mark.parametrize(
    ("filename", "function", "instance"),
    [
        ("script.py", "is in __main__", "is in __main__"),
        ("<stdin>", "is in __main__", "is in __main__"),
        ("<ipython-input-1-ab>", "is in a notebook", "is in __main__"),
        ("/tmp/ipykernel_1/2.py", "is in a notebook", "is in __main__"),
    ],
)
def test_what_is_in_main_or_a_notebook(
    filename: str, function: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = _in_main(filename)
    monkeypatch.setitem(sys.modules, "__main__", main)
    vars(main)["kept"] = Keeper()
    # An interactive session keeps its last value here, too.
    monkeypatch.setattr("builtins._", main.kept, raising=False)
    with pytest.raises(AgentReferenceError, match=function):
        reference_of(main.agent)
    for thing in (main.shop, main.kept):
        with pytest.raises(AgentReferenceError, match=instance):
            reference_of(thing)


def test_a_function_that_its_name_does_not_lead_to(tmp_path: Path) -> None:
    source = f"{dedented()}\nfirst = agent\nasync def agent(turn): ...\n"
    importable(tmp_path, source)
    with pytest.raises(AgentReferenceError, match="my_agents:agent is not <function"):
        reference_of(load_module("my_agents").first)

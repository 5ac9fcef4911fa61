"""The house rules that no linter knows: rooms, names, sizes, what is not in the repo."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.session.version import VERSION

ROOT = Path(__file__).parent.parent
ROOMS = ("session", "wire", "driver", "worker", "harness")
LONGEST_FILE = 650
LONGEST_FUNCTION = 80
WORLD = {
    "anyio", "asyncio", "os", "pathlib", "random", "secrets", "select", "shutil",
    "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading",
    "time", "uuid", "zmq",
}  # fmt: skip
ENTRY_POINTS = ("cli.py", "__main__.py")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout here, so nothing says which files are tracked")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_every_room_is_a_portion_of_the_namespace() -> None:
    for room in ROOMS:
        assert not (ROOT / room / "nestling" / "__init__.py").exists()
        assert (ROOT / room / "nestling" / room / "__init__.py").exists()
        assert (ROOT / room / "nestling" / room / "py.typed").exists()


def test_enough_files_are_checked() -> None:
    assert len(sources()) > 60


def test_version_is_the_one_that_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


@pytest.mark.parametrize("room", ROOMS)
def test_no_public_name_is_also_a_module(room: str) -> None:
    """A package's attribute is its submodule once somebody has imported that."""
    package = importlib.import_module(f"nestling.{room}")
    names = set(getattr(package, "__all__", ()))
    folder = ROOT / room / "nestling" / room
    assert names & {path.stem for path in folder.glob("*.py")} == set()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_source_file_keeps_to_its_room(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    for function in functions(tree):
        length = (function.end_lineno or 0) - function.lineno + 1
        assert length <= LONGEST_FUNCTION, f"{function.name} has {length} lines"
    if not path.name.endswith("_io.py") and path.name not in ENTRY_POINTS:
        assert imported(tree) & WORLD == set(), "only *_io.py may touch the world"
    assert not list(swallowed(tree)), "an exception is swallowed without a reason"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def swallowed(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node):
            body = node.body[0]
            if isinstance(body, ast.Pass | ast.Continue):
                yield node


def is_broad(handler: ast.ExceptHandler) -> bool:
    names = {"Exception", "BaseException"}
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in names
    )


def test_no_unfinished_marks() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError")
    for path in sources():
        found = mark.search(path.read_text())
        assert found is None, f"{path}: {found}"


def test_nothing_names_the_machine_it_was_made_on() -> None:
    home = str(Path.home())
    for path in tracked():
        if path.suffix == ".png" or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert f"{ROOT.parent}/" not in text or str(ROOT.parent) == "/", path
        assert f"{home}/" not in text or home == "/", path


def test_architecture_is_short() -> None:
    words = (ROOT / "ARCHITECTURE.md").read_text().split()
    assert 300 <= len(words) <= 1500

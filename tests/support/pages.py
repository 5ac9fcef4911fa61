"""Pages of the documentation, done as they say: files written, commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parents[2] / "docs"

_BLOCK: Final = re.compile(
    r"^( *)```(\w+)( fails)?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE
)
_NAMED: Final = re.compile(r"# ([\w./-]+\.(?:py|toml|ini))\n")
_PROGRAMS: Final = {"nestling": "nestling.harness", "pytest": "pytest"}


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        language: what stands after its fence.
        fails: whether its command is said to fail.
        text: what is in it.
    """

    language: str
    fails: bool
    text: str

    @property
    def file(self) -> str | None:
        """The file that it is, if it begins with a name."""
        named = _NAMED.match(self.text)
        return None if named is None else named[1]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = (DOCS / page).read_text()
    return [
        Block(b[2], b[3] is not None, re.sub(f"^{b[1]}", "", b[4], flags=re.MULTILINE))
        for b in _BLOCK.finditer(text)
    ]


def do(page: str, folder: Path, first: str = "") -> Iterator[str]:
    """Do what a page says, in a folder; yield what each command printed.

    Files are written where the page shows them, so later ones replace earlier ones. A
    block of text is what the command before it prints, among other lines; `…` stands
    for any.

    Args:
        page: which.
        folder: where.
        first: a command that stands before it all.
    """
    programs = _programs(folder.parent / f"{folder.name}-bin")
    printed = ""
    if first:
        yield _run(Block("sh", False, first), folder, programs)
    for block in blocks(page):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "sh":
            printed = _run(block, folder, programs)
            yield printed
        else:
            assert block.language == "text", f"{page}: what is to be done with\n{block}"
            _check(page, block.text, printed)


def _programs(folder: Path) -> Path:
    """Make the programs of a virtual environment that is active."""
    folder.mkdir()
    for name, module in _PROGRAMS.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    return folder


def _run(block: Block, folder: Path, programs: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment.pop("CI", None)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", block.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    printed = done.stdout.decode()
    assert (done.returncode != 0) is block.fails, f"{block.text}\n{printed}"
    return printed


def _check(page: str, expected: str, printed: str) -> None:
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    for line in expected.splitlines():
        wanted = " ".join(line.split())
        if wanted == "…":
            continue
        parts = [re.escape(part) for part in wanted.split("…")]
        pattern = re.compile(".*".join(parts))
        assert any(pattern.match(each) for each in lines), (
            f"{page}: {line!r} is not in\n{printed}"
        )

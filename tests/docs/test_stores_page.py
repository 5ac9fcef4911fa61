"""The program and the commands of the page about stores do what the page says."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from nestling.session.store_io import open_store
from support.processes import needs_linux, run_nestling

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = needs_linux


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    agent, _, stream, *_ = blocks("agents.md", "python")
    (tmp_path / "harbour.py").write_text(agent)
    (program,) = blocks("stores.md", "python")
    (tmp_path / "program.py").write_text(stream + program)
    runpy.run_path("program.py", run_name="__main__")
    assert capsys.readouterr().out.split("\n") == ["12.5 m", "12.5 m", ""]
    with open_store("sqlite:runs.db") as store:
        (listed,) = store.sessions()
        assert listed.id == "log-1"
        assert len(store.read_from("log-1", 0)) > 10
    (commands,) = blocks("stores.md", "sh")
    for line in commands.splitlines():
        command, *arguments = shlex.split(line, comments=True)
        assert command == "nestling"
        done = run_nestling(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"log-1" in done.stdout or b"ok" in done.stdout

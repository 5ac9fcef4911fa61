"""``nestling doctor``: what it finds here, and what it says of what is missing."""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nestling.driver import template_io
from nestling.driver.owners_io import Owner
from nestling.harness import doctor_io
from nestling.harness.doctor import (
    Check,
    Findings,
    LeftOver,
    doctor_json,
    doctor_text,
)
from nestling.session.jsontext import loads
from support.launchers import stand_in
from support.processes import environment_with_tests, needs_linux, run_nestling

pytestmark = needs_linux

FOUND = (
    Check("worker program", is_present=True, found="python"),
    Check("pidfd", is_present=False, found="none", instead="polling"),
)


def _check(findings: Findings, name: str) -> Check:
    (found,) = (check for check in findings.checks if check.name == name)
    return found


# --- what is printed -------------------------------------------------------------


def test_what_is_missing_and_made_up_for() -> None:
    left = LeftOver("/tmp/nestling-x", 77)
    findings = Findings(FOUND, "exec", "this Python knows no pidfds", (left,))
    assert findings.is_ok
    assert doctor_text(findings).splitlines() == [
        "ok       worker program  python",
        "missing  pidfd           none; instead: polling",
        "",
        "workers are started by: exec: this Python knows no pidfds",
        "left by driver 77, removed by the next run: /tmp/nestling-x",
        "workers can run here",
    ]
    printed = doctor_json(findings)
    assert printed["verdict"] == "ok"
    assert printed["leftOver"] == [{"path": "/tmp/nestling-x", "pid": 77}]
    assert printed["checks"][1] == {
        "name": "pidfd",
        "present": False,
        "found": "none",
        "instead": "polling",
    }


def test_what_there_is_no_doing_without() -> None:
    fatal = Check("run directory", is_present=False, found="no place")
    findings = Findings((*FOUND, fatal), "exec", None, ())
    assert not findings.is_ok
    assert doctor_json(findings)["verdict"] == "failed"
    assert doctor_text(findings).endswith("no worker can run here")
    assert "missing  run directory   no place\n" in doctor_text(findings)


# --- what is found ---------------------------------------------------------------


def test_here(box: Path) -> None:
    left = box / "nestling-left"
    left.mkdir()
    (left / "owner").write_bytes(msgspec.json.encode(Owner(2**22 + 1, 5, "1-a")))
    result = run_nestling("doctor", "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    printed = loads(result.stdout)
    assert printed["verdict"] == "ok"
    assert (printed["launcher"], printed["reason"]) == ("template", None)
    assert all(check["present"] for check in printed["checks"])
    assert printed["leftOver"] == [{"path": str(left), "pid": 2**22 + 1}]
    assert left.exists(), "looking changes nothing"
    (left / "owner").unlink()
    left.rmdir()
    text = run_nestling("doctor")
    assert text.returncode == 0
    assert b"workers are started by: template\n" in text.stdout


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = doctor_io.doctor(as_json=True)
    assert result.exit_code == 1
    assert isinstance(result.output, dict)
    assert result.output["launcher"] == "exec"
    assert "the template cannot be started" in result.output["reason"]


def test_a_worker_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_io, "WORKER", stand_in("broken"))
    monkeypatch.setattr(template_io, "ENTRY", stand_in("broken"))
    findings = doctor_io.examine()
    found = "exit code 1: RuntimeError: the agent cannot be imported"
    assert _check(findings, "worker program").found == found
    assert not findings.is_ok
    assert findings.reason is not None
    assert findings.reason.startswith("the template was lost (exit code 1")


LOST = "the template was lost (exit code 1"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("without_descriptors", LOST),
        ("without_threads", LOST),
        ("threaded_template", "started a thread"),
    ],
)
def test_a_template_that_runs_and_can_take_no_agent(
    monkeypatch: pytest.MonkeyPatch, entry: str, why: str
) -> None:
    """For want of /proc, say; what a run does is what is told."""
    monkeypatch.setattr(template_io, "ENTRY", stand_in(entry))
    monkeypatch.setenv("PYTHONPATH", environment_with_tests()["PYTHONPATH"])
    findings = doctor_io.examine()
    assert findings.launcher == "exec"
    assert findings.reason is not None
    assert why in findings.reason
    assert findings.is_ok


def test_no_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    findings = doctor_io.examine()
    assert _check(findings, "pidfd").instead.startswith("ends are polled for")
    assert (findings.launcher, findings.reason) == (
        "exec",
        "this Python knows no pidfds",
    )
    assert findings.is_ok


def test_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    check = doctor_io._descriptors()
    assert check.is_fatal
    assert check.found == "20, at most 20: for about 0 workers, 4 each"


def test_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nestling.driver.run_directory_io.bases", list)
    assert doctor_io._place().is_fatal


def test_no_locks_no_prctl_no_strict_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(38, "Function not implemented")

    class Old:
        def execute(self, _: str) -> None:
            raise sqlite3.OperationalError("near STRICT: syntax error")

        def close(self) -> None:
            pass

    monkeypatch.setattr("fcntl.flock", fail)
    monkeypatch.setattr("fcntl.fcntl", fail)
    monkeypatch.setattr(sqlite3, "connect", lambda _: Old())
    assert "pid and start time" in doctor_io._lock("flock").instead
    assert doctor_io._lock("OFD locks").instead == "flock"
    assert doctor_io._sqlite().instead == "a store of JSON Lines"
    assert not doctor_io._prctl("no such thing", 4711, "nothing").is_present

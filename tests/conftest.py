"""Fixtures of all tests: none may leave anything behind."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.leaks import new_box, no_leaks


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of this test run that run directories are made in."""
    # pytest chooses the place of its own files once; it is to stay where it was.
    tmp_path_factory.getbasetemp()
    made = new_box()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(made))
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        patch.setattr(tempfile, "tempdir", None)
        yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _heeds_signals() -> Iterator[None]:
    """Let tests, and what they start, heed signals that this run is to ignore.

    As a job in the background of a script, say, or under nohup.
    """
    heeded: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGCHLD: signal.SIG_DFL,
    }
    ignored = [n for n in heeded if signal.getsignal(n) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, heeded[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _leaves_nothing(box: Path) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor or run directory."""
    with no_leaks(box):
        yield

"""Writers that are killed: at every boundary, and at any moment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from support.processes import environment_with_tests
from support.stores import DURABLE

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "kill_writers.py"

FOLDER: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A process's death needs no disk to be survived; a power cut is not tested here."""

LEAST: Final = {"create": 12, "append": 5, "append-many": 9, "repair": 5, "cut": 5}
"""So many deaths, at least, that leave less than all of the work."""


def _run(*command: object) -> str:
    env = environment_with_tests(**({"TMPDIR": FOLDER} if FOLDER else {}))
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=env,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("scheme", DURABLE)
def test_a_writer_that_dies_at_any_boundary(scheme: str) -> None:
    """Before a write, in the middle of it, before it is durable, before it is told."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        told = _run("-m", "support.boundaries", scheme, folder)
    seen = {}
    for line in told.splitlines():
        work, *counts = line.split()
        seen[work] = list(map(int, counts))
    assert seen.keys() == LEAST.keys()
    for work, least in LEAST.items():
        all_of_it, less = seen[work]
        assert all_of_it >= 1, f"{work}: nobody died after it was durable"
        assert less >= least, work


@pytest.mark.parametrize("scheme", DURABLE)
def test_a_writer_that_is_killed_at_any_moment(scheme: str) -> None:
    """A short version of the script; nothing acknowledged is lost."""
    line = _run(SCRIPT, "--store", scheme, "--count", 20, "--seed", 7)
    counts = dict(re.findall(r"([a-z-]+)=(\w+)", line))
    for kind in (
        "lost",
        "invented",
        "failed-loads",
        "second-loads",
        "leases",
        "errors",
    ):
        assert counts[kind] == "0", line
    assert counts["kills"] == "20"
    assert int(counts["durable-batches"]) > 50, "they were killed before they wrote"
    assert int(counts["under-way"]) > 2, "they were killed when they did nothing"

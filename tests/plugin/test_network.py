"""No test with a recording reaches the network, nor do its workers; others do."""

from __future__ import annotations

import pytest

from support.plugin_projects import Project
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(300)]

TESTS = """
import errno
import socket
import pytest
from nestling.session.errors import NetworkBlockedError


def call():
    socket.create_connection(("192.0.2.1", 443), timeout=0.01).close()


def test_before():
    with pytest.raises(OSError):
        call()


@pytest.mark.scenario("tree")
def test_blocked(replay):
    with pytest.raises(NetworkBlockedError, match="192.0.2.1: the network is blocked"):
        call()
    replay()


@pytest.mark.scenario("tree", network=True)
def test_allowed(replay):
    with pytest.raises(OSError):
        call()
    replay()


@pytest.mark.scenario("calling")
def test_workers(replay):
    report = replay(check=False)
    assert "192.0.2.1: the network is blocked" in str(report.logs["/"].events)


def test_after():
    with pytest.raises(OSError):
        call()
"""

CALLING = """
import socket
from nestling.worker import Agent, tool

async def caller(turn):
    try:
        socket.create_connection(("192.0.2.1", 443), timeout=0.01)
    except Exception as error:
        turn.append(f"{error}")
"""


def test_the_network(project: Project) -> None:
    project.write("calling.py", CALLING)
    project.recorded("tree")
    config = 'agent = "../calling.py:caller"\nprovider = "../model.py:model"\n'
    project.scenario("calling", config + 'prompts = ["Call."]\n')
    project.write("test_network.py", TESTS)
    run = project.pytest("--record-mode=once")
    assert (run.code, run.count("passed")) == (0, 5), run.out
    run = project.pytest("--nestling-allow-network")
    assert (run.code, run.count("failed")) == (1, 2), run.out


LEAKS = """
import os, subprocess, sys
import pytest
from nestling.driver.traces_io import MARK, new_mark

pytestmark = pytest.mark.usefixtures("nestling_no_leaks")


@pytest.mark.parametrize("n", range(2))
@pytest.mark.scenario("tree")
def test_tree(replay, n):
    replay()  # the template stays, and is not the test's


def test_leak():
    subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(new_mark())})
"""


def test_the_leak_fixture(project: Project) -> None:
    project.write("test_leaks.py", LEAKS)
    run = project.pytest("-W", "default::ResourceWarning")
    assert (run.count("passed"), run.count("errors?")) == (3, 1), run.out
    assert "left: process" in run.out
    assert "(sleep 600)" in run.out
    assert "nestling/harness" not in run.out
    assert "During handling" not in run.out

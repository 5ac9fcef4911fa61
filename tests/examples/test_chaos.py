"""The chaos script runs, its examples bear it, and it sees what must not be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nestling.driver.exits import Log
from support.examples import FOLDER, example
from support.processes import needs_linux

pytestmark = needs_linux

SCRIPTS = FOLDER.parent / "scripts"
QUICK = (
    "delay,kill-worker,kill-template,kill-idle-template,stop-worker-briefly,"
    "stop-template-briefly,cancel,cancel-call,cancel-run,store-error,disk-full"
)


def chaos(script: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the script; return its exit code, its totals, and what it had to say."""
    command = [sys.executable, str(script), *arguments, "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout), ran.stderr


@pytest.mark.parametrize(
    ("name", "launcher", "count"),
    [("deep", "template", 8), ("fan-out", "template", 5), ("deep", "exec", 2)],
)
def test_what_comes_of_it_is_right_or_an_honest_error(
    name: str, launcher: str, count: int
) -> None:
    told = ("--count", str(count), "--seed", "short", "--faults", QUICK)
    script = SCRIPTS / "chaos.py"
    code, totals, said = chaos(script, name, "--launcher", launcher, *told)
    assert (code, said) == (0, "")
    assert totals["runs"] == count
    assert totals["undisturbed"] + totals["honest errors"] == count
    assert totals["honest errors"] > 0
    assert sum(totals["faults"].values()) > count / 2


def test_answers_of_others_and_false_successes_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import chaos_checks as checks
    from chaos_faults import Told

    logs = checks.recorded(example("twins"))
    said = {}
    for log in logs.values():
        for call in checks.calls_of(log):
            said[checks.request_of(log, call)] = [call.chunks]
    assert list(checks.misrouted_live(logs, said)) == []
    assert list(checks.misrouted_replay(logs, example("twins"))) == []
    one, two = sorted(path for path in logs if path != "/")
    swapped = {**logs, one: logs[two], two: logs[one]}
    assert len(list(checks.misrouted_replay(swapped, example("twins")))) == 2
    first, second = list(said)[-2:]
    said[first], said[second] = said[second], said[first]
    assert len(list(checks.misrouted_live(logs, said))) == 2

    blocks = [e for e in logs["/"].events if e.type == "tool/result"]
    told = Told("/", one, {"block": blocks[0].data["message"]["content"][0]})
    assert list(checks.result_problems(logs, [told], frozenset())) == []
    cut = Log(logs[one].header, logs[one].events[:-1])
    found = list(checks.result_problems({**logs, one: cut}, [told], frozenset()))
    assert f"{one} ended error, told was a success" in found
    assert f"{one} did not complete, its parent's log has a success" in found
    assert len(list(checks.log_problems({one: cut}))) == 1


def test_an_agent_that_says_something_else_is_seen(tmp_path: Path) -> None:
    """Another tree than the recorded one, with nothing that says why."""
    for name in ("chaos.py", "chaos_faults.py", "chaos_checks.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "tests").symlink_to(FOLDER.parent / "tests")
    shutil.copytree(FOLDER / "retry", tmp_path / "examples" / "retry")
    agent = tmp_path / "examples" / "retry" / "agent.py"
    agent.write_text(agent.read_text().replace('"south": 7', '"south": 8'))
    told = ("retry", "--count", "3", "--seed", "1", "--faults", "delay")
    code, totals, said = chaos(tmp_path / "scripts" / "chaos.py", *told)
    assert code == 1
    assert totals["failed"] > 0
    assert "lie: another tree, and nothing says why" in said
    assert "FAILED --seed 1 --run" in said

"""The store benchmark runs, and says what it measured; never how fast that was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_store.py"
TIMED = {"what", "store", "ms", "raw_ms", "ratio"}
RATED = {*TIMED, "events_per_s", "raw_events_per_s"}


def test_a_quick_run_measures_everything_and_cleans_up(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--dir", str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found.keys() == {"rounds", "rows", "sizes"}
    assert [(row["what"], row["store"]) for row in found["rows"]] == [
        ("append 1 x 1", "jsonl"),
        ("append 1 x 1", "sqlite"),
        ("append 1 x 8", "jsonl"),
        ("append 1 x 8", "sqlite"),
        ("append 1 x 8, checked", "jsonl"),
        ("append 1 x 8, checked", "sqlite"),
        ("append 3 x 1", "jsonl"),
        ("append 3 x 1", "sqlite"),
        ("append 3 x 8", "jsonl"),
        ("append 3 x 8", "sqlite"),
        ("create with 64", "jsonl"),
        ("create with 64", "sqlite"),
        ("load 500", "jsonl"),
        ("load 500", "jsonl unpacked"),
        ("load 500", "sqlite"),
        ("list 5", "jsonl"),
        ("list 5", "sqlite"),
        ("resume one", "jsonl"),
        ("resume one", "sqlite"),
    ]
    for row in found["rows"]:
        is_rated = row["what"].startswith(("append", "load"))
        assert row.keys() == (RATED if is_rated else TIMED)
        assert all(row[key] > 0 for key in row.keys() - {"what", "store"})
    assert found["sizes"]["events"] == 500
    assert found["sizes"]["bytes"].keys() == {"jsonl", "jsonl unpacked", "sqlite"}
    assert list(tmp_path.iterdir()) == []

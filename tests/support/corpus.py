"""Where the corpus of recorded sessions is, for tests that can use it.

The corpus is no part of the checkout. Tests look for it in the folder that the
environment variable ``NESTLING_CORPUS`` names, else in ``../shared/corpus`` beside
the checkout, and skip, saying so, where it is not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

VARIABLE: Final = "NESTLING_CORPUS"

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_BESIDE: Final = _CHECKOUT.parent / "shared" / "corpus"


def corpus_dir() -> Path | None:
    """Return the corpus' folder, or None where there is none."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else _BESIDE
    return folder if (folder / "dsh").is_dir() else None


needs_corpus: Final = pytest.mark.skipif(
    corpus_dir() is None,
    reason=(
        f"NO CORPUS: neither ${VARIABLE} (now {os.environ.get(VARIABLE)!r}) nor "
        "../shared/corpus beside the checkout holds a folder 'dsh'"
    ),
)
"""Mark of a test that cannot run without the corpus."""


def dsh_folders() -> list[Path]:
    """Return the folders of recorded trees, sorted; none without a corpus."""
    corpus = corpus_dir()
    if corpus is None:
        return []
    return sorted(path for path in (corpus / "dsh").iterdir() if path.is_dir())


def dsh_logs() -> list[Path]:
    """Return every recorded session log, sorted; none without a corpus."""
    return sorted(
        path for folder in dsh_folders() for path in folder.glob("session*.jsonl")
    )


def cases(name: str) -> list[dict[str, Any]]:
    """Return the made cases of one kind (``parse``, ``fold`` ...), none without."""
    corpus = corpus_dir()
    if corpus is None:
        return []
    loaded: list[dict[str, Any]] = json.loads(
        (corpus / "cases" / f"{name}.json").read_text(encoding="utf-8")
    )
    return loaded

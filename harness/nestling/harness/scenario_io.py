"""Loading a scenario from disk; nothing is written, and nothing but files is opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from nestling.harness.folder_lock_io import held
from nestling.harness.scenario import (
    OVERRIDE_NAME,
    Scenario,
    build_scenario,
    build_single,
)
from nestling.session.errors import UnreadableError
from nestling.session.recording_io import read_file

ROOT_NAME: Final = "session.jsonl"

CONFIG_NAME: Final = "scenario.toml"

_CHILD_NAME: Final = re.compile(r"session\.([0-9]+)\.jsonl")


def load_scenario(path: Path | str) -> Scenario:
    """Load a scenario.

    Args:
        path: a folder with ``session.jsonl``, ``session.1.jsonl`` and so on, and
            maybe ``replay.override.json``; or one log.

    Raises:
        UnreadableError: naming the file, what was found and what was expected.
    """
    path = Path(path)
    mode = _mode(path)
    if mode is None:
        raise UnreadableError(f"{path}: no such file or folder")
    if not stat.S_ISDIR(mode):
        with _located(path.parent):
            _require_file(path, path.name)
            return build_single(path.name, read_file(path))
    with _located(path):
        return _load_folder(path)


@contextmanager
def _located(folder: Path) -> Iterator[None]:
    """Put the folder before a message that names a file of it: many have one of it."""
    try:
        yield
    except UnreadableError as error:
        message = str(error)
        if message.startswith(f"{folder}: "):
            raise
        raise type(error)(f"{folder}/{message}") from None


def _load_folder(path: Path) -> Scenario:
    name = path.name or str(path)
    with _unchanged(path):
        recordings = [read_file(path / file) for file in _log_names(path)]
        is_own = os.path.lexists(path / CONFIG_NAME)
        override = _override(path / OVERRIDE_NAME)
    return build_scenario(name, recordings, override, is_own=is_own)


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Keep those who write scenarios away meanwhile, where the folder can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(held(folder, shared=True))
        yield


def _mode(path: Path) -> int | None:
    """Return the mode of what is at a path; None if nothing is."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the path
        raise UnreadableError(f"{str(path)!r}: {error}") from None


def _require_file(path: Path, name: str) -> None:
    """Refuse what a read might never return from (pipes), or cannot read at all."""
    mode = _mode(path)
    if mode is None:
        raise UnreadableError(f"{name}: found a link to nothing, expected a file")
    if not stat.S_ISREG(mode):
        raise UnreadableError(f"{name}: found no regular file, expected one")


def _log_names(folder: Path) -> list[str]:
    names = _listed(folder)
    if ROOT_NAME not in names:
        found = f"{len(names)} other files" if names else "an empty folder"
        raise UnreadableError(f"{folder}: found {found}, expected {ROOT_NAME}")
    numbers = sorted(map(_number, filter(_CHILD_NAME.fullmatch, names)))
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            raise UnreadableError(
                f"{folder}: found session.{number}.jsonl, expected "
                f"session.{expected}.jsonl before it (children are numbered from 1)"
            )
    logs = [ROOT_NAME, *(f"session.{number}.jsonl" for number in numbers)]
    for name in logs:
        _require_file(folder / name, name)
    return logs


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise UnreadableError(f"{folder}: {error.strerror or error}") from None


def _number(name: str) -> int:
    match = _CHILD_NAME.fullmatch(name)
    digits = "" if match is None else match[1]
    if digits.startswith("0") or len(digits) > 9:
        raise UnreadableError(
            f"{name}: {digits} is no number of a child, expected 1, 2, 3 and so on "
            "without leading zeros"
        )
    return int(digits)


def _override(path: Path) -> bytes | None:
    if not os.path.lexists(path):
        return None
    _require_file(path, path.name)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path.name}: {error.strerror or error}") from None

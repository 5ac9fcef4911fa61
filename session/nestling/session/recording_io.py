"""Recordings on disk: reading one whole."""

from __future__ import annotations

from pathlib import Path

from nestling.session.errors import UnreadableError
from nestling.session.reading import Recording, read_recording


def read_file(path: Path, name: str | None = None) -> Recording:
    """Read a recording from a file; the file is only read.

    Args:
        path: the file.
        name: what errors call it; its file name by default.

    Raises:
        UnreadableError: if the file cannot be read, or not as a recording.
    """
    name = path.name if name is None else name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror or error}") from None
    return read_recording(data, name)

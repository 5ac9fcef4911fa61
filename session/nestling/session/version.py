"""The version of Nestling, where every room can read it without the packaging."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"

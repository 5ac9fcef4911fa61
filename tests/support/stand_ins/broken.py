"""A worker that fails while it is imported."""

from __future__ import annotations

raise RuntimeError("the agent cannot be imported")

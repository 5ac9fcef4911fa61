"""A worker that ends at once: the cheapest one there is."""

from __future__ import annotations

raise SystemExit(1)

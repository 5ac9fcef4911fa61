"""The program ``nestling``, also as ``python -m nestling.harness``."""

from __future__ import annotations

from nestling.harness.interrupts_io import exits_when_interrupted, hear_of_children


def main() -> None:
    """Load the command line, which takes a moment, and run it."""
    hear_of_children()
    with exits_when_interrupted():
        from nestling.harness.cli import main as run

        run()


if __name__ == "__main__":
    main()

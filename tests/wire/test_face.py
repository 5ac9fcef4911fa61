"""What the room shows, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import nestling.wire


def test_the_face_is_sorted_and_whole() -> None:
    names = nestling.wire.__all__
    assert len(set(names)) == len(names)
    assert sorted(names, key=lambda n: (not n.isupper(), n.islower(), n)) == names
    assert all(hasattr(nestling.wire, name) for name in names)


def test_messages_do_not_load_zeromq() -> None:
    code = (
        "import sys, nestling.wire, nestling.wire.messages\n"
        "sys.exit(bool({'zmq', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A worker that prints what no terminal can show and ends at once."""

from __future__ import annotations

import os
import sys

os.write(1, b"first line on stdout\n\xff\xfe\x00\x1b[31mred\n" + "ü\n".encode()[:1])
os.write(2, b"\nlast line on stderr")
sys.exit(7)

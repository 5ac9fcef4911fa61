"""A worker that tells what it finds around it, and ends."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

from support.stand_ins import tell

_lifeline = int(sys.argv[1])
_open = {}
for _name in os.listdir("/proc/self/fd"):
    try:
        _open[_name] = os.readlink(f"/proc/self/fd/{_name}")
    except OSError:  # the one that listed them
        continue
tell(
    json.dumps(
        {
            "environment": dict(os.environ),
            "arguments": sys.argv[1:],
            "command": Path("/proc/self/cmdline").read_text().split("\0"),
            "directory": os.getcwd(),
            "files": os.listdir("."),
            "mode": stat.S_IMODE(os.stat("../..").st_mode),
            "group": [os.getpid(), os.getpgid(0), os.getsid(0)],
            "descriptors": _open,
            "lifeline": _lifeline,
            "hash": hash("nestling"),
            "path": sys.path,
            "spec": os.read(_lifeline, 4096).decode(),
        }
    )
)

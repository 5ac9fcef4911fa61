"""The program ``nestling``, telling its test what happens inside, line by line.

``python -m support.spied_cli FD ENTRY ARGUMENTS...`` writes to the descriptor FD:
``pid <n>`` for each worker, ``notice <path> <text>`` for each notice.
"""

from __future__ import annotations

import os
import sys

from nestling.driver.hub_io import HubLoop
from nestling.driver.instructions import Instruction, Notice
from nestling.driver.launcher_io import ExecLauncher, WorkerProcess
from nestling.driver.template_launcher_io import DEFAULT_BOUNDS, TemplateLauncher
from nestling.driver.workers_io import Workers
from nestling.harness.__main__ import main

_fd, _entry = int(sys.argv[1]), sys.argv[2]
os.set_inheritable(_fd, False)
_started, _obey = Workers._started, HubLoop._obey


def _tell(line: str) -> None:
    os.write(_fd, f"{line}\n".encode())


def _told_start(self: Workers, launch: str, process: WorkerProcess) -> None:
    _tell(f"pid {process.pid}")
    _started(self, launch, process)


def _told_obey(self: HubLoop, instructions: list[Instruction]) -> None:
    _obey(self, instructions)
    for instruction in instructions:
        if isinstance(instruction, Notice):
            _tell(f"notice {instruction.path} {instruction.text}")


Workers._started = _told_start  # type: ignore[method-assign]
HubLoop._obey = _told_obey  # type: ignore[method-assign]
ExecLauncher.__init__.__defaults__ = (_entry,)
TemplateLauncher.__init__.__defaults__ = ((), _entry, DEFAULT_BOUNDS)
sys.argv[1:] = sys.argv[3:]
main()

"""Tools whose processes do what they can to stay, and one that tells where it is."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from nestling.worker import Agent, subagent, tool

MODEL = "m/one"


def tell(fifo: str, what: str) -> None:
    """Tell whoever listens which process this is."""
    with open(fifo, "w") as told:
        told.write(f"{what} {os.getpid()}\n")


@tool
async def stays(fifo: str) -> str:
    """Tell that it runs, and wait for ever."""
    tell(fifo, "runs")
    await asyncio.Event().wait()
    return "never"


@tool
def daemonises(fifo: str) -> str:
    """Leave a process behind that nobody's group holds, with the tool's own stdout."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            tell(fifo, "left")
            while True:
                time.sleep(3600)
        os._exit(0)
    os.wait()
    return "left it"


@tool
def vanishes(fifo: str) -> str:
    """Leave a daemon behind that bears nothing: no environment, no output of ours."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for stream in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            tell(fifo, "left")
            os.execve("/bin/sleep", ["sleep", "3600"], {})
        os._exit(0)
    os.wait()
    return "left it"


agent = Agent(MODEL, tools=[stays, daemonises, vanishes, subagent])

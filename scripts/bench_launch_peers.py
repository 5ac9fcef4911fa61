"""The processes that ``bench_launch.py`` compares launchers with; started by it only.

Each says hello over ZeroMQ, as a worker does first, with what a worker imports already
imported; none does anything else that a worker has to do.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

import zmq

import nestling.worker.process_io  # noqa: F401 - what a worker imports


def hello(endpoint: str, name: str) -> None:
    """Connect, say hello, and wait for the answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.ROUTING_ID, name.encode())
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(endpoint)
        sock.send(b"hello")
        sock.recv()


def fork_on_request(endpoint: str) -> None:
    """Fork a process that says hello for each line of stdin: the bare minimum."""
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                hello(endpoint, line.strip())
            finally:
                os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        fork_on_request(sys.argv[2])
    else:
        hello(sys.argv[2], sys.argv[3])

"""Workers start while a thread of their driver holds locks of ``logging`` (D11).

A fork of the driver itself would wait for them for ever, or inherit them locked.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from nestling.driver import Driver
from nestling.harness import ScriptedModel
from support.launchers import LAUNCHERS
from support.live import launcher_named, reference
from support.processes import needs_linux

pytestmark = needs_linux

COUNT = int(os.environ.get("LC_NESTLING_FORKS", "20"))
"""So many children; the fault catalogue asks for 100."""
SECONDS = 30 + COUNT


@contextmanager
def held() -> Iterator[None]:
    """Have another thread hold the lock of ``logging``, and that of a handler."""
    locked, released = threading.Event(), threading.Event()
    module: Any = logging
    handler = logging.StreamHandler()

    def hold() -> None:
        with module._lock, handler.lock or module._lock:
            locked.set()
            released.wait()

    thread = threading.Thread(target=hold)
    logging.getLogger("nestling").addHandler(handler)
    thread.start()
    try:
        assert locked.wait(20)
        yield
    finally:
        released.set()
        thread.join()
        logging.getLogger("nestling").removeHandler(handler)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_many_workers_start_while_locks_are_held(launcher: str) -> None:
    """Each starts, logs by its own module's handler, and answers."""
    model = ScriptedModel(lambda request: "done")
    options = {"count": COUNT, "at_once": 8}
    agent = reference("speakers:has_many")
    with anyio.fail_after(SECONDS):
        async with Driver(
            providers={"m": model}, launcher=launcher_named(launcher)
        ) as driver:
            with held():
                run = await driver.start(agent, "go", options=options)
                assert (await run.result()).stop_reason == "completed"
                await run.close()
    assert run.end is not None
    births = [run.end.births[path] for path in run.logs]
    assert [birth.launcher for birth in births] == [launcher] * (COUNT + 1)
    spoken = [run.printed[path] for path in run.logs if path != "/"]
    assert spoken == ["a child speaks\n"] * COUNT

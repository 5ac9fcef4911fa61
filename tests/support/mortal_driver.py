"""A program that runs a tree until somebody kills it; see ``tests/live/test_resume.py``.

``python -m support.mortal_driver STORE AGENT PROMPTS [LAUNCHER SILENCE]``, the prompts
as a JSON list, the silence in seconds after which it suspects a worker, and ends it two
seconds later. It prints what happens: ``stored ID TYPE`` with the last event of each
batch that is durable, ``hangs SAID``, ``done``; and, where it was told a launcher,
``worker PID``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import anyio

from nestling.driver import Driver, Limits, Request, watch
from nestling.driver.launcher_io import WorkerProcess
from nestling.driver.workers_io import Workers
from nestling.harness import Answer, ScriptedModel
from nestling.session.errors import StoreError
from nestling.session.jsontext import JsonObject, loads
from nestling.session.store_io import Batch, SessionStore, backend_of


def say(line: str) -> None:
    """Tell whoever reads the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer_to(said: str) -> Answer:
    """Return what the model says to what was said to it last.

    Each line ``call NAME ARGUMENTS`` makes it call a tool; ``hang`` makes it say a few
    words, and then nothing; anything else it repeats.
    """
    lines = [line.split(" ", 2) for line in said.splitlines()]
    calls: list[JsonObject] = [
        {"type": "tool-call", "id": f"c{n}", "name": line[1], "arguments": line[2]}
        for n, line in enumerate(lines)
        if line[0] == "call"
    ]
    if calls:
        return Answer("", calls=calls)
    if said.startswith("hang"):
        return Answer("So far so good").hangs(after=2)
    return Answer(f"said {said}")


def last_said(request: Request) -> str:
    """Return the text of the last message, results included."""
    parts: list[str] = []
    for block in request.messages[-1]["content"]:
        inner = block["content"] if block["type"] == "tool-result" else [block]
        parts += [part["text"] for part in inner]
    return "".join(parts)


def model(request: Request) -> Answer:
    """Answer, and tell of it if that is to hang."""
    said = last_said(request)
    if said.startswith("hang"):
        say(f"hangs {said}")
    return answer_to(said)


class TellingStore(SessionStore):
    """A store that tells what it has made durable."""

    def append_logged(self, batches: Sequence[Batch]) -> list[StoreError | None]:
        """Append, and tell."""
        outcomes = super().append_logged(batches)
        for batch, problem in zip(batches, outcomes, strict=True):
            if problem is None:
                say(f"stored {batch.session_id} {batch.events[-1].type}")
        return outcomes


_started: Final = Workers._started


def _told_start(self: Workers, launch: str, process: WorkerProcess) -> None:
    say(f"worker {process.pid}")
    _started(self, launch, process)


async def main(
    address: str, agent: str, prompts: list[str], launcher: str, limits: Limits | None
) -> None:
    """Run the tree."""
    with TellingStore(backend_of(address)) as store:
        providers = {"m": ScriptedModel(model)}
        async with Driver(
            store=store, providers=providers, launcher=launcher, limits=limits
        ) as driver:
            run = await driver.start(agent, prompts, session_id="root")
            await run.result()
            say("done")
            await anyio.sleep_forever()


if __name__ == "__main__":
    told = sys.argv[4:]
    if told:
        watch.SUSPECTED = 2.0  # type: ignore[misc]
        Workers._started = _told_start  # type: ignore[method-assign]
    anyio.run(
        main,
        sys.argv[1],
        sys.argv[2],
        loads(sys.argv[3]),
        told[0] if told else "auto",
        Limits(silence=float(told[1])) if told else None,
    )

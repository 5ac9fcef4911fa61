"""A program that runs a tree until somebody kills it; see ``tests/live/test_resume.py``.

``python -m support.mortal_driver STORE AGENT PROMPTS``, the prompts as a JSON list. It
prints what happens: ``turn/end PATH``, ``tool/call PATH``, ``hangs SAID``, ``done``.
"""

from __future__ import annotations

import sys

import anyio

from nestling.driver import Driver, Request
from nestling.harness import Answer, ScriptedModel
from nestling.session.jsontext import JsonObject, loads


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


async def main(store: str, agent: str, prompts: list[str]) -> None:
    """Run the tree, and tell of the turns that end and of the tools that are called."""
    async with Driver(store=store, providers={"m": ScriptedModel(model)}) as driver:
        run = await driver.start(agent, prompts, session_id="root")
        async for grown in run.events():
            if grown.event.type in ("turn/end", "tool/call"):
                say(f"{grown.event.type} {grown.path}")
        say("done")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], loads(sys.argv[3]))

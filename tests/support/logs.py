"""Small recorded logs and trees for tests of the harness.

A ``Log`` is written call by call and comes out as the bytes of a file, so that what
a test reads has gone through the real reader.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from nestling.session.digest import seed_digest
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.reading import Recording, read_recording


class Ask(NamedTuple):
    """One delegating tool call and what came back.

    ``result`` None: the log holds no result for it.
    """

    prompt: str
    tool: str = "subagent"
    result: str | None = "done"
    is_error: bool = False
    call_id: str = ""
    more: JsonObject | None = None

    def arguments(self) -> str:
        """The arguments as the model wrote them."""
        return json.dumps({"prompt": self.prompt, **(self.more or {})})


def text_chunks(text: str, finish: str | None = "stop") -> list[JsonObject]:
    """The chunks of a call that says `text`; unfinished where `finish` is None."""
    chunks: list[JsonObject] = [{"type": "text-delta", "index": 0, "text": text}]
    if finish is not None:
        chunks.append({"type": "finish", "reason": {"kind": finish}})
    return chunks


class Log:
    """A recorded session while it is written."""

    def __init__(self, session_id: str, created_at: int = 0, **header: Any) -> None:
        self.header: JsonObject = {
            "type": "session",
            "version": 0,
            "id": session_id,
            "createdAt": created_at,
            **header,
        }
        self.rows: list[JsonObject] = []
        self._turn = 0
        self._step = 0

    @property
    def id(self) -> str:
        """The session's id."""
        return str(self.header["id"])

    def child(self, session_id: str, created_at: int, **header: Any) -> Log:
        """Start the log of a spawned child."""
        return Log(session_id, created_at, parentSession=self.id, **header)

    def fork(self, session_id: str, created_at: int, **header: Any) -> Log:
        """Start the log of a child that inherits what is written so far."""
        length = len(self.rows)
        child = self.child(session_id, created_at, seedLength=length, **header)
        child.rows = deepcopy(self.rows)
        child._turn = self._turn
        return child.add("session/end-seed", {})

    def add(self, kind: str, data: Any, **envelope: Any) -> Log:
        """Add one event."""
        self.rows.append({"type": kind, "data": data, **envelope})
        return self

    def turn(self, prompt: str | None = None) -> Log:
        """Start a turn, with its first step and, maybe, the user's message."""
        self._turn, self._step = self._turn + 1, 0
        self.add("turn/start", {"turn": self._turn}).step()
        return self if prompt is None else self.user(prompt)

    def step(self) -> Log:
        """Start the next step."""
        self._step += 1
        return self.add("step/start", self._place())

    def user(self, text: str, source: str = "user") -> Log:
        """Add a user message."""
        message = {
            "id": f"{self.id}-u{len(self.rows)}",
            "role": "user",
            "content": [{"type": "text", "text": text}],
            "source": {"kind": source},
        }
        return self.add("user/message", message, surfaceOp="append")

    def chunks(self, chunks: list[JsonObject]) -> Log:
        """Add chunks to the step."""
        for chunk in chunks:
            self.add("assistant/chunk", {**self._place(), "chunk": chunk})
        return self

    def say(self, text: str) -> Log:
        """Add a call that answers with a text."""
        self.chunks(text_chunks(text))
        return self.message([{"type": "text", "text": text}])

    def message(self, content: list[JsonObject], **envelope: Any) -> Log:
        """Add an assistant message."""
        message = {
            "id": f"{self.id}-a{len(self.rows)}",
            "role": "assistant",
            "content": content,
            "source": {"kind": "model", "provider": "p", "model": "m"},
        }
        data = {**self._place(), "message": message}
        return self.add("assistant/message", data, surfaceOp="append", **envelope)

    def ask(self, *asks: Ask) -> Log:
        """Add a call whose message delegates after one block of text; next a step."""
        named = [
            ask._replace(call_id=ask.call_id or f"{self.id}-c{len(self.rows)}-{index}")
            for index, ask in enumerate(asks)
        ]
        blocks = [{"type": "text", "text": "on it"}, *map(_block, named)]
        text, finish = text_chunks("on it", "tool-calls")
        ends = [
            {"type": "block-end", "index": index, "block": block}
            for index, block in enumerate(blocks)
        ]
        self.chunks([text, *ends[1:], finish])
        self.message(blocks)
        for ask in named:
            call = {"callId": ask.call_id, "name": ask.tool}
            data = {**self._place(), **call, "arguments": ask.arguments()}
            self.add("tool/call", data)
        for ask in named:
            if ask.result is not None:
                self._result(ask, ask.result)
        return self.add("step/end", self._place()).step()

    def _result(self, ask: Ask, text: str) -> None:
        block = {
            "type": "tool-result",
            "toolCallId": ask.call_id,
            "content": [{"type": "text", "text": text}],
            "isError": ask.is_error,
        }
        message = {
            "id": f"{self.id}-r{len(self.rows)}",
            "role": "user",
            "source": {"kind": "tool", "callId": ask.call_id},
            "content": [block],
        }
        data = {**self._place(), "message": message}
        self.add("tool/result", data, surfaceOp="append")

    def end(self, kind: str = "completed", **more: Any) -> Log:
        """End the step and the turn."""
        self.add("step/end", self._place())
        reason = {"kind": kind, **more}
        return self.add("turn/end", {"turn": self._turn, "reason": reason})

    def answered(self, prompt: str, answer: str) -> Log:
        """Add a whole turn of one call."""
        return self.turn(prompt).say(answer).end()

    def digested(self) -> Log:
        """State the digest of what was inherited."""
        length = self.header.get("seedLength", 0)
        self.header["seedDigest"] = seed_digest(self.recording().events[:length])
        return self

    def text(self) -> bytes:
        """The bytes of the file."""
        return b"".join(dumps(row) + b"\n" for row in [self.header, *self.rows])

    def recording(self, name: str = "session.jsonl") -> Recording:
        """The log as the reader understands it."""
        return read_recording(self.text(), name)

    def _place(self) -> JsonObject:
        return {"turn": self._turn, "step": self._step}


def _block(ask: Ask) -> JsonObject:
    return {
        "type": "tool-call",
        "id": ask.call_id,
        "name": ask.tool,
        "arguments": ask.arguments(),
    }


def file_names(count: int) -> list[str]:
    """The names of a scenario's logs, the root's first."""
    return ["session.jsonl", *(f"session.{n}.jsonl" for n in range(1, count))]


def recordings(*logs: Log) -> list[Recording]:
    """Read logs under the names they would have in a folder."""
    names = file_names(len(logs))
    return [log.recording(name) for log, name in zip(logs, names, strict=True)]


def write_folder(folder: Path, *logs: Log) -> Path:
    """Write logs as a scenario folder."""
    folder.mkdir(exist_ok=True)
    for log, name in zip(logs, file_names(len(logs)), strict=True):
        (folder / name).write_bytes(log.text())
    return folder

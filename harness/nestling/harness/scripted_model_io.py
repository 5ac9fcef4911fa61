"""A scripted model: a provider that says what a test told it to say.

::

    model = ScriptedModel([Answer("Let me see.", calls=[tool_call("look", {})]), "Done."])
    driver = Driver(providers={"scripted": model})

A provider sees one request, not who asks. So a plain list is used up in the order in
which calls arrive, from whichever session: right for one session, or for sessions that
run one after the other. Where children run at the same time, let the answer follow from
the request: by the prompt (``by_prompt``, ``by_text``) or by a function.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

import anyio
import anyio.lowlevel

from nestling.harness.compose_stream import (
    fork_call,
    reasoning,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.scripted_answer import Answer, last_user_text
from nestling.session.errors import ProviderError, ScriptedModelError
from nestling.session.jsontext import JsonObject
from nestling.session.request import Request

__all__ = [
    "EXHAUSTED",
    "Answer",
    "AnswerLike",
    "Answers",
    "ScriptedModel",
    "fork_call",
    "last_user_text",
    "reasoning",
    "spawn_call",
    "text",
    "tool_call",
]

AnswerLike: TypeAlias = Answer | str | Sequence[JsonObject]
"""One answer: in full, as its text, or as its content blocks."""

_Function: TypeAlias = Callable[[Request], AnswerLike | Awaitable[AnswerLike]]

Answers: TypeAlias = Answer | str | Sequence[AnswerLike] | _Function
"""Answers used up in their order, an answer or text used once, or a function."""

EXHAUSTED: Final = "SCRIPT_EXHAUSTED"
"""The failure code of a call that a scripted model has no answer for."""


class ScriptedModel:
    """A provider that plays answers; any number of tasks and threads may call it.

    A call takes its answer, and is seen in ``requests``, when its first chunk is asked
    for.
    """

    def __init__(
        self,
        answers: Answers = (),
        *,
        by_prompt: Mapping[str, Answers] | None = None,
        by_text: Mapping[str, Answers] | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Take the answers. The first of these that fits a request answers it.

        Args:
            by_prompt: answers by what the last user message says, exactly. The calls
                of one turn share their prompt, so give one answer for each.
            by_text: answers by a text that the last user message contains; the first
                that does, in the mapping's order.
            answers: answers to all other requests.
            sleep: waits for some seconds; a test that owns the clock gives its own.

        Raises:
            ScriptedModelError: if an answer is none.
        """
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._sleep = sleep
        self._by_prompt = _scripts(by_prompt or {}, "prompt")
        self._by_text = _scripts(by_text or {}, "text")
        self._others = _Script(answers, "the scripted model")

    @property
    def requests(self) -> list[Request]:
        """The requests so far, in the order in which they came."""
        with self._lock:
            return list(self._requests)

    async def __call__(self, request: Request) -> AsyncGenerator[JsonObject, None]:
        """Answer one request.

        Raises:
            ProviderError: if the answer is to fail; with the code ``SCRIPT_EXHAUSTED``
                if there is no answer.
            ScriptedModelError: if a function returned what is no answer.
        """
        answer = await self._answer(request)
        await self._wait(answer.delay)
        for position, chunk in enumerate(answer.stream(len(request.messages))):
            if position:
                await self._wait(answer.chunk_delay)
            yield chunk
        if answer.broken is None:
            return
        error = answer.broken.error()
        if error is not None:
            raise error
        await anyio.sleep_forever()

    async def _answer(self, request: Request) -> Answer:
        prompt = last_user_text(request)
        script = self._script(prompt)
        with self._lock:
            self._requests.append(request)
            answer = script.take(prompt)
        if not callable(answer):
            return answer
        # Without the lock: the function is the user's and may take its time.
        found = answer(request)
        return _answer(await found if inspect.isawaitable(found) else found)

    def _script(self, prompt: str) -> _Script:
        if prompt in self._by_prompt:
            return self._by_prompt[prompt]
        fitting = (script for part, script in self._by_text.items() if part in prompt)
        return next(fitting, self._others)

    async def _wait(self, seconds: float) -> None:
        # A provider always lets others run, and can always be cancelled.
        await (self._sleep(seconds) if seconds else anyio.lowlevel.checkpoint())


class _Script:
    """Answers that are used up in their order, or a function."""

    def __init__(self, answers: Answers, owner: str) -> None:
        self._owner = owner
        self._function = answers if callable(answers) else None
        self._answers = [] if callable(answers) else _listed(answers)
        self._used = 0

    def take(self, prompt: str) -> Answer | _Function:
        """Return the next answer of a list, or the function to be asked.

        Args:
            prompt: what an error names.

        Raises:
            ProviderError: if the list is used up.
        """
        if self._function is not None:
            return self._function
        if self._used == len(self._answers):
            raise ProviderError(self._exhausted(prompt), EXHAUSTED)
        self._used += 1
        return self._answers[self._used - 1]

    def _exhausted(self, prompt: str) -> str:
        count = len(self._answers)
        had = "no answers" if not count else f"{count} answer{'s' * (count > 1)}"
        return f"{self._owner} had {had} and was asked once more, with {prompt[:80]!r}"


def _scripts(answers: Mapping[str, Answers], kind: str) -> dict[str, _Script]:
    return {
        key: _Script(value, f"the scripted model's {kind} {key[:80]!r}")
        for key, value in answers.items()
    }


def _listed(answers: Answer | str | Sequence[AnswerLike]) -> list[Answer]:
    """Return answers as a list; an answer by itself is a list of one."""
    if isinstance(answers, Answer | str):
        return [_answer(answers)]
    return [_answer(each) for each in answers]


def _is_blocks(answer: object) -> TypeGuard[Sequence[JsonObject]]:
    return isinstance(answer, list | tuple) and all(type(b) is dict for b in answer)


def _answer(answer: object) -> Answer:
    if isinstance(answer, Answer):
        return answer
    if isinstance(answer, str):
        return Answer(answer)
    if _is_blocks(answer):
        return Answer(blocks=answer)
    raise ScriptedModelError(
        f"an answer is an Answer, a text or a list of content blocks, found {answer!r}"
    )

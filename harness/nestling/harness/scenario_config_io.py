"""``scenario.toml``: how a scenario was recorded, and so who runs it again.

::

    agent = "agent.py:root"          # an agent reference; paths start at this folder
    prompts = ["Remember LANTERN.", "Have two helpers repeat it."]
    provider = "model.py:model"      # who answers while it is recorded
    tools = "recorded"               # or "live": whether a replay runs tools again
    deaths = "refused"               # or "recorded": whether workers may die in a turn
    verify = "strict"                # or "warn", "off": other requests than recorded
    normalise = ["time", "cwd", "uuid"]  # what may be another from run to run

    [normalisers]                    # more of that: a name and a regular expression
    ticket = "T-[0-9]+"

    [options]                        # what the root's code finds in Turn.options
    style = "short"

Instead of ``prompts``, ``[[steps]]`` say where a turn is cancelled, too::

    [[steps]]
    prompt = "Have two helpers repeat it."
    cancel = { path = "/t1s1b0", call = 1, after = 3 }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from nestling.driver.director import Prompt
from nestling.harness.config_problem import plain_problem
from nestling.harness.normalise import BUILT_IN, Normalisers
from nestling.harness.replay_director import Cast
from nestling.harness.scenario_io import CONFIG_NAME
from nestling.harness.steps import Step, StepCancel, checked_steps
from nestling.session.errors import (
    AgentReferenceError,
    JsonDomainError,
    UnreadableError,
)
from nestling.session.jsontext import check
from nestling.wire.agent_reference import absolute, parse_reference


class ScenarioConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``scenario.toml`` says.

    Attributes:
        agent: the root's agent reference, absolute.
        prompts: what the root is told, turn by turn; of the steps, if it has those.
        steps: what it is told, and where turns are cancelled; of the prompts, likewise.
        provider: the reference of what answers model calls, absolute; "" for none.
        tools: whether a replay serves the recorded results of tools or runs them.
        deaths: whether a recording may hold turns in which a worker died.
        options: what the root's code finds in ``Turn.options``.
        verify: what it is if a replay's model is told something else than recorded: a
            problem, a warning, nothing; by default a problem.
        normalise: which built-in normalisers are in force.
        normalisers: others, name to regular expression.
        name: the id of the recorded root session; the folder's name by default.
    """

    agent: str
    prompts: list[str] = []
    steps: list[Step] = []
    provider: str = ""
    tools: Literal["recorded", "live"] = "recorded"
    deaths: Literal["refused", "recorded"] = "refused"
    options: dict[str, Any] = {}
    verify: Literal["off", "warn", "strict"] | None = None
    normalise: tuple[Literal["time", "cwd", "uuid"], ...] = BUILT_IN
    normalisers: dict[str, str] = {}
    name: Annotated[str, Meta(min_length=1, pattern=r"^[A-Za-z0-9_-]+\Z")] | None = None

    def cast(self, agent: str | None = None, folder: Path | None = None) -> Cast:
        """Return who runs the scenario again.

        Args:
            agent: another agent reference than its own.
            folder: the scenario's.
        """
        prompts: list[Prompt] = [[{"type": "text", "text": p}] for p in self.prompts]
        chosen = self.agent if agent is None else agent
        return Cast(
            chosen,
            tuple(prompts),
            self.options,
            self.tools == "live",
            self.verify,
            self.normalisers_at(folder),
        )

    def normalisers_at(self, folder: Path | None) -> Normalisers:
        """Return the normalisers in force.

        Args:
            folder: the scenario's.

        Raises:
            UnreadableError: if one that is declared is none.
        """
        places = {} if folder is None else _places(folder)
        return Normalisers(self.normalise, self.normalisers, places)


def _places(folder: Path) -> Mapping[str, str]:
    """Return the paths of this machine that a run may tell of, with their names."""
    here = {os.path.abspath(path): "cwd" for path in (os.getcwd(), _logical_cwd())}
    return {
        **here,
        str(folder.absolute()): "scenario",
        str(folder.resolve()): "scenario",
    }


def _logical_cwd() -> str:
    """Return how the shell spells the working directory, if it is that."""
    spelled = os.environ.get("PWD", "")
    try:
        return spelled if os.path.samefile(spelled, ".") else os.getcwd()
    except OSError:
        return os.getcwd()


_KNOWN: Final = {
    "": ScenarioConfig.__struct_fields__,
    "steps": Step.__struct_fields__,
    "steps.cancel": StepCancel.__struct_fields__,
}

_EXPECTED: Final = {
    "agent": "an agent reference, module:name or path/file.py:name",
    "prompts": "a list of texts",
    "provider": "the reference of what answers model calls, module:name or "
    "path/file.py:name",
    "tools": '"recorded" or "live"',
    "deaths": '"refused" or "recorded"',
    "verify": '"strict", "warn" or "off"',
    "normalise": 'a list of "time", "cwd", "uuid"',
    "normalisers": "a table of names and regular expressions, each a text",
    "name": "a text of letters, digits, - and _",
    "options": "a table",
    "steps": "tables, [[steps]], each with a prompt",
    "steps.prompt": "a text",
    "steps.cancel": "a table with path, call and either after or tool",
    "steps.cancel.path": "the spawn path of a session, a text",
    "steps.cancel.session": "the spawn path of a session, a text",
    "steps.cancel.call": "a whole number, at least 1",
    "steps.cancel.after": "a whole number of chunks, at least 0",
    "steps.cancel.tool": "the name of a tool",
}


def load_config(folder: Path) -> ScenarioConfig | None:
    """Read a scenario's configuration; None if it has none.

    Args:
        folder: the scenario's.

    Raises:
        UnreadableError: if it is not readable; naming what was found and expected.
        AgentReferenceError: if a reference in it is none.
    """
    path = folder / CONFIG_NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None
    try:
        config = _decoded(text)
        config.normalisers_at(folder)
    except (
        msgspec.MsgspecError,
        JsonDomainError,
        UnicodeDecodeError,
        UnreadableError,
    ) as error:
        raise UnreadableError(f"{path}: {error}") from None
    except RecursionError:
        raise UnreadableError(f"{path}: it is nested too deeply") from None
    return msgspec.structs.replace(
        config,
        agent=_absolute("agent", config.agent, folder),
        provider=_absolute("provider", config.provider, folder)
        if config.provider
        else "",
        name=config.name or folder.resolve().name,
    )


def _decoded(text: bytes) -> ScenarioConfig:
    document = msgspec.toml.decode(text)
    try:
        config = msgspec.convert(document, ScenarioConfig)
    except msgspec.ValidationError as error:
        problem = plain_problem(str(error), document, _EXPECTED, _KNOWN)
        raise UnreadableError(problem) from None
    steps = checked_steps(config.prompts, config.steps)
    prompts = [step.prompt for step in steps]
    check({"options": config.options, "prompts": prompts})
    return msgspec.structs.replace(config, prompts=prompts, steps=steps)


def require_config(folder: Path) -> ScenarioConfig:
    """Read the configuration that a scenario must have to be recorded.

    Raises:
        UnreadableError: if it has none, or as ``load_config``.
        AgentReferenceError: as ``load_config``.
    """
    config = load_config(folder)
    if config is None:
        raise UnreadableError(
            f"{folder}: found no {CONFIG_NAME}, expected one that names the agent, "
            "the prompts and the provider"
        )
    if not config.provider:
        raise UnreadableError(
            f"{folder / CONFIG_NAME}: found no provider, expected the reference of "
            "what answers model calls while it is recorded"
        )
    return config


def _absolute(key: str, reference: str, folder: Path) -> str:
    try:
        return str(absolute(parse_reference(reference), str(folder.absolute())))
    except AgentReferenceError as error:
        raise AgentReferenceError(f"{folder / CONFIG_NAME}: {key}: {error}") from None

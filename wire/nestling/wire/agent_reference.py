"""Agent references: how an agent is named so that another process can load it.

``module:name`` or ``path/file.py:name``; the name may be dotted (``Shop.agent``). An
object that only this process knows cannot be named: one of ``__main__``, of a notebook,
or one that a function made. Each gets a sentence that says what to do instead.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nestling.session.errors import AgentReferenceError

_EXPECTED: Final = "expected module:name or path/file.py:name"

_DOTTED: Final = re.compile(r"[^\s:.]+(\.[^\s:.]+)*")

_MAIN: Final = frozenset({"__main__", "__mp_main__"})

_NOTEBOOK: Final = re.compile(r"<ipython-input|(^|/)ipykernel(_\d+)?[./]|\.ipynb$")
"""What the modules and files of code in a notebook are called."""


TAPE: Final = "tape"
"""The reference of the tape agent, which is no module's."""


IMPORTING: Final[list[str]] = []
"""The agent modules that this process is importing right now, innermost last.

A module that starts a driver when it is imported would start workers that import it.
"""


class Reference(NamedTuple):
    """Where an agent is.

    Attributes:
        module: a dotted module, or the path of a file.
        is_file: whether `module` is a path.
        name: the attribute of the module, maybe dotted.
    """

    module: str
    is_file: bool
    name: str

    def __str__(self) -> str:
        """Return the reference as it is written."""
        return f"{self.module}:{self.name}"


def parse_reference(text: str) -> Reference:
    """Read an agent reference.

    Raises:
        AgentReferenceError: if it is not one, or names what no other process can load;
            the message says what to do.
    """
    module, colon, name = text.rpartition(":")
    if not colon:
        raise _refused(text, f"has no colon, {_EXPECTED}")
    if not module or not name:
        missing = "name" if module else "module"
        raise _refused(text, f"has no {missing}, {_EXPECTED}")
    problem = _module_problem(module) or _name_problem(name)
    if problem is not None:
        raise _refused(text, problem)
    return Reference(module, module.endswith(".py"), name)


SIDE_CALL: Final = "nestling.worker.side_call:side_call"
"""The agent of the child that a side call is."""


def module_of(agent: str) -> str:
    """Return the module that a worker imports for an agent; "" for those it has.

    Raises:
        AgentReferenceError: if `agent` is no reference.
    """
    return "" if agent in (TAPE, SIDE_CALL) else parse_reference(agent).module


def absolute(reference: Reference, base_dir: str) -> Reference:
    """Make the path of a file reference absolute; module references stay.

    Args:
        reference: a reference.
        base_dir: the absolute directory that relative paths start from.
    """
    if not reference.is_file:
        return reference
    is_absolute = reference.module.startswith("/")
    path = reference.module if is_absolute else f"{base_dir}/{reference.module}"
    # ".." stays: where it leads is the file system's to say, if there are links.
    parts = (part for part in path.split("/") if part not in ("", "."))
    return reference._replace(module="/" + "/".join(parts))


def _refused(text: str, problem: str) -> AgentReferenceError:
    return AgentReferenceError(f"agent reference {text!r} {problem}")


def _module_problem(module: str) -> str | None:
    if _NOTEBOOK.search(module):
        return (
            "is in a notebook, which no other process can import: "
            "write the agent to a file and name it as path/file.py:name"
        )
    if module in _MAIN:
        return (
            f"is in {module}, which no other process can import: "
            "move the agent to a module of its own and import it from there"
        )
    if module.endswith(".py"):
        return "has a NUL character in its path" if "\0" in module else None
    if "/" in module:
        return f"has a path that does not end in .py, {_EXPECTED}"
    if _DOTTED.fullmatch(module) is None:
        return f"has the module {module!r}, which is no dotted name, {_EXPECTED}"
    return None


def _name_problem(name: str) -> str | None:
    if "<locals>" in name or "<lambda>" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "made inside a function"
        return (
            f"is {kind}, which no other process can find: "
            "define the agent at the top level of its module, under a name"
        )
    if not all(part.isidentifier() for part in name.split(".")):
        return f"has the name {name!r}, which is no attribute, {_EXPECTED}"
    return None

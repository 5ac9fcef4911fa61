"""Loading agents by reference, and naming an agent that is already loaded.

Importing a module runs it, so anything may happen; every outcome that is not an agent
is one ``AgentReferenceError``.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from nestling.session.errors import AgentReferenceError
from nestling.session.tracebacks_io import print_traceback
from nestling.wire.agent_reference import IMPORTING, Reference, parse_reference

_FILE_PREFIX: Final = "_nestling_agent_"
"""How the modules of files start; no import statement reaches them."""

# --- load ----------------------------------------------------------------------


def load_agent(reference: str) -> object:
    """Load the agent that a reference names.

    Raises:
        AgentReferenceError: if the reference is none, its module cannot be imported,
            or what it names is missing or no agent.
    """
    agent = load_object(parse_reference(reference))
    problem = _agent_problem(agent)
    if problem is not None:
        raise AgentReferenceError(
            f"{reference} is {problem}, expected an agent or "
            "an async function that takes one argument, the turn"
        )
    return agent


def load_object(reference: Reference) -> object:
    """Load whatever a reference names.

    Raises:
        AgentReferenceError: if its module cannot be imported, or has nothing of that
            name.
    """
    return _attribute(load_module(reference.module), reference)


def load_module(module: str) -> ModuleType:
    """Import a module, or a file, once.

    A file becomes a module of a private name that depends on its real path only. Its
    folder is put first on ``sys.path``, so that it can import its neighbours.

    Args:
        module: a dotted module, or the path of a file, which ends in ``.py``.

    Raises:
        AgentReferenceError: if it is not there, is not Python, or raises or exits when
            it is imported; then the traceback is on stderr.
    """
    is_file = module.endswith(".py")
    if is_file and not os.path.isfile(module):
        found = "is not a file" if os.path.exists(module) else "does not exist"
        raise AgentReferenceError(f"agent file {os.path.abspath(module)} {found}")
    name = _file_module_name(module) if is_file else module
    if name in sys.modules:
        return sys.modules[name]
    importlib.invalidate_caches()  # the module may have been written a moment ago
    IMPORTING.append(module)
    try:
        if is_file:
            return _guarded(module, lambda: _run_file(name, os.path.realpath(module)))
        return _guarded(module, lambda: importlib.import_module(name))
    finally:
        IMPORTING.remove(module)


def _file_module_name(path: str) -> str:
    real = os.path.realpath(path)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return f"{_FILE_PREFIX}{digest}"


def _run_file(name: str, path: str) -> ModuleType:
    """Run a file as the module `name`; a failure leaves nothing behind."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no loader for {path}")
    module = importlib.util.module_from_spec(spec)
    searched = list(sys.path)
    folder = os.path.dirname(path)
    if searched[:1] != [folder]:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        sys.path[:] = searched
        raise
    return module


def _guarded(module: str, run: Callable[[], ModuleType]) -> ModuleType:
    """Run an import; turn every way in which it can fail into one error."""
    pid = os.getpid()
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import may raise and exit as it likes
        if _is_missing(module, error):
            searched = ", ".join(sys.path)
            problem = f"agent module {module}: {error}; searched {searched}"
            raise AgentReferenceError(problem) from None
        print_traceback(error)
        raise AgentReferenceError(_failure(module, error)) from error
    finally:
        if os.getpid() != pid:
            os._exit(0)  # the module forked; only the one who imports it goes on


def _is_missing(module: str, error: BaseException) -> bool:
    """Tell whether the module is not there, not one that it imports."""
    return (
        isinstance(error, ModuleNotFoundError)
        and error.name is not None
        and f"{module}.".startswith(f"{error.name}.")
    )


def _failure(module: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
        return f"agent module {module} is not Python: {error.msg} ({place})"
    if isinstance(error, SystemExit):
        return f"agent module {module} exits when it is imported, with {error.code!r}"
    kind = type(error).__name__
    told = f"agent module {module} raises when it is imported: {kind}: {error}"
    if isinstance(error, RuntimeError) and "event loop" in str(error):
        # It runs a program, inside of a worker, which has a loop of its own.
        told += '; what runs a program goes under `if __name__ == "__main__":`'
    return told


def _attribute(module: ModuleType, reference: Reference) -> object:
    found: Any = module
    parts = reference.name.split(".")
    for position, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            inside = ".".join(parts[:position])
            owner = f"{reference.module}:{inside}" if inside else reference.module
            raise AgentReferenceError(
                f"{owner} has no attribute {part!r}{_suggestion(part, found)}"
            ) from None
    return found


def _suggestion(missing: str, owner: object) -> str:
    names = [name for name in dir(owner) if not name.startswith("_")]
    near = difflib.get_close_matches(missing, names)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _agent_problem(agent: object) -> str | None:
    """Say what an object is, if it is no agent."""
    if inspect.isclass(agent):
        return f"the class {agent.__name__}"
    if hasattr(agent, "run_turn"):
        return None
    if inspect.isasyncgenfunction(agent):
        return "an async generator function"
    if not inspect.iscoroutinefunction(agent):
        return "a plain function" if inspect.isfunction(agent) else f"{agent!r}"
    parameters = list(inspect.signature(agent).parameters.values())
    named_only = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    if len(parameters) == 1 and parameters[0].kind not in named_only:
        return None
    return f"an async function with the parameters {inspect.signature(agent)}"


# --- name ----------------------------------------------------------------------


def reference_of(agent: object) -> str:
    """Return a reference that loads this very object in another process.

    Args:
        agent: a function, found by its module and qualified name; or another object,
            found as an attribute of its ``__module__``, else of the one module that
            holds it.

    Raises:
        AgentReferenceError: if there is no such reference, or more than one module to
            choose from; the message says what to do.
    """
    if isinstance(agent, functools.partial):
        raise AgentReferenceError(
            f"{agent!r} is a partial, which no other process can find: "
            "define an async function at the top level of a module"
        )
    qualname = getattr(agent, "__qualname__", None)
    if isinstance(qualname, str):
        reference = _function_reference(agent, qualname)
    else:
        reference = _instance_reference(agent)
    return str(reference)


def _function_reference(function: object, qualname: str) -> Reference:
    code = getattr(function, "__code__", None)
    filename = getattr(code, "co_filename", "")
    module = getattr(function, "__module__", None) or "__main__"
    is_notebook = "ipykernel" in filename or filename.startswith("<ipython-input")
    place = filename if is_notebook else _importable(module)
    reference = parse_reference(f"{place}:{qualname}")
    found = functools.reduce(
        lambda owner, part: getattr(owner, part, None),
        qualname.split("."),
        sys.modules.get(module),
    )
    if found is not function:
        raise AgentReferenceError(
            f"{reference} is not {function!r} but {found!r}: "
            "define the agent at the top level of its module, under its own name"
        )
    return reference


def _instance_reference(agent: object) -> Reference:
    home = sys.modules.get(getattr(agent, "__module__", ""))
    holders = list(_holders(agent, [home])) or list(
        _holders(agent, list(sys.modules.values()))
    )
    importable = [each for each in holders if each[0] != "__main__"]
    if not holders:
        raise AgentReferenceError(
            f"{agent!r} is no attribute of any module: "
            "assign the agent to a name at the top level of a module"
        )
    if len({module for module, _ in importable}) > 1:
        named = ", ".join(f"{module}:{name}" for module, name in importable)
        raise AgentReferenceError(
            f"{agent!r} has several references, pass the one to load: {named}"
        )
    module, name = (importable or holders)[0]
    return parse_reference(f"{_importable(module)}:{name}")


def _holders(
    agent: object, modules: list[ModuleType | None]
) -> Iterator[tuple[str, str]]:
    """Yield the module and name of each module attribute that is `agent`."""
    for module in filter(None, modules):
        # Looked up without getattr, which makes lazy modules import things.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            # An interactive session keeps its last value as builtins._
            if value is agent and module is not builtins:
                yield module.__name__, name


def _importable(module: str) -> str:
    """Return what another process imports: for a file's module, its path."""
    if not module.startswith(_FILE_PREFIX):
        return module
    return str(sys.modules[module].__file__)

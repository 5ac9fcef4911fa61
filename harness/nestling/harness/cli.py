"""The command line, ``nestling``.

Each command does its work through ``_run``, which maps every outcome to an exit code
and to text that any terminal and any pipe can take: with ``--json`` one JSON object
and nothing else on stdout, errors as one line on stderr.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TextIO

import typer

from nestling.driver.launcher_name import LauncherName
from nestling.harness.interrupts_io import (
    EXIT_INTERRUPTED,
    is_interrupted,
    unless_interrupted,
)
from nestling.harness.record_report import RecordReport, record_json, record_text
from nestling.harness.replay_report import ReplayReport, report_json, report_text
from nestling.harness.scenario_io import load_scenario
from nestling.harness.script_report import script_json, script_text, shown
from nestling.session.errors import NestlingError
from nestling.session.jsontext import JsonObject, dumps

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_UNREADABLE: Final = 2

# Typer brings its own copy of the library whose error this is, or not, by version.
_UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ScenarioArgument = Annotated[
    Path, typer.Argument(help="A folder of recorded logs, or one log.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else.")
]


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter("Expected a finite number of seconds")
    return seconds


StallOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        callback=_finite,
        help="Seconds without progress after which it ends.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        min=0.1, callback=_finite, help="Seconds after which it ends in any case."
    ),
]
LauncherOption = Annotated[
    LauncherName,
    typer.Option(
        help="How workers start: forked from a warm template, or as fresh "
        "interpreters; auto is the first where that is possible.",
    ),
]


class Result(NamedTuple):
    """What a command came to.

    Attributes:
        output: the object to print as JSON, or text.
        exit_code: what the process ends with.
    """

    output: JsonObject | str
    exit_code: int = EXIT_OK


@app.callback()
def _nestling() -> None:
    """Runs nested LLM agents as processes and replays recorded agent trees."""


@app.command()
def script(scenario: ScenarioArgument, as_json: JsonOption = False) -> None:
    """Print the scripts derived from a scenario; no process is started."""

    def work() -> Result:
        loaded = load_scenario(scenario)
        return Result(script_json(loaded) if as_json else script_text(loaded))

    _run(work, {"sessions": []} if as_json else None)


@app.command()
def replay(
    scenario: ScenarioArgument,
    as_json: JsonOption = False,
    stall: StallOption = 10.0,
    timeout: TimeoutOption = 300.0,
    launcher: LauncherOption = LauncherName.AUTO,
    agent: Annotated[
        str | None,
        typer.Option(
            help="The agent to run: a reference, or `tape`, which needs no code. By "
            "default the one in scenario.toml, else tape.",
        ),
    ] = None,
) -> None:
    """Replay a recorded tree, one process a session."""

    def work() -> Result:
        bounds = (stall, timeout)
        report = replay_scenario(
            scenario, bounds, draws=not as_json, launcher=launcher, agent=agent
        )
        output = report_json(report) if as_json else report_text(report)
        return Result(output, EXIT_OK if report.is_ok else EXIT_FAILED)

    _run(work, {"sessions": []} if as_json else None)


@app.command()
def record(
    scenario: Annotated[Path, typer.Argument(help="A folder with a scenario.toml.")],
    as_json: JsonOption = False,
    stall: StallOption = 60.0,
    timeout: TimeoutOption = 300.0,
    launcher: LauncherOption = LauncherName.AUTO,
) -> None:
    """Run a scenario's agent with its provider, and record the tree."""

    def work() -> Result:
        report = record_scenario(scenario, (stall, timeout), launcher)
        output = record_json(report) if as_json else record_text(report)
        return Result(output, EXIT_OK if report.is_ok else EXIT_FAILED)

    _run(work, {"sessions": []} if as_json else None)


def record_scenario(
    path: Path, bounds: tuple[float, float], launcher: LauncherName
) -> RecordReport:
    """Record a scenario.

    Args:
        path: the scenario's folder.
        bounds: seconds without progress, and in all, after which it ends.
        launcher: how workers start.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
    """
    import anyio

    from nestling.driver.hub_io import Bounds
    from nestling.driver.template_launcher_io import launcher_of
    from nestling.harness.record_io import record

    work = partial(record, path, Bounds(*bounds), launcher_of(launcher))
    # What a provider prints is not what this program has to say.
    with redirect_stdout(sys.stderr):
        report = anyio.run(unless_interrupted, work)
    if report is None:
        raise KeyboardInterrupt
    return report


def replay_scenario(
    path: Path,
    bounds: tuple[float, float],
    *,
    draws: bool,
    launcher: LauncherName,
    agent: str | None,
) -> ReplayReport:
    """Load and replay a scenario, drawing the tree as it grows if asked to.

    Args:
        path: the scenario's.
        bounds: seconds without progress, and in all, after which it ends.
        draws: whether to draw it.
        launcher: how workers start.
        agent: which agent to run; None for the scenario's own.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
    """
    # What only a replay needs stays out of the way of the other commands.
    import anyio

    from nestling.driver.hub_io import Bounds
    from nestling.driver.template_launcher_io import launcher_of
    from nestling.harness.casting_io import cast_of
    from nestling.harness.growing_tree_io import GrowingTree
    from nestling.harness.replay_io import replay

    loaded = load_scenario(path)
    cast = cast_of(path, agent)
    with GrowingTree(is_wanted=draws) as tree:
        starts = launcher_of(launcher)
        work = partial(replay, loaded, Bounds(*bounds), starts, tree.watch, cast)
        report = anyio.run(unless_interrupted, work)
    if report is None:
        raise KeyboardInterrupt
    return report


def main() -> None:
    """Run the command line; signals are the business of ``__main__``.

    A call that is not one exits with 2, too, and with ``--json`` prints an object.
    """
    try:
        exit_code = app(prog_name="nestling", standalone_mode=False)
    except _UsageError as error:
        exit_code = error.exit_code
        _show_usage(error)
    except OSError as error:  # help is printed by the library itself
        exit_code = _unprinted(sys.stdout, error)
    except SystemExit:
        if is_interrupted():
            raise
        exit_code = EXIT_OK  # how the library takes it that nobody reads its help
    sys.exit(exit_code)


def _show_usage(error: Any) -> None:
    if sys.stderr is not None:  # without it, the library would take stdout
        try:
            error.show()
        except OSError as problem:
            _unprinted(sys.stderr, problem)
    if "--json" in sys.argv:
        usage = error.format_message().strip()
        _print_output(_error_object(usage, {"sessions": []}), error.exit_code)


def _run(work: Callable[[], Result], on_error: JsonObject | None) -> NoReturn:
    """Do a command's work, print what it came to, and end with its exit code.

    Args:
        work: raises a ``NestlingError`` for bad input, and an ``OSError`` where the
            system has no room for it.
        on_error: the other keys of the JSON object that is printed when it does;
            None for commands that were asked for text.
    """
    problem = ""
    try:
        output, exit_code = work()
    except (NestlingError, OSError) as error:
        problem, exit_code = str(error), EXIT_UNREADABLE
        output = "" if on_error is None else _error_object(problem, on_error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if is_interrupted():
        raise typer.Exit(EXIT_INTERRUPTED)
    if problem:
        _print_error(problem)
    raise typer.Exit(_print_output(output, exit_code))


def _print_output(output: JsonObject | str, exit_code: int) -> int:
    """Print what a command came to; return the exit code, another one if it cannot."""
    try:
        _print(sys.stdout, output)
    except OSError as error:
        return _unprinted(sys.stdout, error)
    return exit_code


def _unprinted(stream: TextIO, error: OSError) -> int:
    """Say that a stream did not take what was printed; return the exit code for that."""
    _abandon(stream)
    if isinstance(error, BrokenPipeError):  # its reader has seen enough
        return EXIT_OK
    _print_error(f"cannot write the output: {error.strerror or error}")
    return EXIT_UNREADABLE


def _error_object(message: str, others: JsonObject) -> JsonObject:
    problem = {"kind": "unreadable", "path": None, "message": message}
    return {"verdict": "error", "error": message, "problems": [problem], **others}


def _print_error(message: str) -> None:
    with suppress(OSError):  # stderr is gone: the exit code still tells
        _print(sys.stderr, f"nestling: {shown(message)}")


def _print(stream: TextIO | None, output: JsonObject | str) -> None:
    """Print a line as UTF-8, whatever the locale; lone surrogates as escapes.

    Nothing is printed for nothing, or where the stream was closed from the start.

    Raises:
        OSError: if the stream does not take it, and not because its reader has seen
            enough.
    """
    if stream is None or not output:
        return
    if isinstance(output, str):
        line = output.encode("utf-8", "backslashreplace")
    else:
        line = dumps(output)
    try:
        stream.buffer.write(line + b"\n")
        stream.buffer.flush()
    except OSError as error:
        _abandon(stream)
        if not isinstance(error, BrokenPipeError):
            raise


def _abandon(stream: TextIO) -> None:
    """See to it that what is left in a stream's buffer does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

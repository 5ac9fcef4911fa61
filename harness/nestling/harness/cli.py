"""The command line, ``nestling``.

What a command is called and takes stands here; what it does is loaded when it is asked
for (``tree_commands_io``, ``store_commands_io``). It works through ``run_command``, which
maps every outcome to an exit code and to something that can be printed anywhere
(``nestling.harness.command_io``).
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nestling.driver.launcher_name import LauncherName
from nestling.harness.command_io import (
    EXIT_OK,
    Result,
    error_object,
    print_output,
    run_command,
    unprinted,
)
from nestling.harness.interrupts_io import is_interrupted
from nestling.session.version import VERSION

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
        raise typer.BadParameter("Expected a finite number")
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
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="jsonl:DIR or sqlite:FILE.")
]
LauncherOption = Annotated[
    LauncherName,
    typer.Option(
        help="How workers start: forked from a warm template, or as fresh "
        "interpreters; auto is the first where that is possible.",
    ),
]


class VerifyLevel(Enum):
    """What it is if a model is told something else than recorded."""

    OFF = "off"
    WARN = "warn"
    STRICT = "strict"

    @property
    def level(self) -> Literal["off", "warn", "strict"]:
        """What the harness calls it."""
        return "off" if self is self.OFF else "warn" if self is self.WARN else "strict"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        run_command(lambda: Result(f"nestling {VERSION}"), None)


@app.callback()
def _nestling(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Runs nested LLM agents as processes and replays recorded agent trees."""


@app.command()
def script(scenario: ScenarioArgument, as_json: JsonOption = False) -> None:
    """Print the scripts derived from a scenario; no process is started."""

    from nestling.harness import tree_commands_io as commands

    work = partial(commands.script, scenario, as_json=as_json)
    run_command(work, {"sessions": []} if as_json else None)


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
    speed: Annotated[
        float,
        typer.Option(
            min=0.0,
            callback=_finite,
            help="0 serves answers at once, 1 as they were recorded, N is N times as "
            "fast.",
        ),
    ] = 0.0,
    verify: Annotated[
        VerifyLevel | None,
        typer.Option(
            help="What it is if an agent's model is told something else than recorded: "
            "nothing, a warning, a problem. By default as scenario.toml says, else "
            "strict. A tape is always exact.",
        ),
    ] = None,
) -> None:
    """Replay a recorded tree, one process a session."""

    from nestling.harness import tree_commands_io as commands

    how = commands.How((stall, timeout), launcher, as_json=as_json)
    level = None if verify is None else verify.level
    work = partial(commands.replay, scenario, how, agent, speed, level)
    run_command(work, {"sessions": []} if as_json else None)


@app.command()
def record(
    scenario: Annotated[Path, typer.Argument(help="A folder with a scenario.toml.")],
    as_json: JsonOption = False,
    stall: StallOption = 60.0,
    timeout: TimeoutOption = 300.0,
    launcher: LauncherOption = LauncherName.AUTO,
) -> None:
    """Run a scenario's agent with its provider, and record the tree."""

    from nestling.harness import tree_commands_io as commands

    how = commands.How((stall, timeout), launcher, as_json=as_json)
    work = partial(commands.record, scenario, how)
    run_command(work, {"sessions": []} if as_json else None)


@app.command()
def run(
    agent: Annotated[
        str, typer.Argument(help="An agent reference: module:name or path.py:name.")
    ],
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="What it is told, turn by turn."),
    ],
    provider: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]REFERENCE",
            help="Who answers its model calls; NAME is what stands before the slash in "
            "the agent's model. May be repeated.",
        ),
    ],
    store: Annotated[
        str, typer.Option(help="Keeps the sessions: jsonl:DIR or sqlite:FILE.")
    ] = "memory:",
    as_json: JsonOption = False,
    stall: StallOption = 600.0,
    timeout: TimeoutOption = 3600.0,
    launcher: LauncherOption = LauncherName.AUTO,
) -> None:
    """Run a live tree of agents, one process a session."""

    from nestling.harness import tree_commands_io as commands

    how = commands.How((stall, timeout), launcher, as_json=as_json)
    work = partial(commands.run, (agent, prompts, provider, store), how)
    run_command(work, {"sessions": []} if as_json else None)


@app.command()
def refresh(
    scenario: Annotated[Path, typer.Argument(help="A folder with a scenario.toml.")],
    as_json: JsonOption = False,
    stall: StallOption = 10.0,
    timeout: TimeoutOption = 300.0,
    launcher: LauncherOption = LauncherName.AUTO,
) -> None:
    """Replay a scenario's agent, and write anew what it tells the model; no key needed."""

    from nestling.harness import tree_commands_io as commands

    how = commands.How((stall, timeout), launcher, as_json=as_json)
    work = partial(commands.refresh, scenario, how)
    run_command(work, {"sessions": [], "changed": []} if as_json else None)


@app.command()
def show(
    where: Annotated[
        str,
        typer.Argument(
            metavar="STORE-OR-SCENARIO",
            help="jsonl:DIR, sqlite:FILE, a folder of recorded logs, or one log.",
        ),
    ],
    session: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Show this session, event by event."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show trees of sessions, with what each one inherited."""
    from nestling.harness import store_commands_io as commands

    work = partial(commands.show, where, session, as_json=as_json)
    run_command(work, {"sessions": []} if as_json else None)


@app.command()
def sessions(store: StoreArgument, as_json: JsonOption = False) -> None:
    """List the sessions of a store."""
    from nestling.harness import store_commands_io as commands

    work = partial(commands.sessions, store, as_json=as_json)
    run_command(work, {"sessions": []} if as_json else None)


@app.command()
def export(
    store: StoreArgument,
    session: Annotated[str, typer.Argument(metavar="ID", help="The session.")],
    output: Annotated[
        Path | None, typer.Option(help="The file to write, instead of stdout.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
) -> None:
    """Print a session as it is stored, as JSON Lines; nothing is repaired."""
    from nestling.harness import store_commands_io as commands

    work = partial(commands.export, store, session, output, may_replace=force)
    run_command(work, None)


@app.command()
def verify(
    store: StoreArgument,
    session: Annotated[
        str | None, typer.Argument(metavar="ID", help="Verify this session only.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every rule of a store's sessions; nothing is written."""
    from nestling.harness import store_commands_io as commands

    work = partial(commands.verify, store, session, as_json=as_json)
    run_command(work, {"findings": [], "remarks": []} if as_json else None)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Look at what this system has, and tell whether workers can run here."""
    from nestling.harness.doctor_io import doctor as look

    run_command(partial(look, as_json=as_json), {"checks": []} if as_json else None)


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
        exit_code = unprinted(sys.stdout, error)
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
            unprinted(sys.stderr, problem)
    if "--json" in sys.argv:
        usage = error.format_message().strip()
        print_output(error_object(usage, {"sessions": []}), error.exit_code)

"""Running one command: what it prints, what it ends with, and streams that fail.

Whatever a command comes to is mapped to an exit code and to text that any terminal and
any pipe can take: with ``--json`` one JSON object and nothing else on stdout, errors as
one line on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn, TextIO

import typer

from nestling.harness.interrupts_io import EXIT_INTERRUPTED, is_interrupted
from nestling.harness.printable import shown
from nestling.session.errors import NestlingError
from nestling.session.jsontext import JsonObject, dumps

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_UNREADABLE: Final = 2


class Result(NamedTuple):
    """What a command came to.

    Attributes:
        output: the object to print as JSON, or text; bytes are printed as they are.
        exit_code: what the process ends with.
    """

    output: JsonObject | str | bytes
    exit_code: int = EXIT_OK


def run_command(work: Callable[[], Result], on_error: JsonObject | None) -> NoReturn:
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
        output = b"" if on_error is None else error_object(problem, on_error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if is_interrupted():
        raise typer.Exit(EXIT_INTERRUPTED)
    if problem:
        _print_error(problem)
    raise typer.Exit(print_output(output, exit_code))


def print_output(output: JsonObject | str | bytes, exit_code: int) -> int:
    """Print what a command came to; return the exit code, another one if it cannot."""
    try:
        _print(sys.stdout, output)
    except OSError as error:
        return unprinted(sys.stdout, error)
    return exit_code


def unprinted(stream: TextIO, error: OSError) -> int:
    """Say that a stream did not take what was printed; return the exit code for that.

    Args:
        stream: the one that failed.
        error: how.
    """
    _abandon(stream)
    if isinstance(error, BrokenPipeError):  # its reader has seen enough
        return EXIT_OK
    _print_error(f"cannot write the output: {error.strerror or error}")
    return EXIT_UNREADABLE


def error_object(message: str, others: JsonObject) -> JsonObject:
    """Return what a command prints as JSON for input that it cannot read.

    Args:
        message: what is wrong.
        others: the other keys.
    """
    problem = {"kind": "unreadable", "path": None, "message": message}
    return {"verdict": "error", "error": message, "problems": [problem], **others}


def _print_error(message: str) -> None:
    with suppress(OSError):  # stderr is gone: the exit code still tells
        _print(sys.stderr, f"nestling: {shown(message)}")


def _print(stream: TextIO | None, output: JsonObject | str | bytes) -> None:
    """Print a line, a text as UTF-8, whatever the locale; lone surrogates as escapes.

    Nothing is printed for nothing, or where the stream was closed from the start.

    Raises:
        OSError: if the stream does not take it, and not because its reader has seen
            enough.
    """
    if stream is None or not output:
        return
    if isinstance(output, bytes):
        text = output
    elif isinstance(output, str):
        text = output.encode("utf-8", "backslashreplace") + b"\n"
    else:
        text = dumps(output) + b"\n"
    try:
        stream.buffer.write(text)
        stream.buffer.flush()
    except OSError as error:
        _abandon(stream)
        if not isinstance(error, BrokenPipeError):
            raise


def _abandon(stream: TextIO) -> None:
    """See to it that what is left in a stream's buffer does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

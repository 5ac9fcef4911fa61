"""What the pytest plugin is asked for: its options, and the marker of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from nestling.driver.launcher_name import LauncherName

RecordMode: TypeAlias = Literal["none", "once", "all"]
RECORD_MODES: Final[tuple[RecordMode, ...]] = get_args(RecordMode)

_MODES_OF_OTHERS: Final[Mapping[str, RecordMode]] = {
    "none": "none",
    "once": "once",
    "new_episodes": "once",
    "all": "all",
    "rewrite": "all",
}
"""Another plugin's ``--record-mode``, which then is ours, too."""

_NOT_CI: Final = ("", "0", "false")


def record_mode(own: str | None, shared: object) -> RecordMode:
    """Return the mode that was asked for.

    Args:
        own: the value of an option that only this plugin has, if it was given.
        shared: the value of ``--record-mode`` if another plugin has it, else None.
    """
    return _MODES_OF_OTHERS.get(str(own or shared), "none")


def is_ci(value: str | None) -> bool:
    """Tell by the environment variable ``CI`` whether this is a build server."""
    return value is not None and value.lower() not in _NOT_CI


class Mark(NamedTuple):
    """What ``@pytest.mark.scenario`` says.

    Attributes:
        path: the scenario, from the folder of the test's file.
        agent: the agent to run instead of the scenario's own, or ``tape``; a path
            starts at the folder of the test's file.
        launcher: how workers start.
        timeout: seconds after which a replay is over in any case.
        stall: seconds without progress after which it is over.
        verify: what it is if a model is told something else than recorded: a problem
            (``strict``), a warning (``warn``), nothing (``off``); by default as the
            scenario says.
        speed: 0 to serve answers at once, 1 as they were recorded, N to be N times as
            fast.
        network: whether the test and its workers may use the network.
    """

    path: str
    agent: str | None = None
    launcher: LauncherName = LauncherName.AUTO
    timeout: float = 300.0
    stall: float = 10.0
    verify: Literal["off", "warn", "strict"] | None = None
    speed: float = 0.0
    network: bool = False


def parse_mark(arguments: Sequence[object], options: Mapping[str, Any]) -> Mark:
    """Read the arguments of the marker.

    Raises:
        ValueError: saying what was found and what was expected.
    """
    if (
        len(arguments) != 1
        or not isinstance(arguments[0], str)
        or not arguments[0]
        or "\0" in arguments[0]
    ):
        found = ", ".join(map(repr, arguments)) or "nothing"
        raise _refused(f"found {found}, expected the path of one scenario")
    for name, value in options.items():
        if name not in KEYWORDS:
            raise _refused(f"found {name}=, expected {', '.join(KEYWORDS)}")
        expected = KEYWORDS[name]
        if not expected.fits(value):
            raise _refused(f"found {name}={value!r}, expected {expected.what}")
    read = dict(options)
    if "launcher" in read:
        read["launcher"] = LauncherName(read["launcher"])
    return Mark(arguments[0], **read)


class _Expected(NamedTuple):
    """What a value of the marker has to be."""

    what: str
    types: tuple[type, ...] = ()
    choices: tuple[str, ...] = ()
    least: float | None = None

    def fits(self, value: object) -> bool:
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.least is not None and not _is_at_least(value, self.least):
            return False
        return type(value) in self.types


def _is_at_least(value: object, least: float) -> bool:
    return type(value) in (int, float) and least <= value < float("inf")  # type: ignore[operator]  # it is a number


_SECONDS: Final = _Expected("seconds, at least 0.1", (int, float), least=0.1)

KEYWORDS: Final[Mapping[str, _Expected]] = {
    "agent": _Expected("an agent reference or 'tape'", (str,)),
    "launcher": _Expected(
        f"one of {', '.join(LauncherName)}", choices=tuple(LauncherName)
    ),
    "timeout": _SECONDS,
    "stall": _SECONDS,
    "verify": _Expected("one of off, warn, strict", choices=("off", "warn", "strict")),
    "speed": _Expected("a number, at least 0", (int, float), least=0.0),
    "network": _Expected("True or False", (bool,)),
}
"""What the marker takes beside the path, and what each has to be."""


def _refused(what: str) -> ValueError:
    return ValueError(f"@pytest.mark.scenario: {what}")

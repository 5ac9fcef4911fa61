"""The names of launchers, for whoever lets a user choose one."""

from __future__ import annotations

import enum


class LauncherName(enum.StrEnum):
    """How workers are to be started."""

    AUTO = "auto"
    TEMPLATE = "template"
    EXEC = "exec"

"""What agents are run with: the parent's half of Nestling.

Each name is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nestling.driver.director import Limits as Limits
    from nestling.driver.driver_io import Driver as Driver
    from nestling.driver.exits import Log as Log
    from nestling.driver.hub_io import Bounds as Bounds
    from nestling.driver.launcher_io import ExecLauncher as ExecLauncher
    from nestling.driver.launcher_name import LauncherName as LauncherName
    from nestling.driver.live_director import Grown as Grown
    from nestling.driver.started_run_io import RunResult as RunResult
    from nestling.driver.started_run_io import StartedRun as StartedRun
    from nestling.driver.sync_driver_io import SyncDriver as SyncDriver
    from nestling.driver.sync_driver_io import SyncRun as SyncRun
    from nestling.driver.template_launcher_io import (
        TemplateLauncher as TemplateLauncher,
    )
    from nestling.session.errors import ProviderError as ProviderError
    from nestling.session.request import Provider as Provider
    from nestling.session.request import Request as Request
    from nestling.session.store_io import SessionStore as SessionStore
    from nestling.session.store_io import open_store as open_store

_HOMES = {
    "Bounds": "driver.hub_io",
    "Driver": "driver.driver_io",
    "ExecLauncher": "driver.launcher_io",
    "Grown": "driver.live_director",
    "LauncherName": "driver.launcher_name",
    "Limits": "driver.director",
    "Log": "driver.exits",
    "Provider": "session.request",
    "ProviderError": "session.errors",
    "Request": "session.request",
    "RunResult": "driver.started_run_io",
    "SessionStore": "session.store_io",
    "StartedRun": "driver.started_run_io",
    "SyncDriver": "driver.sync_driver_io",
    "SyncRun": "driver.sync_driver_io",
    "TemplateLauncher": "driver.template_launcher_io",
    "open_store": "session.store_io",
}

__all__ = [
    "Bounds",
    "Driver",
    "ExecLauncher",
    "Grown",
    "LauncherName",
    "Limits",
    "Log",
    "Provider",
    "ProviderError",
    "Request",
    "RunResult",
    "SessionStore",
    "StartedRun",
    "SyncDriver",
    "SyncRun",
    "TemplateLauncher",
    "open_store",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nestling.{_HOMES[name]}"), name)

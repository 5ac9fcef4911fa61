"""Running an agent from the command line: a live tree, shown as it grows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout

from nestling.driver.driver_io import Driver
from nestling.driver.hub_io import Bounds
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.harness.live_run_report import LiveRunReport, noticed
from nestling.harness.record_io import load_provider
from nestling.session.errors import AgentReferenceError
from nestling.session.request import Provider


class AgentRun:
    """An agent that is to be run, with those who answer it."""

    def __init__(
        self,
        agent: str,
        prompts: Sequence[str],
        providers: Sequence[str],
        store: str = "memory:",
    ) -> None:
        """Load the providers.

        Args:
            agent: the root's agent reference.
            prompts: what the root is told, turn by turn.
            providers: references of what answers model calls, each ``NAME=REFERENCE``,
                or a reference alone for every name that has none.
            store: the address of the store that keeps the sessions.

        Raises:
            AgentReferenceError: if a provider cannot be loaded, or is named twice.
        """
        self._agent = agent
        self._prompts = list(prompts)
        self._store = store
        _search_here()
        # What a provider's module prints is not what this program has to say.
        with redirect_stdout(sys.stderr):
            self._providers = _loaded(providers)

    async def carry_out(
        self, bounds: Bounds, launcher: Launcher, watch: Callable[[Notice], None]
    ) -> LiveRunReport:
        """Run the agent to the end of its last turn.

        Args:
            bounds: when a run that does not move is over.
            launcher: how workers are started.
            watch: called as the logs grow.

        Raises:
            AgentReferenceError: if the agent cannot be loaded.
            StoreError: if the store cannot be used.
            LaunchError: if there is no room for the run.
        """
        async with Driver(
            store=self._store,
            providers=self._providers,
            launcher=launcher,
            bounds=bounds,
        ) as driver:
            run = await driver.start(self._agent, self._prompts)
            with redirect_stdout(sys.stderr):
                async for grown in run.events():
                    text = noticed(grown.event)
                    if text is not None:
                        watch(Notice(grown.path, text))
                result = await run.result()
                logs = await run.close()
        ending = None if run.end is None else run.end.ending
        kept = self._store if self._store != "memory:" else None
        return LiveRunReport(
            run.session_id, result, logs, tuple(run.losses), run.printed, ending, kept
        )


def _search_here() -> None:
    """Look for modules in the working directory, too, as ``python -m`` does.

    Workers search where this process does.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def _loaded(providers: Sequence[str]) -> Mapping[str, Provider]:
    found: dict[str, Provider] = {}
    for given in providers:
        before, is_named, after = given.partition("=")
        name, reference = (before, after) if is_named else ("*", given)
        if not name:
            raise AgentReferenceError(
                f"--provider {given}: found no name before the equals sign"
            )
        if name in found:
            whose = "every name" if name == "*" else f"{name!r}"
            raise AgentReferenceError(f"--provider {given}: a second one for {whose}")
        found[name] = load_provider(reference)
    return found

"""Making the pilot of a live agent: its module is imported here, if it was not before."""

from __future__ import annotations

from collections.abc import Callable

from nestling.wire.brief import decode_brief
from nestling.worker.endpoint import Endpoint
from nestling.worker.live_io import LiveSession
from nestling.worker.references_io import load_agent
from nestling.worker.side_call import side_call as _side_call  # noqa: F401 - a fork has it


def live_session(
    endpoint: Endpoint, reference: str, brief: bytes, proceed: Callable[[], None]
) -> LiveSession:
    """Load an agent and put it into its session.

    Raises:
        AgentReferenceError: if it cannot be loaded.
        WireError: if the brief is not readable.
    """
    told = decode_brief(brief)
    return LiveSession(endpoint, load_agent(reference), reference, told, proceed)

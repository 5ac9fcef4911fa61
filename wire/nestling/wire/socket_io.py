"""The two ends of the wire.

Both send without ever blocking: what finds no room waits here, in order, and goes
out as soon as there is room. Both live on the loop that they are made in, and only
its thread may touch them.
"""

from __future__ import annotations

from nestling.wire.hub_socket_io import HubSocket
from nestling.wire.worker_socket_io import WorkerSocket

__all__ = ["HubSocket", "WorkerSocket"]

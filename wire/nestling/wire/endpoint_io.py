"""Checks of an `ipc://` endpoint that libzmq does not make, or makes too late."""

from __future__ import annotations

import os
from typing import Final

from nestling.session.errors import WireError

#: What fits into `sockaddr_un.sun_path` with its closing zero, in bytes.
PATH_CAP: Final = 107

_SCHEME: Final = "ipc://"


def ipc_path(endpoint: str) -> str:
    """Return the file system path of a local endpoint.

    Raises:
        WireError: it is not `ipc://` and a path of at most 107 bytes. Abstract
            sockets (`@…`) have no permissions, and a wildcard has no fixed path.
    """
    path = endpoint.removeprefix(_SCHEME)
    if not endpoint.startswith(_SCHEME) or not path.startswith("/") or "\0" in path:
        raise WireError(
            f"endpoint {endpoint!r}, expected 'ipc://' and an absolute path"
        )
    size = len(os.fsencode(path))
    if size > PATH_CAP:
        raise WireError(
            f"endpoint {endpoint!r} has a path of {size} bytes, "
            f"expected at most {PATH_CAP}"
        )
    return path


def new_ipc_path(endpoint: str) -> str:
    """Return the path of an endpoint that is about to be bound.

    Raises:
        WireError: as `ipc_path`, or something is there already. libzmq would unlink
            it, and its peers would lose what they sent without any error.
    """
    path = ipc_path(endpoint)
    if os.path.lexists(path):
        raise WireError(f"endpoint {endpoint!r} exists already")
    return path

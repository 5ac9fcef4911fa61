"""Endpoints that must not be used are refused before libzmq sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestling.session.errors import WireError
from nestling.wire.endpoint_io import PATH_CAP, ipc_path, new_ipc_path

LONGEST = "/" + "p" * (PATH_CAP - 1)


def test_a_path_of_107_bytes_is_the_longest() -> None:
    assert PATH_CAP == 107
    assert ipc_path(f"ipc://{LONGEST}") == LONGEST
    with pytest.raises(WireError, match="108 bytes"):
        ipc_path(f"ipc://{LONGEST}p")
    with pytest.raises(WireError, match="108 bytes"):
        ipc_path(f"ipc://{LONGEST[:-1]}é")


@pytest.mark.parametrize(
    "endpoint",
    [
        "ipc://@abstract",
        "ipc://*",
        "ipc://",
        "ipc://rel",
        "ipc:///a\0b",
        "inproc://x",
        "tcp://127.0.0.1:1",
        "/x",
        "",
    ],
)
def test_only_absolute_paths_are_endpoints(endpoint: str) -> None:
    with pytest.raises(WireError, match="expected 'ipc://' and an absolute path"):
        ipc_path(endpoint)


def test_what_exists_is_not_bound_again(tmp_path: Path) -> None:
    here = tmp_path / "x"
    assert new_ipc_path(f"ipc://{here}") == str(here)
    here.symlink_to("nowhere")
    with pytest.raises(WireError, match="exists already"):
        new_ipc_path(f"ipc://{here}")

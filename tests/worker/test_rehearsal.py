"""The rehearsal of a template: a session that goes well."""

from __future__ import annotations

import pytest

from nestling.session.errors import WireError
from nestling.wire.codec import encode
from nestling.wire.messages import Bye, Create
from nestling.worker import rehearsal
from nestling.worker.agents import pilot_for
from nestling.worker.endpoint import Endpoint, Pilot


def test_it_goes_through_a_whole_session(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Endpoint] = []
    said: list[object] = []

    def noted(endpoint: Endpoint, create: Create, tape: bytes) -> Pilot:
        played.append(endpoint)
        return pilot_for(endpoint, create, tape)

    def kept(message: object, body: bytes = b"") -> list[bytes]:
        said.append(message)
        return encode(message, body)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsal, "encode", kept)
    rehearsal.rehearse(noted, times=2)
    assert len(played) == 2
    assert all(endpoint.is_closed for endpoint in played)
    assert [m for m in said if isinstance(m, Bye)] == [Bye(0, "done")] * 2
    types = [event.type for event in played[0].loop.log.events]
    assert types[:2] == ["turn/start", "step/start"]
    assert types[-3:] == ["assistant/message", "step/end", "turn/end"]


def test_one_that_goes_wrong_is_an_error() -> None:
    def refuse(endpoint: Endpoint, create: Create, tape: bytes) -> Pilot:
        raise WireError("no pilot")

    with pytest.raises(WireError, match="no pilot"):
        rehearsal.rehearse(refuse)

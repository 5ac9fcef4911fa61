"""What takes too long, at the hub: silence, tokens, turns; each with its own reason."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.driver.director import Asked, Limits
from nestling.driver.exits import Exit
from nestling.driver.instructions import (
    Dismiss,
    Dump,
    HangUp,
    Instruction,
    Kill,
    Provided,
    Send,
    Tick,
)
from nestling.session.jsontext import loads
from nestling.wire.messages import Beat, Cancel, Credit, Fail
from support.directors import Scripted
from support.hubs import Kit, Peer, shown
from support.session_logs import delta


class Live(Scripted):
    """Every call is put to a provider."""

    def on_stream(self, call: Any) -> Any:
        super().on_stream(call)
        return Asked("m")


def ticked(kit: Kit, seconds: float) -> list[Instruction]:
    kit.seconds = seconds
    return [o for o in kit.tell(Tick()) if shown([o])]


# --- silence ---------------------------------------------------------------------------


def test_a_worker_that_is_silent_is_suspected_and_then_ended() -> None:
    kit = Kit()
    kit.peer().begin()
    assert ticked(kit, 10.0) == []
    assert ticked(kit, 10.1) == [Dump("w0")]
    assert ticked(kit, 19.9) == [], "it is told once"
    assert ticked(kit, 20.1) == [HangUp("w0")]
    kit.exited("w0", Exit(None, "SIGKILL"))
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("death", "error")
    assert settled.diagnostic is not None
    assert settled.diagnostic.startswith("wedged: its loop has not turned for 20 s")


@pytest.mark.parametrize("at", [5.0, 15.0])
def test_a_worker_that_speaks_again_is_trusted_again(at: float) -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    ticked(kit, at)
    peer.say(Beat(0, 0))
    assert ticked(kit, at + 9.9) == []
    assert ticked(kit, at + 10.1) == [Dump("w0")]


def test_one_that_waits_for_a_prompt_beats_too() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    kit.peer()
    assert ticked(kit, 10.1) == [Dump("w0")]


def test_a_start_has_a_bound_of_its_own() -> None:
    kit = Kit(Scripted(Limits(start_timeout=30.0)))
    assert ticked(kit, 29.0) == []
    assert ticked(kit, 30.1) == [Kill("w0")]


# --- tokens ----------------------------------------------------------------------------


def calling(first: float, idle: float) -> tuple[Kit, Peer]:
    limits = Limits(silence=1e9, first_token_timeout=first, stream_idle_timeout=idle)
    kit = Kit(Live(limits))
    peer = kit.peer()
    peer.begin()
    peer.stream()
    return kit, peer


def check_timed_out(kit: Kit, text: str) -> None:
    fail = next(s for s in kit.sent("w0") if isinstance(s.message, Fail))
    assert loads(fail.body) == {"message": text, "code": "TIMEOUT"}
    assert kit.has_ordered(Dismiss(0, 0))


def test_a_first_chunk_that_does_not_come() -> None:
    kit, _ = calling(first=5.0, idle=1.0)
    assert ticked(kit, 5.0) == []
    ticked(kit, 5.1)
    check_timed_out(kit, "the provider's first chunk did not come within 5 s")
    assert ticked(kit, 50.0) == []


def test_a_stream_that_falls_silent() -> None:
    """E5: what had come is kept."""
    kit, _ = calling(first=1.0, idle=5.0)
    kit.seconds = 0.9
    kit.tell(Provided(0, 0, [delta("a")]))
    assert ticked(kit, 5.8) == []
    ticked(kit, 6.0)
    check_timed_out(kit, "the provider's next chunk did not come within 5 s")
    fail = next(s for s in kit.sent("w0") if isinstance(s.message, Fail))
    assert fail.message == Fail(0, 0, 1)


def test_a_provider_that_may_not_go_on_is_not_silent() -> None:
    """Its worker has no room: nobody reads from it."""
    kit = Kit(Live(Limits(silence=1e9, stream_idle_timeout=5.0)))
    peer = kit.peer()
    peer.begin()
    peer.stream(credit_bytes=10)
    kit.tell(Provided(0, 0, [delta("a")] * 64))
    assert ticked(kit, 100.0) == []
    for _ in range(32):  # then the provider is let go on
        peer.say(Credit(0, 0, len(kit.sent("w0")[-1].body), 1))
    assert ticked(kit, 104.0) == []
    assert ticked(kit, 105.1) == [Dismiss(0, 0)]
    for _ in range(31):  # what it had yielded is served before its end
        peer.say(Credit(0, 0, len(kit.sent("w0")[-1].body), 1))
    check_timed_out(kit, "the provider's next chunk did not come within 5 s")


# --- turns -----------------------------------------------------------------------------


def test_a_turn_that_takes_too_long_is_cancelled() -> None:
    kit = Kit(Scripted(Limits(silence=1e9, turn_timeout=5.0)))
    peer = kit.peer()
    kit.seconds = 3.0
    peer.begin()
    assert ticked(kit, 8.0) == []
    (order,) = ticked(kit, 8.1)
    assert isinstance(order, Send)
    assert order.message == Cancel(0, None, None)
    reason = "the turn took longer than 5 s"
    assert loads(order.body) == {"kind": "timeout", "reason": reason}
    peer.end("aborted")
    peer.begin()
    assert ticked(kit, 13.0) == [], "the next one has a time of its own"


@pytest.mark.parametrize(
    "name",
    ["silence", "first_token_timeout", "stream_idle_timeout", "turn_timeout"],
)
def test_limits_that_make_no_sense(name: str) -> None:
    limits = Limits()._replace(**{name: 0})
    with pytest.raises(ValueError, match=f"{name} must be more than 0, found 0"):
        limits.checked()

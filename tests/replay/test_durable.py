"""What is written down is what was judged: the same events, under the same headers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compose.trees import TREES
from nestling.driver.director import Director
from nestling.driver.instructions import Durable, HubEvent, Instruction, Persist, Send
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.tape_runner import Choose, TapeRunner
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.reading import read_recording
from nestling.session.writing import encode_header, encode_rows
from nestling.wire.messages import Chunks, Close
from support.replays import contents, scenario_of, seeded


class Recorder(TapeRunner):
    """Keeps what is ordered to be written, and what is on disk when."""

    def __init__(self, director: Director, choose: Choose) -> None:
        super().__init__(director, choose)
        self.headers: dict[int, Header] = {}
        self.written: dict[int, list[Event]] = {}
        self.durable: dict[int, int] = {}

    def _obey(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Persist):
                self._write(instruction)
            elif isinstance(instruction, Send):
                self._check(instruction)
        super()._obey(instructions)

    def _write(self, order: Persist) -> None:
        if order.header is not None:
            assert order.sid not in self.headers, "a file has one header"
            self.headers[order.sid] = order.header
        events = self.written.setdefault(order.sid, [])
        events += order.events
        assert len(events) == order.length

    def _check(self, send: Send) -> None:
        """A call is served, and a worker let go, once all it has said is on disk."""
        message, session = send.message, self.hub.tree.of_launch(send.launch)
        is_first = isinstance(message, Chunks) and message.first == 0
        if is_first or isinstance(message, Close):
            assert self.durable[session.sid] == len(session.log)

    def _tell_hub(self, event: HubEvent) -> None:
        if isinstance(event, Durable):
            self.durable[event.sid] = event.length
        super()._tell_hub(event)


@pytest.mark.parametrize("name", TREES)
def test_what_is_durable_is_what_was_judged(name: str) -> None:
    scenario = scenario_of(TREES[name]())
    for seed in range(5):
        director = ReplayDirector(scenario)
        runner = Recorder(director, seeded(seed))
        runner.run()
        director.close()
        assert director.ledger.problems == []
        files = {}
        for session in runner.hub.tree:
            events = runner.written[session.sid]
            assert len(events) == runner.durable[session.sid]
            header = runner.headers[session.sid]
            files[session.path] = encode_header(header) + encode_rows(events)
        assert files.keys() == scenario.by_path.keys()
        for path, content in files.items():
            read = read_recording(content, path)
            recorded = scenario.by_path[path].recording
            assert read.header.row() == recorded.header.row()
            assert contents(read.events) == contents(recorded.events)


class Dying(Recorder):
    """A worker dies once the hub has been told of so many things."""

    def __init__(
        self, director: Director, choose: Choose, launch: str, at: int
    ) -> None:
        super().__init__(director, choose)
        self._victim, self._at, self._told = launch, at, 0

    def _tell_hub(self, event: HubEvent) -> None:
        super()._tell_hub(event)
        self._told += 1
        if self._told == self._at:
            self._kill(self._victim)


@pytest.mark.parametrize("launch", ["w0", "w1", "w2"])
def test_what_is_durable_of_a_tree_that_broke_is_what_the_hub_holds(
    launch: str,
) -> None:
    """Closers of lost workers and seeds of children included, each event once."""
    scenario = scenario_of(TREES["nested_forks"]())
    closed = 0
    for at in range(3, 100, 3):
        director = ReplayDirector(scenario)
        runner = Dying(director, seeded(at), launch, at)
        runner.run()
        for session in runner.hub.tree:
            assert runner.written[session.sid] == session.log.events
            assert runner.durable[session.sid] == len(session.log)
            assert runner.headers[session.sid] is session.header
            ends = [
                e.data["reason"] for e in session.log.events if e.type == "turn/end"
            ]
            closed += {"kind": "interrupted"} in ends
    assert closed > 5, "else hardly any worker was in a turn"

"""The replaying director: every decision of a run, taken from a recording.

A live session binds at its creation to the recorded one with the same spawn path and
takes its id. Time, arrival order, agent names, call ids and message texts play no
part in it, so concurrent siblings and identical twins replay alike on any schedule.
What does not fit is written into the ledger and stops the session it was found in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from nestling.driver.director import (
    DEFAULT_MAX_DEPTH,
    Answer,
    CallRequest,
    Creation,
    Delegation,
    DelegationDecision,
    EncodedChunks,
    Limits,
    Loss,
    Lost,
    Prompt,
    Real,
    Recorded,
    Refused,
    Resume,
    Run,
    Settlement,
    Stop,
    ToolDecision,
    ToolRequest,
    Unanswered,
    too_deep,
)
from nestling.driver.live_director import child_creation
from nestling.harness.comparison import (
    AgentComparison,
    CallAt,
    Comparison,
    Finding,
    TapeComparison,
    Verify,
)
from nestling.harness.consistency import drifts
from nestling.harness.crashes import first_of_cancel, is_unknown
from nestling.harness.delegation import is_by_code
from nestling.harness.header_compare import are_equal, header_difference
from nestling.harness.ledger import Account, Ledger, ProblemKind
from nestling.harness.matching import Matcher, Renaming
from nestling.harness.nearest import nearest_call, nearest_task
from nestling.harness.normalise import Normalisers
from nestling.harness.pairing import first_prompt
from nestling.harness.plan import Plan, RecordedResult, make_plan
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.harness.serving import Place, Serving
from nestling.harness.stops import holds_of, shifted
from nestling.harness.told import with_told_again
from nestling.session.errors import AppendError, UnreadableError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject, shown
from nestling.session.outcome import Outcome
from nestling.session.request import request_of
from nestling.session.spawn_path import ROOT
from nestling.wire.brief import Brief, encode_brief
from nestling.worker.tool_results import ABORTED

_NOTHING = EncodedChunks(())


class Cast(NamedTuple):
    """Who plays a recording instead of tape agents.

    Attributes:
        agent: the root's agent reference; its code says what its children run.
        prompts: what the root is told, turn by turn.
        options: what the root's code finds in ``Turn.options``.
        runs_tools: whether tools are run; else their recorded results are served, but
            for those whose bodies delegated.
        verify: what it is if a model is told something else than recorded: a problem, a
            warning, nothing. None for a problem in what was recorded here, and for
            nothing in other logs.
        normalisers: what may be another from run to run.
    """

    agent: str
    prompts: tuple[Prompt, ...]
    options: JsonObject
    runs_tools: bool = False
    verify: Verify | None = None
    normalisers: Normalisers = Normalisers()


class ReplayDirector:
    """Replays one scenario.

    Attributes:
        ledger: what was bound, served and found wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        cast: Cast | None = None,
        *,
        speed: float = 0.0,
        gates: Iterable[Place] = (),
    ) -> None:
        """Plan the replay.

        Args:
            scenario: what was recorded.
            cast: the agents to run; tape agents by default.
            speed: how fast answers are served (see ``Serving``).
            gates: where they are held.

        Raises:
            UnreadableError: if a recorded log cannot be made into a tape.
            ValueError: if the speed is none, or nothing is recorded where a gate is.
        """
        self.ledger = Ledger()
        self._cast = cast
        self._plans: dict[str, Plan] = {}
        self._path_of: dict[str, str] = {}
        self._comparisons: dict[str, Comparison] = {}
        self._verify: Verify = "strict" if scenario.is_own else "off"
        if cast is not None and cast.verify is not None:
            self._verify = cast.verify
        self._renaming = Renaming()
        self._scenario = scenario
        self._expected: dict[str, list[Event]] = {}
        for session in scenario.sessions:
            if session.path is not None:
                plan = make_plan(session, scenario.children(session))
                self._plans[session.path] = plan
                self._expected[session.path] = list(plan.recorded)
                self._comparisons[session.path] = self._comparison(session.path, plan)
                self._path_of[session.recording.header.id] = session.path
                self.ledger.open(session.path, len(plan.calls))
                self._report_drifts(session)
        self._serving = Serving(self._plans, self._expected, speed, gates)
        # Whatever was recorded was allowed; the recording is the limit.
        depth = max(session.depth for session in scenario.sessions)
        self.limits = Limits(max_depth=depth)

    def _comparison(self, path: str, plan: Plan) -> Comparison:
        recorded = self._expected[path]
        if self._cast is None:
            return TapeComparison(recorded)
        kills = [stop.length for stop in plan.agent_stops.kills]
        return AgentComparison(
            recorded,
            plan.session.seed_length,
            self._verify,
            Matcher(self._cast.normalisers, self._renaming),
            [*kills, *(stop.length for stop in plan.agent_stops.cancels)],
            kills,
        )

    def _report_drifts(self, session: RecordedSession) -> None:
        for number, call in enumerate(session.script, start=1):
            for drift in drifts(call.entry.chunks):
                message = f"recorded call {number}, {drift}"
                self.ledger.report("drift", session.path, message)

    def plan_of(self, session_id: str) -> Plan:
        """Return the plan of a session by its id, live and recorded being the same."""
        return self._plans[self._path_of[session_id]]

    def _account(self, session_id: str) -> Account:
        return self.ledger.accounts[self._path_of[session_id]]

    # --- creating --------------------------------------------------------------

    def on_root(self) -> Creation:
        """Bind the root."""
        creation = self._bind(ROOT)
        if self._cast is None:
            return creation
        plan = self._plans[ROOT]
        stops = plan.agent_stops
        told = with_told_again(self._cast.prompts, plan.told, plan.fatal_turns)
        brief = Brief(
            "root", "", self._cast.options, waits=False, holds=holds_of(stops)
        )
        return creation._replace(
            agent=self._cast.agent,
            brief=encode_brief(brief),
            stops=stops,
            prompts=tuple(told),
        )

    def _bind(self, path: str) -> Creation:
        creation = self._plans[path].creation
        self.ledger.accounts[path].id = creation.header.id
        return creation

    def _bind_child(self, child: Plan, delegation: Delegation) -> Creation:
        """Bind a child; what its header says of its birth is what really happened."""
        creation = self._bind(delegation.path)
        recorded = child.session.recording.header
        born: JsonObject = {"parentSession": delegation.parent_id}
        stated, live = recorded.spawned_by, delegation.spawned_by
        if stated is not None and stated.call_id is None:
            live = msgspec.structs.replace(live, call_id=None)  # it does not say
        if stated is not None and stated != live:
            born["spawnedBy"] = msgspec.to_builtins(live)
        if recorded.delegation_depth is not None:
            root = self._plans[ROOT].session.recording.header.delegation_depth
            born["delegationDepth"] = (root or 0) + delegation.depth
        creation = creation._replace(header=creation.header.with_fields(**born))
        if self._cast is None:
            return creation
        if child.session.kind == "fork":
            parent = self._comparisons[self._path_of[delegation.parent_id]]
            self._comparisons[delegation.path].inherit(parent)
        longer = delegation.seed_length - child.session.seed_length
        stops = shifted(child.agent_stops, longer)
        played = child_creation(
            creation.header, delegation, waits=False, holds=holds_of(stops)
        )
        prompts = (*played.prompts, *child.later_prompts)
        return played._replace(stops=stops, prompts=prompts)

    def on_delegate(self, delegation: Delegation) -> DelegationDecision:
        """Make a delegation real where the recording has a child at its path."""
        parent = self.plan_of(delegation.parent_id)
        child = self._plans.get(delegation.path)
        recorded = self._recorded_result(parent, delegation)
        if child is None:
            return recorded or self._unrecorded(parent, delegation)
        account = self.ledger.accounts[delegation.path]
        problem = self._delegation_problem(child, account, delegation)
        if problem is None:
            return Real(self._bind_child(child, delegation))
        self._differs(account, *problem)
        return recorded or Refused(problem[1])

    def _recorded_result(self, parent: Plan, delegation: Delegation) -> Recorded | None:
        place = delegation.spawned_by
        if place.block is None or place.n > 0:
            return None
        triple = (place.turn, place.step, place.block)
        if triple in parent.code_children:
            return None  # what is recorded there is what its tool came to
        result = parent.results.get(triple)
        if result is None or self._was_given_up(parent, result):
            return None
        return Recorded(result.body)

    def _was_given_up(self, plan: Plan, result: RecordedResult) -> bool:
        """Tell whether an agent writes a result of its own accord when it is cancelled.

        A tape waits for it to be served.
        """
        return self._cast is not None and any(
            first_of_cancel(plan.recorded, stop.length) <= result.seq < stop.length
            for stop in plan.stops.cancels
        )

    def _unrecorded(self, parent: Plan, delegation: Delegation) -> DelegationDecision:
        logged = self._account(delegation.parent_id).logged
        if parent.is_cut_short(delegation.spawned_by.turn, logged):
            return Unanswered()  # the recorded parent did not live to get an answer
        if self._cast is not None and delegation.depth > DEFAULT_MAX_DEPTH:
            # So it was when it was recorded; code leaves no trace of what it is refused.
            return too_deep(delegation, DEFAULT_MAX_DEPTH)
        message = "a delegation at this path, which the recording does not have"
        self.ledger.report("session-without-script", delegation.path, message)
        nearest = nearest_task(delegation.prompt, self._scenario.sessions)
        if nearest is not None:
            self.ledger.nearest[delegation.path] = nearest
        return Refused(message)

    def _delegation_problem(
        self, child: Plan, account: Account, delegation: Delegation
    ) -> tuple[ProblemKind, str] | None:
        if account.is_bound:
            return "session-without-script", "a second delegation at this path"
        live = delegation.spawned_by
        if live.context != child.session.kind:
            message = f"it is a {live.context}, recorded was a {child.session.kind}"
            return "tree-differs", f"the delegation differs: {message}"
        call_id = _recorded_call_id(child)
        if None not in (live.call_id, call_id) and live.call_id != call_id:
            calls = f"{shown(live.call_id)}, recorded was {shown(call_id)}"
            message = f"its tool call is {calls}"
            return "tree-differs", f"the delegation differs: {message}"
        prompt = first_prompt(child.session.own_events)
        # What an agent's child was told stands in its log, and is judged there.
        if self._cast is None and prompt is not None and prompt != delegation.prompt:
            said = f"{shown(delegation.prompt)}, recorded was {shown(prompt)}"
            return "log-differs", f"the delegated prompt is {said}"
        return None

    def on_created(
        self, session_id: str, header: Header, events: Sequence[Event]
    ) -> Stop | None:
        """Compare a session's header and what it starts with."""
        account, plan = self._account(session_id), self.plan_of(session_id)
        account.seed_length = header.seed_length
        comparison = self._comparisons[account.path]
        finding = self._first_problem(account, comparison, events)
        # What was inherited may be another; then its length and digest are, too.
        left_out: set[str] = set()
        if self._cast is not None and not are_equal(events, plan.recorded):
            left_out.add("seedDigest")
        if comparison.has_other_inputs:
            left_out.add("seedLength")
        recorded = plan.session.recording.header
        problem = header_difference(header, recorded, left_out)
        if problem is not None:
            return self._differs(account, "log-differs", problem)
        return None if finding is None else self._found(account, finding)

    # --- answering -------------------------------------------------------------

    def on_stream(self, call: CallRequest) -> Answer | Stop:
        """Answer a call from the script of the session that asks."""
        account, plan = self._account(call.session_id), self.plan_of(call.session_id)
        at = CallAt(call.number - account.unscripted + 1, call.turn, call.step)
        comparison = self._comparisons[account.path]
        finding = comparison.call(at)
        _take_note(account, comparison)
        if finding is not None and (stop := self._found(account, finding)) is not None:
            return stop
        cut_short = self._cut_short(plan, account.logged)
        if cut_short is not None:
            account.unscripted += 1
            return cut_short
        call = call._replace(number=call.number - account.unscripted)
        if call.number >= len(plan.calls):
            return self._no_answer(account, call)
        planned = plan.calls[call.number]
        if planned.purpose != call.purpose:
            return self._wrong_purpose(account, call, planned.purpose)
        account.served += 1
        try:
            return self._serving.answer(account.path, call)
        except UnreadableError as error:
            return self._not_answered(account, f"call {call.number + 1}: {error}")

    def _not_answered(self, account: Account, message: str) -> Answer:
        self._differs(account, "log-differs", message)
        return Answer(_NOTHING, failure={"message": message, "code": "NOT_RECORDED"})

    def _cut_short(self, plan: Plan, length: int) -> Answer | None:
        """Answer a call that an agent opens and no chunk of which was recorded.

        Its worker died then, or its turn was cancelled.
        """
        if self._cast is None:
            return None
        if plan.death_at(length) is not None:
            return Answer(_NOTHING, hangs=True)
        for stop in plan.agent_stops.cancels:
            if stop.length == length:
                return Answer(_NOTHING, cut=stop.cause)
        return None

    def _no_answer(self, account: Account, call: CallRequest) -> Answer:
        message = (
            f"call {call.number + 1} (turn {call.turn}, step {call.step}) is beyond "
            f"the {account.recorded_calls} recorded ones"
        )
        self._differs(account, "extra-call", message)
        self._seek_nearest(account)
        return Answer(_NOTHING, failure={"message": message, "code": "NOT_RECORDED"})

    def _wrong_purpose(
        self, account: Account, call: CallRequest, recorded: str
    ) -> Answer:
        message = (
            f"call {call.number + 1} (turn {call.turn}, step {call.step}) is a "
            f"{call.purpose} call, recorded was a {recorded} call"
        )
        return self._not_answered(account, message)

    def on_tool(self, request: ToolRequest) -> ToolDecision:
        """Serve the recorded result of a tool call, or have it run."""
        plan = self.plan_of(request.session_id)
        place = (request.turn, request.step, request.block)
        result = plan.results.get(place)
        if self._cast is None:
            return Unanswered() if result is None else Recorded(result.body)
        if place in plan.code_children:
            return Run()  # its children are asked for by its body
        if result is None:
            logged = self._account(request.session_id).logged
            is_over = plan.is_cut_short(request.turn, logged)
            return Unanswered() if is_over else Run()
        if self._was_given_up(plan, result):
            return Unanswered()
        return Run() if self._cast.runs_tools else Recorded(result.body)

    # --- watching --------------------------------------------------------------

    def on_events(self, session_id: str, events: Sequence[Event]) -> Stop | None:
        """Compare what a log has grown by with the recorded log."""
        account = self._account(session_id)
        comparison = self._comparisons[account.path]
        finding = self._first_problem(account, comparison, events)
        return None if finding is None else self._found(account, finding)

    def _first_problem(
        self, account: Account, comparison: Comparison, events: Sequence[Event]
    ) -> Finding | None:
        """Compare events up to the first that makes a problem; report warnings."""
        problem: Finding | None = None
        for event in events:
            taken = comparison.take(event)
            _take_note(account, comparison)
            for finding in taken:
                if finding.is_problem:
                    problem = self._named(account, event, finding)
                else:
                    self._found(account, finding)
            if problem is not None:
                break
        return problem

    def _named(self, account: Account, event: Event, finding: Finding) -> Finding:
        """Call it by its name if an agent makes more or fewer calls than recorded."""
        if self._cast is None or finding.kind != "log-differs":
            return finding
        served, recorded = account.served, account.recorded_calls
        events = self._plans[account.path].recorded
        was = events[account.logged].type if account.logged < len(events) else ""
        if event.type == "step/start" != was and served == recorded:
            place = f"turn {event.data['turn']}, step {event.data['step']}"
            told = f"call {served + 1} ({place}) is beyond the {recorded} recorded ones"
            self._seek_nearest(account)
            return Finding("extra-call", f"{told}: {finding.message}")
        if event.type == "turn/end" and was == "step/start" and served < recorded:
            told = f"{served} of {recorded} recorded calls were asked for"
            return Finding("leftover-call", f"{told}: {finding.message}")
        return finding

    def _found(self, account: Account, finding: Finding) -> Stop | None:
        """Report what a comparison has found; stop the session if it is a problem."""
        if finding.is_problem:
            if finding.kind == "request-differs" and not account.is_different:
                self._seek_nearest(account)
            return self._differs(account, finding.kind, finding.message)
        if not account.is_different:
            self.ledger.warn(finding.kind, account.path, finding.message)
        return None

    def _seek_nearest(self, account: Account) -> None:
        """Find the recorded call that is most like the one that a session makes."""
        normalisers = Normalisers() if self._cast is None else self._cast.normalisers
        sessions = self._scenario.sessions
        try:
            request = request_of(self._comparisons[account.path].log)
            nearest = nearest_call(request, sessions, normalisers)
        except AppendError:
            return  # a log that is not sound has no request
        if nearest is not None:
            self.ledger.nearest[account.path] = nearest

    def _differs(self, account: Account, kind: ProblemKind, message: str) -> Stop:
        if not account.is_different:
            self.ledger.report(kind, account.path, message)
        account.is_different = True
        return Stop(message)

    def on_idle(self, session_id: str, prompts: int, outcome: Outcome) -> None:
        """Nothing waits: a recording says all its prompts at once."""

    def on_refused(self, session_id: str, reason: str, detail: str) -> None:
        """Write down why a worker would not start or go on."""
        kinds: dict[str, ProblemKind] = {
            "seed-refused": "seed-refused",
            "loop-refused": "log-differs",
        }
        self._differs(
            self._account(session_id), kinds.get(reason, "worker-lost"), detail
        )

    # --- ending ----------------------------------------------------------------

    def on_lost(self, session_id: str, loss: Loss) -> Lost:
        """Have a session go on where the recorded one did after the same death."""
        account, plan = self._account(session_id), self.plan_of(session_id)
        comparison = self._comparisons[account.path]
        finding = comparison.lost()
        _take_note(account, comparison)
        if finding is not None:
            self._found(account, finding)
        number = plan.death_at(account.logged)
        if number is None or account.is_different:
            return Lost()
        # What the closers say of a child was read off its log; here it has ended as it
        # did there, or the ledger says so.
        results = {
            call: result.body
            for call in loss.calls
            if call.block is not None
            and (result := plan.closing.get((call.turn, call.step, call.block)))
            and not is_unknown(plan.recorded[result.seq])
        }
        tapes = plan.tapes[number + 1 :]
        if not tapes:
            return Lost(results)
        return Lost(results, Resume(tapes[0] if self._cast is None else None))

    def on_settled(
        self, session_id: str, settlement: Settlement
    ) -> JsonObject | Unanswered | None:
        """Judge how a session ended, and choose what its parent is told."""
        account, plan = self._account(session_id), self.plan_of(session_id)
        account.outcome, account.has_settled = settlement.outcome, True
        if settlement.ended_by == "abort":
            account.was_ended = True  # what ended the run, or its parent, is reported
            return None
        is_death = settlement.ended_by == "death"
        was_recorded = is_death and plan.death_at(account.logged) is not None
        if was_recorded:
            self.on_events(session_id, settlement.closing)
        is_complete = account.logged == len(plan.recorded)
        died_as_recorded = was_recorded and plan.ends_dead and is_complete
        if is_death and not died_as_recorded:
            self._differs(account, "worker-lost", settlement.death)
            return None
        self._judge(account, plan)
        if died_as_recorded:
            self._judge_death(account, plan)
        # A child that was stopped has had its problem reported; its parent goes on
        # along the recording, so that it can be judged, too.
        if self._was_given_up_by_parent(plan):
            return Unanswered()
        told = self._result_for_parent(plan)
        if account.is_different or died_as_recorded or plan.session.is_foreign:
            return told
        return told if _did_not_wait(told) else None

    def _judge(self, account: Account, plan: Plan) -> None:
        if account.is_different:
            return
        comparison = self._comparisons[account.path]
        finding = comparison.end()
        _take_note(account, comparison)
        if finding is not None and self._found(account, finding) is not None:
            return
        recorded = self._serving.recorded_outcome(account.path)
        if account.outcome != recorded:
            message = f"it came to {account.outcome}, recorded was {recorded}"
            self._differs(account, "output-differs", message)

    def _judge_death(self, account: Account, plan: Plan) -> None:
        """Refuse a recording of ours whose parent was told a success by a dead child."""
        told = self._result_for_parent(plan)
        is_success = told is not None and told["block"].get("isError") is not True
        if is_success and not plan.session.is_foreign:
            message = "its worker died, as recorded, but its parent was told a success"
            self._differs(account, "output-differs", message)

    def _was_given_up_by_parent(self, plan: Plan) -> bool:
        """Tell whether a parent was cancelled before it was told of its child."""
        result = self._recorded_for_parent(plan)
        parent_path = plan.session.parent_path
        if result is None or parent_path is None:
            return False
        return self._was_given_up(self._plans[parent_path], result)

    def _result_for_parent(self, plan: Plan) -> JsonObject | None:
        result = self._recorded_for_parent(plan)
        return None if result is None else result.body

    def _recorded_for_parent(self, plan: Plan) -> RecordedResult | None:
        delegation = plan.session.delegation
        parent_path = plan.session.parent_path
        if delegation is None or parent_path is None:
            return None
        place = delegation.spawned_by
        if place.block is None or is_by_code(delegation):
            return None
        results = self._plans[parent_path].results
        return results.get((place.turn, place.step, place.block))

    def close(self) -> None:
        """Balance the ledger after the last session has ended."""
        accounts = self.ledger.accounts
        # Below a session that stopped early nothing could bind. Calls that are left
        # over are found here, and hide nothing.
        open_to = {None, *(p for p, each in accounts.items() if each.came_to_its_end)}
        for path, account in accounts.items():
            if not account.is_bound:
                if self._plans[path].session.parent_path in open_to:
                    message = "no live session took this script"
                    self._differs(account, "script-not-bound", message)
            elif account.served < account.recorded_calls and not account.was_ended:
                message = (
                    f"{account.served} of {account.recorded_calls} recorded calls "
                    "were asked for"
                )
                self._differs(account, "leftover-call", message)


def _take_note(account: Account, comparison: Comparison) -> None:
    account.logged = comparison.position
    account.has_other_inputs = comparison.has_other_inputs


def _did_not_wait(result: JsonObject | None) -> bool:
    """Tell whether a parent did not wait for its child, which came to its own end."""
    error = {} if result is None else result.get("error")
    return type(error) is dict and error.get("code") == ABORTED


def _recorded_call_id(child: Plan) -> str | None:
    delegation = child.session.delegation
    return None if delegation is None else delegation.spawned_by.call_id

"""The pytest plugin: recorded trees as tests.

::

    @pytest.mark.scenario("scenarios/harbour")
    def test_harbour(replay):
        report = replay()  # fails the test unless the tree comes out as recorded

It is loaded with every run of pytest where Nestling is installed. So it imports nothing
but pytest until a test asks for something.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from nestling.harness.plugin_run_io import Place, PluginRun
    from nestling.harness.recordings_report import Facts
    from nestling.harness.replayer_io import Replayer
    from nestling.harness.scenario import Scenario

MARKER: Final = (
    "scenario(path, *, agent, launcher, timeout, stall, verify, speed, network): the recorded tree that "
    "this test replays, by the `replay` fixture; the path starts at the test's folder."
)
_ABSENT: Final = object()
_RUN: Final = pytest.StashKey["PluginRun"]()
_DESELECTED: Final = pytest.StashKey[int]()
_TOLD: Final = pytest.StashKey[list[Any]]()
_REPLAYER: Final = pytest.StashKey["Replayer"]()

# --- options -----------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, object, object]:
    """Add the options, after all other plugins have added theirs.

    Two have names that others use, too (syrupy, pytest-recording). Where one does, its
    option counts for Nestling as well.
    """
    result = yield
    group = parser.getgroup("nestling", "nestling: replays of recorded agent trees")
    modes = ("none", "once", "all")
    group.addoption(
        *_free(early_config, "--record-mode"),
        "--nestling-record-mode",
        dest="nestling_record_mode",
        choices=modes,
        default=None,
        help="What is recorded: `none`, the default, nothing; `once`, what has no "
        "recording; `all`, everything anew. Nothing where CI is set.",
    )
    group.addoption(
        *_free(early_config, "--snapshot-update"),
        "--nestling-snapshot-update",
        dest="nestling_snapshot_update",
        action="store_true",
        default=False,
        help="Replay, then write what came out as what is expected; models' answers stay.",
    )
    group.addoption(
        "--nestling-allow-network",
        dest="nestling_allow_network",
        action="store_true",
        default=False,
        help="Do not block the network in tests with a scenario.",
    )
    return result


def _free(config: pytest.Config, name: str) -> list[str]:
    """Return an option's name, unless another plugin has it."""
    return [name] if config.getoption(name, _ABSENT) is _ABSENT else []


def _shared(config: pytest.Config, name: str, own: str) -> object:
    """Return the value of another plugin's option; None if it is ours or nobody's."""
    value = config.getoption(name, None)
    return None if value is config.getoption(own, None) else value


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse to record on a build server."""
    config.addinivalue_line("markers", MARKER)
    own = config.getoption("nestling_record_mode", None)
    if own not in (None, "none") and not hasattr(config, "workerinput"):
        from nestling.harness.plugin_run_io import recording_is_refused

        if recording_is_refused():
            raise pytest.UsageError(
                f"--record-mode={own}: CI is set in the environment, and nothing is "
                "recorded there; record where the result is looked at, and commit it"
            )


# --- what was collected ----------------------------------------------------------------


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is not run."""
    if items:
        stash = items[0].config.stash
        stash[_DESELECTED] = stash.get(_DESELECTED, 0) + len(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Take note of the scenarios that tests use."""
    marked = [item for item in session.items if item.get_closest_marker("scenario")]
    if not marked:
        return
    run = _new_run(session.config)
    places: list[Place] = []
    for item in marked:
        try:
            places.append(_place(item))
        except ValueError:
            continue  # it is told when the test is run
    run.places = places
    run.facts.used.extend(sorted({str(place.folder) for place in places}))


def _new_run(config: pytest.Config) -> PluginRun:
    from nestling.harness.plugin_options import record_mode
    from nestling.harness.plugin_run_io import PluginRun

    own = config.getoption("nestling_record_mode", None)
    mode = record_mode(own, _shared(config, "--record-mode", "nestling_record_mode"))
    refreshes = bool(
        config.getoption("nestling_snapshot_update", False)
        or _shared(config, "--snapshot-update", "nestling_snapshot_update")
    )
    config.stash[_RUN] = PluginRun(mode, refreshes=refreshes)
    return config.stash[_RUN]


def _place(item: pytest.Item) -> Place:
    """Return the scenario of a test.

    Raises:
        ValueError: if its marker is missing or wrong.
    """
    from nestling.harness.plugin_options import parse_mark
    from nestling.harness.plugin_run_io import place_of

    marker = item.get_closest_marker("scenario")
    if marker is None:
        raise ValueError(
            "the fixtures `replay` and `scenario` need to be told which one: "
            '@pytest.mark.scenario("path/of/the/scenario")'
        )
    mark = parse_mark(marker.args, marker.kwargs)
    if item.config.getoption("nestling_allow_network", False):
        mark = mark._replace(network=True)
    return place_of(item.path, item.nodeid, mark)


def _place_or_fail(item: pytest.Item) -> Place:
    try:
        return _place(item)
    except ValueError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)


# --- fixtures --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _nestling_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PluginRun]:
    """What all tests of this process share: launchers, and so a template."""
    config = request.config
    run = config.stash[_RUN] if _RUN in config.stash else _new_run(config)
    run.open(tmp_path_factory, has_siblings=hasattr(config, "workerinput"))
    yield run
    run.close()


@pytest.fixture
def _nestling_replayer(
    request: pytest.FixtureRequest, _nestling_run: PluginRun
) -> Iterator[Replayer]:
    from nestling.harness.replayer_io import Replayer
    from nestling.worker.network_io import blocked

    place = _place_or_fail(request.node)
    replayer = Replayer(_nestling_run, place)
    if place.mark.network:
        yield replayer
        return
    with blocked(
        "in a test that replays a recording; to let it pass, say network=True"
    ):
        yield replayer


@pytest.fixture
def scenario(_nestling_replayer: Replayer) -> Scenario:
    """The recorded tree that the test's `scenario` marker names."""
    return _nestling_replayer.scenario


@pytest.fixture
def replay(request: pytest.FixtureRequest, _nestling_replayer: Replayer) -> Replayer:
    """Replays the scenario of the test's marker: `replay()`, or `await replay.run()`."""
    request.node.stash[_REPLAYER] = _nestling_replayer
    return _nestling_replayer


@pytest.fixture
def nestling_no_leaks() -> Iterator[None]:
    """Fails a test that leaves a process, a run directory or a thread of Nestling."""
    from nestling.harness.leaks_io import LeakError, no_leaks

    left = ""
    try:
        with no_leaks():
            yield
    except LeakError as error:
        left = str(error)
    if left:
        pytest.fail(left, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that passed without the replay that it is marked for.

    This comes after the test. A marker of a module or class may be meant for others.
    """
    is_marked = any(mark.name == "scenario" for mark in item.own_markers)
    names = getattr(item, "fixturenames", ())
    if is_marked and "_nestling_replayer" not in names:
        pytest.fail(
            "@pytest.mark.scenario does nothing by itself: the test has neither the "
            "fixture `replay` nor `scenario`",
            pytrace=False,
        )
    replayer = item.stash.get(_REPLAYER, None)
    if replayer is not None and not replayer.was_used:
        pytest.fail(
            "the test passed, but nothing was replayed: call `replay()`, or "
            "`await replay.run()`",
            pytrace=False,
        )


# --- the end of the run ------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller of pytest-xdist what was done in this worker."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _RUN in session.config.stash:
        output["nestling"] = list(_facts(session.config))


def _facts(config: pytest.Config) -> Facts:
    facts = config.stash[_RUN].facts
    return facts._replace(deselected=config.stash.get(_DESELECTED, 0))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what a worker of pytest-xdist has done; nothing if it was lost."""
    told = getattr(node, "workeroutput", {}).get("nestling")
    node.config.stash.setdefault(_TOLD, []).append(told)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Report what was written, and after a whole run what lies about."""
    told = config.stash.get(_TOLD, [])
    if not any(told) and _RUN not in config.stash:
        return
    from nestling.harness import plugin_summary_io, recordings_report

    if _RUN in config.stash:
        told = [*told, _facts(config)]
    facts = recordings_report.merged(
        recordings_report.Facts(*each) for each in told if each is not None
    )
    is_whole = None not in told and exitstatus in (0, 1) and not facts.deselected
    plugin_summary_io.write(terminalreporter, config, facts, is_whole=is_whole)

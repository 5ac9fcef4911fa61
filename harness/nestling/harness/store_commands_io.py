"""The commands that look into stores; none of them writes to one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from nestling.harness.command_io import EXIT_FAILED, EXIT_OK, Result
from nestling.harness.forest import Place, below, places
from nestling.harness.overview import Overview, Read, overview, recorded_reads
from nestling.harness.printable import shown
from nestling.harness.replay_report import counted
from nestling.harness.scenario_io import load_scenario
from nestling.harness.session_report import session_text
from nestling.harness.tree_report import Drawn, rebased, sessions_text, trees_text
from nestling.session.errors import (
    SessionNotFoundError,
    StoreError,
    UnsupportedError,
)
from nestling.session.header import Header
from nestling.session.invariants import Finding, log_findings
from nestling.session.jsontext import JsonObject
from nestling.session.lineage_invariants import Imprint, imprint, lineage_findings
from nestling.session.store_backend import Listed
from nestling.session.store_io import SessionStore, open_store
from nestling.session.writing import encode_header, encode_rows

_SCHEMES: Final = ("jsonl", "sqlite", "memory")


def _is_address(where: str) -> bool:
    scheme, colon, _ = where.partition(":")
    return bool(colon) and scheme in _SCHEMES


@contextmanager
def _opened(address: str) -> Iterator[SessionStore]:
    """Open a store that is there; nothing is created.

    Raises:
        StoreError: if there is none.
    """
    scheme, _, path = address.partition(":")
    if scheme == "jsonl":
        is_there = os.path.isdir(path)
    elif scheme == "sqlite":
        is_there = os.path.isfile(path)
    else:
        is_there = False
    if not is_there:
        expected = "jsonl:DIR or sqlite:FILE of a store that exists"
        raise StoreError(f"no store at {address}, expected {expected}")
    with open_store(address) as store:
        yield store


def _listed(store: SessionStore, session_id: str | None) -> list[Listed]:
    """Return the sessions of a store.

    Raises:
        SessionNotFoundError: if `session_id` is not among them.
    """
    listed = store.sessions()
    if session_id is not None and all(each.id != session_id for each in listed):
        raise SessionNotFoundError(f"{store.name} holds no session {session_id!r}")
    return listed


def _read(store: SessionStore, listed: Listed) -> Read | None:
    """Read a session, however it is; None if it is gone meanwhile."""
    if listed.header is None:
        is_unsupported = _is_unsupported(store, listed.id)
        return Read(
            listed.id,
            None,
            None,
            problem=listed.problem,
            is_unsupported=is_unsupported,
        )
    was_live = store.is_live(listed.id)
    try:
        stored = store.inspect(listed.id)
    except SessionNotFoundError:
        return None
    except StoreError as error:
        problem, is_unsupported = str(error), isinstance(error, UnsupportedError)
        events = None
        with suppress(StoreError):  # its problem was told
            events = store.read_from(listed.id, 0)
        return Read(
            listed.id,
            listed.header,
            events,
            is_live=was_live,
            problem=problem,
            is_unsupported=is_unsupported,
        )
    events = stored.events[: len(stored.events) - stored.closers]
    # What a writer has not finished is no torn tail.
    is_live = was_live or stored.is_live
    tail = "" if is_live else stored.tail
    closers = 0 if is_live else stored.closers
    return Read(listed.id, stored.header, events, closers, tail, is_live)


def _is_unsupported(store: SessionStore, session_id: str) -> bool:
    """Tell whether a session whose header cannot be read is of another build."""
    try:
        store.inspect(session_id)
    except StoreError as error:
        return isinstance(error, UnsupportedError)
    return False


def _reads(store: SessionStore, listed: Iterable[Listed]) -> Iterator[Read]:
    for each in listed:
        read = _read(store, each)
        if read is not None:
            yield read


# --- show, sessions ----------------------------------------------------------------


def show(where: str, session_id: str | None, *, as_json: bool) -> Result:
    """Show the trees of a store or a scenario, or one session of it.

    Args:
        where: a store's address, or the path of a scenario.
        session_id: the session to show event by event, with its subtree.
        as_json: whether to return an object.

    Raises:
        StoreError: if there is no such store or session.
        UnreadableError: if the scenario, or the session, cannot be read.
    """
    if not _is_address(where):
        return _show_scenario(where, session_id, as_json=as_json)
    one = None
    with _opened(where) as store:
        listed = _listed(store, session_id)
        headers = [each.header for each in listed if each.header is not None]
        found = places(headers)
        base = None
        if session_id is not None:
            wanted = below(session_id, headers)
            listed = [each for each in listed if each.id in wanted]
            base = found[session_id].path if session_id in found else None
        drawn: dict[str, Drawn] = {}
        for read in _reads(store, listed):
            drawn[read.id] = _drawn(read, found.get(read.id), base)
            one = read if read.id == session_id else one
    order = [each for each in found if each in drawn]
    order += [each for each in drawn if each not in found]
    trees = [
        [drawn[each] for each in tree]
        for _, tree in groupby(order, lambda each: _top(found.get(each), each))
    ]
    if session_id is None:
        return _trees(trees, as_json=as_json)
    if one is None:
        raise SessionNotFoundError(f"{where} holds no session {session_id!r} any more")
    return _detail(trees, one, as_json=as_json)


def _top(place: Place | None, session_id: str) -> str:
    return session_id if place is None else place.top


def _drawn(read: Read, place: Place | None, base: str | None) -> Drawn:
    if place is None:
        return Drawn(None, overview(read, None))
    path = place.path if place.is_rooted else None
    return Drawn(rebased(place.path, base), overview(read, path))


def _show_scenario(where: str, session_id: str | None, *, as_json: bool) -> Result:
    scenario = load_scenario(where)
    reads = recorded_reads(scenario)
    if session_id is None:
        tree = [_recorded(*each, None) for each in reads]
        return _trees([tree], as_json=as_json)
    found = [(read, path) for read, path, _ in reads if read.id == session_id]
    if not found:
        raise SessionNotFoundError(f"{where}: no session {session_id!r} is recorded")
    one, base = found[0]
    wanted = below(session_id, (r.header for r, _, _ in reads if r.header is not None))
    tree = [_recorded(*each, base) for each in reads if each[0].id in wanted]
    return _detail([tree], one, as_json=as_json)


def _recorded(read: Read, path: str | None, kind: str, base: str | None) -> Drawn:
    return Drawn(rebased(path, base), overview(read, path)._replace(kind=kind))


def _trees(trees: Sequence[Sequence[Drawn]], *, as_json: bool) -> Result:
    if as_json:
        told = [each.overview.to_json() for tree in trees for each in tree]
        return Result({"sessions": told})
    return Result(trees_text(trees))


def _detail(trees: Sequence[Sequence[Drawn]], read: Read, *, as_json: bool) -> Result:
    if read.header is None or read.events is None:
        raise StoreError(read.problem)
    if as_json:
        told = [each.overview.to_json() for tree in trees for each in tree]
        rows = [event.row() for event in read.events]
        return Result({"sessions": told, "closers": read.closers, "events": rows})
    texts = [trees_text(trees), session_text(read.events, read.header.seed_length)]
    if read.closers:
        texts.append(f"load closes the turn with {counted(read.closers, 'event')}")
    return Result("\n\n".join(text for text in texts if text))


def sessions(address: str, *, as_json: bool) -> Result:
    """List the sessions of a store.

    Args:
        address: the store's.
        as_json: whether to return an object.

    Raises:
        StoreError: if there is no such store, or it cannot be read.
    """
    with _opened(address) as store:
        found = [overview(read, None) for read in _reads(store, _listed(store, None))]
    if as_json:
        return Result({"sessions": [_listed_json(each) for each in found]})
    return Result(sessions_text(found))


def _listed_json(told: Overview) -> JsonObject:
    keys = ("id", "createdAt", "kind", "parent", "events", "state", "problem")
    row = told.to_json()
    return {key: row[key] for key in keys}


# --- export ------------------------------------------------------------------------


def export(
    address: str, session_id: str, output: Path | None, *, may_replace: bool
) -> Result:
    """Give a session as JSON Lines, as it is stored.

    Args:
        address: the store's.
        session_id: the session's.
        output: the file to write, whole or not at all; None to return the lines.
        may_replace: whether that may be there already.

    Raises:
        StoreError: if there is no such store or session, it cannot be read, or the
            file cannot be written.
    """
    with _opened(address) as store:
        listed = _listed(store, session_id)
        one = next(each for each in listed if each.id == session_id)
        if one.header is None:
            raise StoreError(one.problem)
        lines = encode_header(one.header) + encode_rows(store.read_from(session_id, 0))
    if output is None:
        return Result(lines)
    try:
        _write(output, lines, may_replace=may_replace)
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"{output}: cannot write: {reason}") from None
    return Result("")


def _write(path: Path, content: bytes, *, may_replace: bool) -> None:
    if os.path.lexists(path):
        if not may_replace:
            raise StoreError(f"{path}: exists already, expected --force or a new name")
        if path.is_symlink() or not path.is_file():
            raise StoreError(f"{path}: found no regular file, expected one")
    fd, name = tempfile.mkstemp(prefix=".nestling-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if may_replace:
            os.replace(temporary, path)
        else:
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _link(temporary: Path, path: Path) -> None:
    """Give a file its name, which nothing may have; a rename would take it away."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        if os.path.lexists(path):
            raise
        os.replace(temporary, path)


# --- verify ------------------------------------------------------------------------


def verify(address: str, session_id: str | None, *, as_json: bool) -> Result:
    """Check every rule of a store's sessions.

    Args:
        address: the store's.
        session_id: the only session to check; what it inherited is, too.
        as_json: whether to return an object.

    Raises:
        StoreError: if there is no such store or session, or the store itself cannot be
            read.
    """
    with _opened(address) as store:
        listed = _listed(store, session_id)
        found = list(_findings(store, listed, session_id))
    if session_id is not None:
        found = [each for each in found if each.session == session_id]
    findings = [each for each in found if not each.is_remark]
    remarks = [each for each in found if each.is_remark]
    exit_code = EXIT_FAILED if findings else EXIT_OK
    count = len(listed) if session_id is None else 1
    if as_json:
        output: JsonObject = {
            "verdict": "failed" if findings else "ok",
            "findings": [_finding_json(each) for each in findings],
            "remarks": [_finding_json(each) for each in remarks],
            "sessions": count,
        }
        return Result(output, exit_code)
    lines = [f"remark: {each.line}" for each in remarks]
    lines += [each.line for each in findings]
    checked = counted(count, "session")
    if findings:
        verdict = f"failed: {address}, {counted(len(findings), 'finding')} in {checked}"
    else:
        verdict = f"ok: {address}, {checked}"
    return Result("\n".join(map(shown, [*lines, verdict])), exit_code)


def _finding_json(finding: Finding) -> JsonObject:
    return {"session": finding.session, "seq": finding.seq, "message": finding.text}


def _findings(
    store: SessionStore, listed: Sequence[Listed], session_id: str | None
) -> Iterator[Finding]:
    headers = {each.id: each.header for each in listed if each.header is not None}
    wanted = {each.id for each in listed}
    if session_id is not None:
        one = headers.get(session_id)
        wanted = {session_id, "" if one is None else one.parent_session or ""}
    longest = _longest_seeds(headers.values())
    imprints: dict[str, Imprint] = {}
    for read in _reads(store, (each for each in listed if each.id in wanted)):
        yield from _read_findings(read)
        if read.header is not None and read.events is not None:
            inherited = longest.get(read.id, 0)
            imprints[read.id] = imprint(read.header, read.events, inherited)
    stored = {each.id for each in listed}
    yield from lineage_findings(headers.values(), stored, imprints)


def _longest_seeds(headers: Iterable[Header]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for header in headers:
        parent = header.parent_session
        if parent is not None:
            longest[parent] = max(longest.get(parent, 0), header.seed_length)
    return longest


def _read_findings(read: Read) -> Iterator[Finding]:
    if read.problem:
        yield Finding(read.id, None, f"load refuses it: {read.problem}")
    if read.tail:
        yield Finding(read.id, None, f"it has a torn tail, load drops it: {read.tail}")
    if read.header is not None and read.events is not None:
        yield from log_findings(read.header, read.events, is_live=read.is_live)

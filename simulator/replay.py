"""A recorded log again: fold it, and ask what another policy would have decided.

`replay` folds a log and tells its incidents with the core's own words. `whatif` walks the log; at
every decision of the controller it takes the state just before and has `settle` decide once under
the recorded policy and once under the new one. The first place where they part is what is shown,
with both reasons and what the difference is worth. What follows a changed decision is not in any
log, so nothing after it is claimed; what the difference itself is worth is `costing`'s to say.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from simulator.costing import Cost, concerned, cost_of
from simulator.errors import BadLog
from statemachine import events as e
from statemachine.checksums import without_checksum
from statemachine.codec import decode_recorded
from statemachine.decide import decide
from statemachine.decision import Decision
from statemachine.errors import ChangeoverError
from statemachine.evolve import evolve
from statemachine.incidents import Incident, incidents
from statemachine.policy import Policy
from statemachine.state import FleetState


def read_log(path: Path) -> list[e.Recorded]:
    """Read an exported log: one entry a line, positions dense.

    Raises:
        BadLog: names the file, the line and what is wrong with it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadLog(f"{path}: cannot be read: {error.strerror}") from error
    log: list[e.Recorded] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = decode_recorded(without_checksum(line))
        except ChangeoverError as error:
            raise BadLog(f"{path}: line {number}: {error}") from error
        if log and entry.position != log[-1].position + 1:
            found = f"position {entry.position} follows {log[-1].position}"
            raise BadLog(f"{path}: line {number}: {found}; entries are missing")
        log.append(entry)
    if not log:
        raise BadLog(f"{path}: no entry; `changeover log export` writes one a line")
    return log


class Replay(Struct, frozen=True, kw_only=True):
    """A log in short."""

    entries: int
    nodes: int
    jobs: int
    epoch: int
    first_at_ms: int
    last_at_ms: int
    incidents: tuple[Incident, ...]
    downtime_ms: float


def replay(log: Sequence[e.Recorded]) -> Replay:
    """Fold a log and tell it."""
    state = FleetState()
    for entry in log:
        state = evolve(state, entry)
    found = incidents(log)
    return Replay(
        entries=len(log),
        nodes=len(state.nodes),
        jobs=len(state.jobs),
        epoch=max((state.jobs[job].epoch for job in state.jobs), default=0),
        first_at_ms=log[0].at_ms,
        last_at_ms=log[-1].at_ms,
        incidents=found,
        downtime_ms=sum(each.downtime_ms or 0.0 for each in found),
    )


class Divergence(Struct, frozen=True, kw_only=True):
    """The first decision that another policy takes otherwise."""

    position: int
    at_ms: int
    recorded: str
    """Reason of the decision under the policy of the log; empty if it decided nothing."""
    other: str
    kinds: tuple[str, ...]
    other_kinds: tuple[str, ...]
    because: str
    incident: str = ""
    downtime_ms: float | None = None
    """What the log's own incident took."""
    cost_ms: float | None = None
    """What the other decision would have cost the job; below 0: saved; None: not in the log."""
    cost_because: str = ""


class WhatIf(Struct, frozen=True, kw_only=True):
    """How far two policies agree on a log."""

    compared: int
    agreed: int
    divergence: Divergence | None
    notes: tuple[str, ...]


def whatif(log: Sequence[e.Recorded], policy: Policy) -> WhatIf:
    """Decide every state of a log under another policy, until one decision differs."""
    compared = 0
    for state, now_ms in _states(log):
        compared += 1
        recorded = decide(state, now_ms, state.policy)
        other = decide(state, now_ms, policy)
        if _same(recorded, other):
            continue
        cost = cost_of(log, state, now_ms, (recorded, other), policy)
        found = _divergence(log, state, now_ms, (recorded, other), cost)
        return WhatIf(compared=compared, agreed=compared - 1, divergence=found, notes=_NOTES)
    return WhatIf(compared=compared, agreed=compared, divergence=None, notes=_NOTES)


_NOTES = (
    "verdicts in the log are facts: the detector is not run again without its vitals",
    "what would have followed the other decision is not in the log and not claimed",
)


def _states(log: Sequence[e.Recorded]) -> Iterator[tuple[FleetState, int]]:
    """The states that a controller decides from: after each batch of facts, before each of its
    own decisions at its time, and just before the next entry, when a deadline may have come. In
    the middle of a decision nobody decides: the plan of a launch of thousands is a hundred entries.
    """
    state = FleetState()
    for place, entry in enumerate(log):
        state = evolve(state, entry)
        after = log[place + 1] if place + 1 < len(log) else None
        if after is None or after.at_ms > state.at_ms:
            yield state, state.at_ms
        if after is not None and after.at_ms > state.at_ms + 1:
            yield state, after.at_ms - 1
        if after is not None and after.decided_from == state.position:
            yield state, after.at_ms


def _shape(decision: Decision | None) -> tuple[object, ...]:
    """What a decision does, without its deadlines: these differ when only a timeout does."""
    if decision is None:
        return ()
    found: list[object] = []
    for event in decision.events:
        named = [getattr(event, name, None) for name in ("node", "changes", "rounds", "outcome")]
        found.append((type(event).__name__, *named))
    return tuple(found)


def _same(one: Decision | None, other: Decision | None) -> bool:
    return _shape(one) == _shape(other)


def _divergence(
    log: Sequence[e.Recorded],
    state: FleetState,
    now_ms: int,
    decisions: tuple[Decision | None, Decision | None],
    cost: Cost,
) -> Divergence:
    recorded, other = decisions
    names = concerned(recorded) | concerned(other)
    told = next(
        (
            each
            for each in incidents(log)
            if {each.node, each.replacement} & names and each.planned >= state.position
        ),
        None,
    )
    return Divergence(
        position=state.position,
        at_ms=now_ms,
        recorded=recorded.reason if recorded is not None else "",
        other=other.reason if other is not None else "",
        kinds=tuple(type(x).__name__ for x in recorded.events) if recorded else (),
        other_kinds=tuple(type(x).__name__ for x in other.events) if other else (),
        because=_because(recorded, other),
        incident=f"{told.kind} of {told.node}, slot {told.slot}" if told is not None else "",
        downtime_ms=told.downtime_ms if told is not None else None,
        cost_ms=cost.ms,
        cost_because=cost.because,
    )


def _because(recorded: Decision | None, other: Decision | None) -> str:
    if recorded is None and other is not None:
        return f"the log's policy waits here; the other decides: {other.reason}"
    if other is None and recorded is not None:
        return f"the log's policy decides: {recorded.reason}; the other waits"
    assert recorded is not None
    assert other is not None
    return f"the log's policy decides: {recorded.reason}; the other: {other.reason}"

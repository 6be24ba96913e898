"""The detector over recorded vitals: the verdicts that fell, or would have under another policy.

What belongs here: reading a recording, and running the detector of production on it. A recording is
what a controller keeps (`CHANGEOVER_VITALS_HISTORY`): a line for each batch with the clock's time,
and one for each node that was forgotten meanwhile. Lines of bare vitals are read as well, each as a
batch of its own at the time at which its window ended.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct, convert, json
from msgspec.structs import replace

from simulator.errors import BadTrace
from statemachine.detector import DetectorState, forgotten, observe
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import VerdictIssued, VerdictWithdrawn
from statemachine.ids import NodeId
from statemachine.policy import policy_of
from statemachine.vitals import Vitals


class Entry(Struct, frozen=True, kw_only=True):
    """One line of a recording."""

    at_ms: int = 0
    batch: tuple[Vitals, ...] | None = None
    forgotten: NodeId | None = None
    withdrawn: NodeId | None = None
    policy: dict[str, Any] | None = None


class Said(Struct, frozen=True, kw_only=True):
    """A judgement, and when it fell, Unix ms."""

    at_ms: int
    judgement: VerdictIssued | VerdictWithdrawn


class Detected(Struct, frozen=True, kw_only=True):
    """What the detector made of a recording."""

    windows: int
    nodes: int
    said: tuple[Said, ...]
    notes: tuple[str, ...]


def detect(path: Path, policy: DetectorPolicy | None = None) -> Detected:
    """Run the detector on a recording, under the policies recorded in it unless one is given.

    Raises:
        BadTrace: the file cannot be read; the line that is none is named.
    """
    state, now = DetectorState(), policy or DetectorPolicy()
    said: list[Said] = []
    notes: dict[str, None] = {}
    nodes: set[NodeId] = set()
    windows = 0
    for entry in read(path):
        if entry.policy is not None and policy is None:
            now = policy_of(entry.policy, str(path)).detector
        if entry.forgotten is not None:
            state = forgotten(state, entry.forgotten)
        if entry.withdrawn is not None:
            state = replace(state, standing=state.standing.discard(entry.withdrawn))
        if entry.batch is None:
            continue
        seen = observe(state, entry.batch, entry.at_ms, now)
        state = seen.state
        windows += len(entry.batch)
        nodes.update(vitals.node for vitals in entry.batch)
        notes |= dict.fromkeys(seen.notes)
        said += [Said(at_ms=entry.at_ms, judgement=judged) for judged in seen.judgements]
    return Detected(windows=windows, nodes=len(nodes), said=tuple(said), notes=tuple(notes))


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a recording.

    Raises:
        BadTrace: as `detect` does.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _entry(path, number, line)
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error


def _entry(path: Path, number: int, line: bytes) -> Entry:
    try:
        found = json.decode(line)
        if isinstance(found, dict) and "metrics" in found:
            vitals = convert(found, Vitals)
            return Entry(at_ms=vitals.ended_at_ms, batch=(vitals,))
        return convert(found, Entry)
    except MsgspecError as error:
        raise BadTrace(f"{path}:{number}: no recorded vitals: {error}") from error

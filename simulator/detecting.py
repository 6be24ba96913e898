"""The detector over recorded vitals: the verdicts that fell, or would have under another policy.

What belongs here: running the detector of production on a recording. Reading one: `recordings`.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from simulator.recordings import read
from statemachine.detector import DetectorState, forgotten, observe
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import VerdictIssued, VerdictWithdrawn
from statemachine.ids import NodeId
from statemachine.policy import policy_of


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

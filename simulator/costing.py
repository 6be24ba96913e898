"""What a decision that differs would have cost or saved, as far as a log can tell.

Rule: nothing is claimed that is not in the log or in the rules. If one policy acts and the other
waits, the difference is the time between the two acts: the log says when the recorded policy acted,
and the rules say when the other would, if nothing else happened. A job that stands still loses all
of that time, one with a slow node the share that it runs too long, any other none. If both act,
but differently, what the other act takes is in no log.
"""

from collections.abc import Sequence

from msgspec import Struct

from statemachine import events as e
from statemachine.decide import next_deadline, settle
from statemachine.decision import Decision
from statemachine.ids import NodeId
from statemachine.policy import Policy
from statemachine.state import FleetState
from statemachine.vitals import WAIT_MS, WORK_MS

WAITS_MAX = 1000
"""Deadlines that are tried until the other policy is taken for one that never acts."""


class Cost(Struct, frozen=True):
    """Milliseconds of the job that the other policy would have cost; below 0: saved; None: not
    known. `because` says how it comes to that.
    """

    ms: float | None
    because: str


def cost_of(
    log: Sequence[e.Recorded],
    state: FleetState,
    now_ms: int,
    decisions: tuple[Decision | None, Decision | None],
    other: Policy,
) -> Cost:
    """What the other policy's decision would have cost, given the recorded one and the other."""
    recorded, changed = decisions
    if recorded is not None and changed is not None:
        if _plans(recorded) == _plans(changed):
            return Cost(None, "both act, differently: what the other act takes is not in the log")
        # One fills a slot, the other does something beside it: as to the slot, it waits.
        recorded, changed = (recorded, None) if _plans(recorded) else (None, changed)
    share, why = _loses(state, recorded or changed)
    if recorded is not None:
        at_ms = _acts_at(state, now_ms, other, plans=_plans(recorded))
        if at_ms is None:
            left_ms = log[-1].at_ms - now_ms
            return Cost(left_ms * share, f"it never acts by itself; to the end of the log, {why}")
        return Cost((at_ms - now_ms) * share, f"it acts {at_ms - now_ms} ms later; {why}")
    acted_ms = _acted_at(log, state, concerned(changed))
    if acted_ms is None:
        return Cost(None, "the log's policy never acted on it: what the act costs is not there")
    at_ms = _acts_at(state, state.at_ms, other, plans=changed is not None and _plans(changed))
    sooner_ms = acted_ms - min(now_ms, at_ms or now_ms)
    return Cost(-sooner_ms * share, f"the log acts {sooner_ms} ms later; {why}")


def concerned(decision: Decision | None) -> set[str]:
    """Nodes that a decision names."""
    names: set[str] = set()
    for event in decision.events if decision is not None else ():
        names.add(getattr(event, "node", ""))
        for change in getattr(event, "changes", ()):
            names.update((change.leaver, change.joiner))
    return names - {""}


def _loses(state: FleetState, decision: Decision | None) -> tuple[float, str]:
    """The share of its time that the job loses meanwhile, and why."""
    if any(state.jobs[name].vacant for name in state.open_jobs) or state.accused:
        return 1.0, "the job stands still"
    verdicts = [state.nodes[NodeId(n)].verdict for n in concerned(decision) if n in state.nodes]
    factor = max((_longer(each) for each in verdicts if each is not None), default=1.0)
    if factor > 1:
        return 1 - 1 / factor, f"the job runs {factor:.2f}x as long"
    return 0.0, "the job runs as ever"


def _longer(verdict: e.VerdictIssued) -> float:
    """How many times as long a step is because of a node, by what its verdict says.

    A step takes the slow node its own work and what it waits all the same; without it that work
    would take what it takes the peers. Where work is no indicator, the worst of them counts whole.
    """
    found = {indicator.metric: indicator for indicator in verdict.indicators}
    work = found.get(WORK_MS)
    if work is None:
        ratios = [each.value / each.peers_median for each in found.values() if each.peers_median]
        return max(ratios, default=1.0)
    wait_ms = found[WAIT_MS].value if WAIT_MS in found else 0.0
    usual_ms = work.peers_median + wait_ms
    return (work.value + wait_ms) / usual_ms if usual_ms > 0 else 1.0


def _plans(decision: Decision) -> bool:
    """Whether a decision gives a slot away."""
    return any(isinstance(event, e.TransitionPlanned) for event in decision.events)


def _acts_at(state: FleetState, now_ms: int, policy: Policy, *, plans: bool) -> int | None:
    """When a policy would act on a state if nothing else happened; None if no wait of its own can
    be what it waits for: rehearsals that nobody answers are begun anew for ever.
    """
    at_ms: int | None = now_ms
    ends_ms = now_ms + 2 * _waits_ms(policy)
    for _ in range(WAITS_MAX):
        if at_ms is None or at_ms > ends_ms:
            return None
        settled = settle(state, at_ms, "simctl", policy)
        planned = any(isinstance(r.event, e.TransitionPlanned) for r in settled.recorded)
        if planned if plans else settled.recorded:
            return at_ms
        state = settled.state
        at_ms = next_deadline(state, at_ms, policy)
    return None


def _waits_ms(policy: Policy) -> int:
    """All times of a policy after each other: nothing that it waits for by itself is later."""
    names = [name for name in policy.__struct_fields__ if name.endswith(("_s", "_s_max"))]
    times_s = [float(getattr(policy, name)) for name in names]
    return int(1000 * sum(times_s))


def _acted_at(log: Sequence[e.Recorded], state: FleetState, names: set[str]) -> int | None:
    """When the log's own policy decided something about the same nodes."""
    for entry in log:
        if entry.position <= state.position or not entry.decided_from:
            continue
        about = {getattr(entry.event, "node", "")}
        for change in getattr(entry.event, "changes", ()):
            about.update((change.leaver, change.joiner))
        if about & names:
            return entry.at_ms
    return None

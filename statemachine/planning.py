"""What the rules about jobs share: drawing up a plan, giving one up, and who of it is gone."""

from statemachine import events as e
from statemachine.choose import Choice
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Incarnation, NodeId, Position, Slot, TransitionId
from statemachine.lifecycle import NodeState, Phase
from statemachine.state import FleetState, Job, Node, Transition
from statemachine.transition import required_members


def open_jobs(state: FleetState) -> list[Job]:
    """Jobs that are not finished, by name."""
    return [state.jobs[name] for name in sorted(state.jobs) if not state.jobs[name].finished]


def change_of(slot: Slot, joiner: Node, leaver: Node | None = None) -> e.Change:
    """One slot's change of hands."""
    return e.Change(
        slot=slot,
        joiner=joiner.node,
        joiner_incarnation=joiner.incarnation,
        leaver=leaver.node if leaver is not None else NodeId(""),
        leaver_incarnation=leaver.incarnation if leaver is not None else Incarnation(0),
    )


def plan_of(
    state: FleetState,
    job: Job,
    motive: e.Motive,
    changes: tuple[e.Change, ...],
    now_ms: int,
    *,
    deadline_s: float,
    reason: str,
    evidence: tuple[int, ...] = (),
    choices: tuple[Choice, ...] = (),
) -> e.TransitionPlanned:
    """The next transition of a job; whoever must acknowledge follows from motive and layout."""
    return e.TransitionPlanned(
        job=job.job,
        transition=TransitionId(job.last_transition + 1),
        motive=motive,
        from_epoch=job.epoch,
        changes=changes,
        required=required_members(motive, job.layout, changes, live_holders(state, job)),
        deadline_at_ms=now_ms + round(deadline_s * 1000),
        reason=reason,
        evidence=tuple(Position(position) for position in evidence),
        replaces=job.pending.plan.transition if job.pending is not None else TransitionId(0),
        considered=tuple(line for choice in choices for line in choice.considered),
    )


def gone_members(state: FleetState, pending: Transition) -> tuple[NodeId, ...]:
    """Members that a pending transition waits for and that are no more."""
    plan = pending.plan
    expected = {change.joiner: change.joiner_incarnation for change in plan.changes}
    expected |= {c.leaver: c.leaver_incarnation for c in plan.changes if c.leaver}
    leavers = {c.leaver for c in plan.changes}
    gone = []
    for name in plan.required:
        if name in leavers and pending.phase is Phase.COMMITTED:
            continue
        node = state.nodes.get(name)
        away = node is None or node.state in (NodeState.LOST, NodeState.GONE)
        reborn = node is not None and expected.get(name, node.incarnation) != node.incarnation
        if away or reborn or (node is not None and _left_its_slot(node, name, expected)):
            gone.append(name)
    return tuple(gone)


def _left_its_slot(node: Node, name: NodeId, expected: dict[NodeId, Incarnation]) -> bool:
    return name not in expected and node.slot < 0


def abort_of(
    job: Job,
    pending: Transition,
    reason: str,
    blockers: tuple[NodeId, ...] = (),
    *,
    retry_after_s: float = 0.0,
) -> Decision:
    """Give a transition up before its commit; the next attempt waits `retry_after_s`."""
    event = e.TransitionAborted(
        job=job.job,
        transition=pending.plan.transition,
        reason=reason,
        blockers=blockers,
        retry_after_ms=round(retry_after_s * 1000),
    )
    return Decision((event,), reason)

"""What the rules about jobs share: drawing up a plan, giving one up, and why a node shall leave."""

from msgspec.structs import replace

from statemachine import events as e
from statemachine import parts
from statemachine.choose import Choice
from statemachine.decision import Decision
from statemachine.evolve_transitions import required_of
from statemachine.ids import Incarnation, NodeId, Position, Slot, TransitionId
from statemachine.lifecycle import AWAY_STATES, NodeState, Phase
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Node, Transition, is_harmful


def open_jobs(state: FleetState) -> list[Job]:
    """Jobs that are not finished, by name."""
    return [state.jobs[name] for name in state.open_jobs]


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
    drops: tuple[e.Drop, ...] = (),
    asks_saves: bool = False,
) -> tuple[e.AnyEvent, ...]:
    """The next transition of a job, in as many events as it takes; whoever must acknowledge follows
    from motive and layout.
    """
    plan = e.TransitionPlanned(
        job=job.job,
        transition=TransitionId(job.last_transition + 1),
        motive=motive,
        from_epoch=job.epoch,
        changes=changes,
        required=(),
        deadline_at_ms=now_ms + round(deadline_s * 1000),
        reason=reason,
        evidence=parts.evidence(evidence),
        replaces=job.pending.plan.transition if job.pending is not None else TransitionId(0),
        considered=parts.considered(line for choice in choices for line in choice.considered),
        drops=drops,
        givers=givers_of(state, job) if motive is e.Motive.UNPLANNED else (),
        asks_saves=asks_saves,
    )
    return parts.plan_in_parts(replace(plan, required=required_of(state, job, plan)))


def prepare_s(state: FleetState, job: Job, changes: tuple[e.Change, ...], policy: Policy) -> float:
    """How long a preparation may take, in seconds: a joiner that has not rehearsed its role builds
    that role's parts first, and may have to compile them; where there is one role it has them.
    """
    layout = job.layout
    cold = len(job.roles) > 1 and any(
        not state.nodes[change.joiner].warm_for(job.job, layout.role_of(change.slot))
        for change in changes
    )
    return policy.warmup_deadline_s if cold else policy.prepare_deadline_s


def losses_of(state: FleetState, job: Job) -> tuple[int, ...]:
    """Where the log says that the holders of the vacant slots are no more."""
    holders = (state.nodes[job.holders[slot]] for slot in sorted(job.vacant))
    return tuple(sorted({node.ended_position for node in holders if node.ended_position}))


def abort_of(
    job: Job,
    pending: Transition,
    reason: str,
    blockers: tuple[NodeId, ...] = (),
    *,
    retry_after_s: float = 0.0,
    stalls: bool = False,
    evidence: tuple[Position, ...] = (),
) -> Decision:
    """Give a transition up before its commit; the next attempt waits `retry_after_s`."""
    event = e.TransitionAborted(
        job=job.job,
        transition=pending.plan.transition,
        reason=reason,
        blockers=blockers[: parts.LISTED_MAX],
        retry_after_ms=round(retry_after_s * 1000),
        stalls=stalls,
        evidence=evidence or (pending.position,),
    )
    return Decision((event,), reason)


def because(*nodes: Node) -> tuple[Position, ...]:
    """Where the log says why something is decided about these nodes: what an operator wanted, the
    verdict, or the end of a life; else where they were put last, or became ready. For `explain`.
    """
    found: set[Position] = set()
    for node in nodes:
        if node.wanted_out:
            found.add(node.wanted_position)
        if is_harmful(node.verdict):
            found.add(node.verdict_position)
        if node.state in AWAY_STATES:
            found.add(node.ended_position)
    if not found - {0}:
        found = {node.placed_position or node.ready_position for node in nodes}
    return parts.evidence(sorted(found))


def is_engaged(job: Job | None, node: Node) -> bool:
    """Whether an incarnation must stay where it is: it gets or gives a slot in what is pending, or
    gave one away and may be the only one that holds the state of it.

    A healthy leaver whose joiner died is let go: it may take the slot again.
    """
    if job is None:
        return False
    pending = job.pending
    over = pending is None or (pending.phase is Phase.COMMITTED and pending.gone)
    if pending is not None and not over and _moves(pending.plan, node):
        return True
    if node.state is not NodeState.LEAVING:
        return False
    given = [slot for slot in job.unproven if job.givers.get(slot) == node.node]
    healthy = node.wanted_out == "switchover" and not is_harmful(node.verdict)
    return any(not (healthy and slot in job.vacant) for slot in given)


def _moves(plan: e.TransitionPlanned, node: Node) -> bool:
    life = node.node, node.incarnation
    lives = [(c.joiner, c.joiner_incarnation) for c in plan.changes]
    lives += [(c.leaver, c.leaver_incarnation) for c in plan.changes]
    lives += [(drop.node, drop.incarnation) for drop in plan.drops]
    lives += [(giver.node, giver.incarnation) for giver in plan.givers]
    return life in lives


def givers_of(state: FleetState, job: Job) -> tuple[e.Giver, ...]:
    """Those who gave an unproven slot away and are still leaving."""
    found = []
    for slot in sorted(job.unproven):
        node = state.nodes.get(job.givers.get(slot, NodeId("")))
        if node is not None and node.state is NodeState.LEAVING and node.job == job.job:
            found.append(e.Giver(slot=slot, node=node.node, incarnation=node.incarnation))
    return tuple(found)


def why_out(state: FleetState, node: Node, policy: Policy) -> str:
    """Why a node shall give its slot away, by an operator's act or by its verdict; else empty."""
    if node.wanted_out in ("drain", "switchover", "quarantine"):
        return f"{node.wanted_out} by {node.wanted_out_by}"
    verdict = node.verdict
    if verdict is None or not is_harmful(verdict) or state.paused_by or policy.shadow:
        return ""
    return f"{verdict.verdict}: {verdict.reason}"


def budget_left(state: FleetState, now_ms: int, policy: Policy) -> int:
    """How many more nodes may be taken out for their health in the present window."""
    horizon = now_ms - round(policy.harmful_window_s * 1000)
    used = sum(1 for at in state.harmful_at_ms if at > horizon)
    allowed = max(policy.harmful_nodes_max, int(policy.harmful_share_max * state.present))
    return max(0, allowed - used)

"""Deciding how a job is repaired: the lost are replaced, the parked are brought together again."""

from statemachine import events as e
from statemachine.choose import Choice, choose_joiner
from statemachine.decide_capacity import restart, without_replicas
from statemachine.decision import Decision
from statemachine.evolve_transitions import may_lack_state
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState, Phase
from statemachine.parts import brief
from statemachine.parts import evidence as positions
from statemachine.planning import (
    abort_of,
    change_of,
    losses_of,
    open_jobs,
    plan_of,
    prepare_s,
)
from statemachine.policy import Policy
from statemachine.state import FleetState, Job, Transition


def replace_lost(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Fill the slots of lost nodes, and give state to whoever lacks it; a further loss while a
    transition is pending is planned in.
    """
    for job in open_jobs(state):
        if not job.launched or not _needs_repair(state, job, now_ms):
            continue
        if job.stalled and job.saves_asked:
            decision = restart(state, job, job.stalled) if "restart" in policy.on_loss else None
        elif now_ms < job.cooldown_until_ms:
            continue
        else:
            decision = _repair(state, job, now_ms, policy)
        if decision is not None:
            return decision
    return None


def mend_groups(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Give every member new groups where one broke although nobody died: all park, agree on the
    step, and go on with the same members.
    """
    for job in open_jobs(state):
        if job.broken is None or job.vacant or job.stalled or now_ms < job.cooldown_until_ms:
            continue
        pending = job.pending
        if pending is not None and pending.phase is Phase.COMMITTED:
            continue
        if pending is not None and pending.plan.motive is not e.Motive.PLANNED:
            continue
        reason = f"new groups for all: {job.broken.node} is parked ({job.broken.cause})"
        evidence = (job.broken_position,)
        return _plan_repair(state, job, (), now_ms, policy, words=[reason], evidence=evidence)
    return None


def _needs_repair(state: FleetState, job: Job, now_ms: int) -> bool:
    pending = job.pending
    if pending is None:
        return bool(job.stalled) or len(job.vacant) > 0 or len(job.unproven) > 0
    if pending.phase is Phase.COMMITTED:
        return bool(pending.gone or _why_hopeless(state, job, pending, now_ms))
    covered = {c.slot for c in pending.plan.changes} | {d.slot for d in pending.plan.drops}
    return any(slot not in covered for slot in job.vacant)


def _why_hopeless(state: FleetState, job: Job, pending: Transition, now_ms: int) -> str:
    """Why a committed planned transition cannot come to its end although every member lives.

    A leaver is no member, but it may be the only one that holds what a joiner needs. And if the
    boundary does not come by the deadline, no one in particular is to blame: the way out of both is
    to park everybody, who then say where they stand.
    """
    commit = pending.committed
    planned = pending.plan.motive is e.Motive.PLANNED
    if commit is None:
        return ""
    if planned and job.broken is not None:
        return f"{job.broken.node} is parked before the boundary ({job.broken.cause})"
    for handover in commit.handovers:
        if handover.joiner in pending.applied or handover.kind != "leaver":
            continue
        if not any(_is_leaving(state, name) for name in handover.sources):
            gone = brief(handover.sources, ", ")
            return f"{handover.joiner} cannot have the state of {gone}, which is gone"
    if not planned:
        return ""
    if now_ms >= commit.deadline_at_ms:
        return f"no boundary by the commit deadline of transition {commit.transition}"
    return ""


def _is_leaving(state: FleetState, name: NodeId) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.state is NodeState.LEAVING


def _repair(state: FleetState, job: Job, now_ms: int, policy: Policy) -> Decision | None:
    """The first of the policy's answers to a loss that is possible."""
    if not job.vacant:
        return _plan_repair(state, job, (), now_ms, policy, words=[_why_parked(state, job, now_ms)])
    for option in (*policy.on_loss, "wait"):
        match option:
            case "standby" | "cold":
                choices = _fill(state, job, cold=option == "cold")
                decision = _plan_fill(state, job, choices, now_ms, policy)
            case "shrink":
                decision = without_replicas(state, job, now_ms, policy)
            case "restart":
                decision = restart(state, job, "slots are lost and no node can take them")
            case _:
                ends_at_ms = job.vacant_since_ms + round(policy.loss_wait_s * 1000)
                if policy.on_loss[-1:] == ("wait",) or now_ms < ends_at_ms:
                    return None  # the next node that becomes ready wakes this rule
                decision = None
        if decision is not None:
            return decision
    return None


def _why_parked(state: FleetState, job: Job, now_ms: int) -> str:
    why = _why_hopeless(state, job, job.pending, now_ms) if job.pending is not None else ""
    slots = brief((str(slot) for slot in sorted(job.unproven)), ", ") or "no slot"
    return why or f"the state of slots {slots} was never seen to arrive"


def _fill(state: FleetState, job: Job, *, cold: bool) -> dict[Slot, Choice]:
    """The choice for each vacant slot; one that finds nobody ends the search."""
    taken: set[NodeId] = set()
    choices: dict[Slot, Choice] = {}
    for slot in sorted(job.vacant):
        choices[slot] = choice = choose_joiner(state, job, slot, taken, cold=cold)
        if choice.node is None:
            break
        taken.add(choice.node.node)
    return choices


def _why_repaired(state: FleetState, job: Job) -> tuple[int, ...]:
    """Where the log says why a job is repaired although no slot is vacant."""
    if job.broken is not None:
        return (job.broken_position,)
    pending = job.pending
    commit = pending.committed if pending is not None else None
    if pending is None or commit is None:
        return positions((job.ended_position or job.declared_position,))
    givers = {name for each in commit.handovers for name in each.sources}
    gone = [state.nodes[name] for name in sorted(givers) if name in state.nodes]
    ends = [node.ended_position for node in gone if node.ended_position > pending.position]
    return positions((pending.committed_position, *sorted(ends)))


def _plan_fill(
    state: FleetState, job: Job, choices: dict[Slot, Choice], now_ms: int, policy: Policy
) -> Decision | None:
    changes, words = [], []
    for slot, choice in choices.items():
        if choice.node is None:
            return None
        changes.append(change_of(slot, choice.node))
        gone = job.holders.get(slot, "nobody")
        words.append(f"{choice.node.node} takes slot {slot} of {gone} ({choice.reason})")
    return _plan_repair(
        state, job, tuple(changes), now_ms, policy, words=words, choices=tuple(choices.values())
    )


def _plan_repair(
    state: FleetState,
    job: Job,
    changes: tuple[e.Change, ...],
    now_ms: int,
    policy: Policy,
    *,
    words: list[str],
    choices: tuple[Choice, ...] = (),
    evidence: tuple[int, ...] = (),
) -> Decision:
    events: list[e.AnyEvent] = []
    reason = brief(words)
    plan = plan_of(
        state,
        job,
        e.Motive.UNPLANNED,
        changes,
        now_ms,
        deadline_s=prepare_s(state, job, changes, policy),
        reason=reason,
        evidence=evidence or losses_of(state, job) or _why_repaired(state, job),
        choices=choices,
        asks_saves=bool(job.stalled) or may_lack_state(job),
    )
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        events += abort_of(job, job.pending, "overtaken by a further loss").events
    return Decision((*events, *plan), reason)

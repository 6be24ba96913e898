"""Deciding how large a job is: without the replicas that nobody can fill, whole again, or anew.

Theory of operation. A job is shrunk by whole data-parallel replicas: every slot of a replica is
left empty, and its live holders belong to the pool. The layout stays; what changes is who takes
part. Data order: a batch is split in as many parts as the layout says, and the parts of absent
replicas are not computed; the mean is over those that were. The run of a shrunk job is therefore
another run than that of a whole one, on purpose and by policy, and comes back to the same order of
data when it is grown.
"""

from statemachine import events as e
from statemachine.choose import Choice, choose_joiner
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import Phase
from statemachine.parts import brief, evidence
from statemachine.planning import abort_of, because, change_of, losses_of, open_jobs, plan_of
from statemachine.policy import Policy
from statemachine.replicas import part_of, slots_of_part
from statemachine.state import FleetState, Job


def without_replicas(state: FleetState, job: Job, now_ms: int, policy: Policy) -> Decision | None:
    """Fill what the policy would rather fill, and go on without the replicas of the other vacant
    slots.
    """
    rather = policy.on_loss[: policy.on_loss.index("shrink")]
    fills = "standby" in rather or "cold" in rather
    taken: set[NodeId] = set()
    absent: set[int] = set()
    choices: dict[Slot, Choice] = {}
    for slot in sorted(job.vacant):
        part = part_of(job.layout, slot)
        if part is None:
            return None  # its ranks belong to several replicas
        choice = choose_joiner(state, job, slot, taken, cold="cold" in rather)
        if choice.node is None or not fills:
            absent.add(part)
        else:
            taken.add(choice.node.node)
            choices[slot] = choice
    if len(_parts(job)) - len(absent) < policy.replicas_min:
        return None
    kept = {s: c for s, c in choices.items() if part_of(job.layout, s) not in absent}
    changes = tuple(change_of(s, c.node) for s, c in kept.items() if c.node is not None)
    drops = _drops(state, job, absent)
    listed = brief((str(part) for part in sorted(absent)), ", ")
    why = "no node for every vacant slot" if fills else "the policy rather shrinks than fills"
    reason = f"{why}: the job goes on without replicas {listed}"
    events: list[e.AnyEvent] = []
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        events += abort_of(job, job.pending, "overtaken by a further loss").events
    plan = plan_of(
        state,
        job,
        e.Motive.UNPLANNED,
        changes,
        now_ms,
        deadline_s=policy.prepare_deadline_s,
        reason=reason,
        evidence=losses_of(state, job),
        choices=tuple(kept.values()),
        drops=drops,
    )
    return Decision((*events, *plan), reason)


def _parts(job: Job) -> set[int | None]:
    """The replicas that take part now."""
    slots = (Slot(slot) for slot in range(job.layout.slot_count))
    return {part_of(job.layout, slot) for slot in slots if slot not in job.idle}


def _drops(state: FleetState, job: Job, absent: set[int]) -> tuple[e.Drop, ...]:
    held = live_holders(state, job)
    drops = []
    for part in sorted(absent):
        for slot in slots_of_part(job.layout, part):
            if slot in job.idle:
                continue
            node = state.nodes[held[slot]] if slot in held else None
            drops.append(
                e.Drop(slot=slot)
                if node is None
                else e.Drop(slot=slot, node=node.node, incarnation=node.incarnation)
            )
    return tuple(drops)


def grow_back(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Put a replica back once warm standbys are there for every one of its slots."""
    for job in open_jobs(state):
        if not job.idle or job.pending is not None or job.vacant or job.unproven:
            continue
        if now_ms < job.cooldown_until_ms or job.finished_nodes or job.stalled:
            continue
        for part in sorted({part_of(job.layout, slot) or 0 for slot in job.idle}):
            choices = _warm_choices(state, job, part)
            if choices is None:
                continue
            changes = tuple(change_of(s, c.node) for s, c in choices.items() if c.node is not None)
            reason = f"replica {part} takes part again: warm standbys are there for it"
            plan = plan_of(
                state,
                job,
                e.Motive.PLANNED,
                changes,
                now_ms,
                deadline_s=policy.prepare_deadline_s,
                reason=reason,
                evidence=because(*(c.node for c in choices.values() if c.node is not None)),
                choices=tuple(choices.values()),
            )
            return Decision(plan, reason)
    return None


def _warm_choices(state: FleetState, job: Job, part: int) -> dict[Slot, Choice] | None:
    taken: set[NodeId] = set()
    choices: dict[Slot, Choice] = {}
    for slot in slots_of_part(job.layout, part):
        choice = choose_joiner(state, job, slot, taken, cold=False)
        if choice.node is None:
            return None
        taken.add(choice.node.node)
        choices[slot] = choice
    return choices


def restart(state: FleetState, job: Job, why: str) -> Decision:
    """Give up what is in memory: fence every holder, so that its agent comes back with a fresh
    process that loads the last checkpoint, and launch the job anew.
    """
    reason = f"restart from the last checkpoint: {why}"
    events: list[e.AnyEvent] = []
    if job.pending is not None and job.pending.phase is Phase.PREPARING:
        events += abort_of(job, job.pending, reason).events
    for name in live_holders(state, job).values():
        incarnation = state.nodes[name].incarnation
        lost = e.NodeLost(
            node=name, incarnation=incarnation, reason=reason, evidence=(state.position,)
        )
        events.append(lost)
    rests_on = losses_of(state, job) or (state.position,)
    events.append(e.JobRestarted(job=job.job, reason=reason, evidence=evidence(rests_on)))
    return Decision(tuple(events), reason)

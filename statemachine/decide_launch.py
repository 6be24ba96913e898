"""Deciding when a job begins and when it is over."""

from statemachine import events as e
from statemachine.choose import launch_candidates
from statemachine.decision import Decision
from statemachine.evolve_jobs import live_holders
from statemachine.ids import Slot
from statemachine.parts import evidence
from statemachine.planning import change_of, open_jobs, plan_of, prepare_s
from statemachine.policy import Policy
from statemachine.state import FleetState, Job


def launch(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """Fill every slot of a declared job, once its standbys are there or patience is over."""
    for job in open_jobs(state):
        slots = job.layout.slot_count
        if job.launched or job.stop_requested or job.pending is not None:
            continue
        if len(state.pool) < slots:
            continue
        if now_ms < job.cooldown_until_ms:
            continue
        patience_over = now_ms >= job.declared_at_ms + round(policy.launch_patience_s * 1000)
        if not patience_over and len(state.pool) < slots + job.declared.standbys:
            continue  # whoever is ready is in the pool: to look at each of thousands takes time
        ready = launch_candidates(state, job)
        if len(ready) < slots or (len(ready) < slots + job.declared.standbys and not patience_over):
            continue
        chosen = sorted(ready[:slots], key=lambda node: node.node)
        changes = tuple(change_of(Slot(slot), node) for slot, node in enumerate(chosen))
        reason = f"launch: {len(ready)} nodes are ready for {slots} slots"
        deadline_s = prepare_s(state, job, changes, policy)
        plan = plan_of(
            state,
            job,
            e.Motive.LAUNCH,
            changes,
            now_ms,
            deadline_s=deadline_s,
            reason=reason,
            evidence=evidence((job.declared_position, *(n.ready_position for n in chosen))),
        )
        return Decision(plan, reason)
    return None


def finish_job(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:  # noqa: ARG001
    """A job is finished when the holder of every slot committed the same last step, or when it is
    asked to end before it was launched.
    """
    for job in open_jobs(state):
        if job.stop_requested and not job.launched and job.pending is None:
            reason = "asked to stop before it was launched"
            return _finish(job, -1, reason)
        if not job.launched or len(job.finished_nodes) < job.slots_held:
            continue
        held = live_holders(state, job)
        steps = {job.finished_nodes.get(held[slot], -1) for slot in held}
        if len(held) == job.slots_held and len(steps) == 1 and min(steps) >= 0:
            step = min(steps)
            reason = f"every slot committed step {step}"
            return _finish(job, step, reason)
    return None


def _finish(job: Job, step: int, reason: str) -> Decision:
    said = evidence((job.ended_position,))
    return Decision((e.JobFinished(job=job.job, step=step, reason=reason, evidence=said),), reason)

"""What the page shows, as small values under stable names; only what changed is sent again.

What belongs here: from a picture of the fleet to values. Times are Unix ms, so that a value does
not change because time passes: durations are the reader's arithmetic. Records of the fold that did
not change are the very same objects (`is`), so finding what did costs little even for a large
fleet.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from controlplane.picture import AWAY, Picture
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import NodeState, Phase
from statemachine.state import FleetState, Job, Node, Sweep, Transition
from statemachine.vitals import DATA_MS, STEP_MS, WAIT_MS, WORK_MS, Vitals

POINTS_MAX: Final = 600
"""Windows of step time and loss that are kept for each job."""

Values = dict[str, Any]


class Board:
    """The values on show. `update` returns what differs from the time before."""

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self._state = FleetState()
        self._seen: dict[NodeId, Vitals] = {}
        self._points: dict[JobId, deque[tuple[int, float | None, float | None]]] = {}
        self._new_points: dict[JobId, list[tuple[int, float | None, float | None]]] = {}
        self._last: dict[JobId, tuple[int, float | None]] = {}

    def update(self, picture: Picture) -> tuple[dict[str, Values], list[str]]:
        """Take in a picture; returns values that are new or other, and names that are gone."""
        state, before = picture.state, self._state
        fresh: dict[str, Values] = {"fleet": _fleet(picture)}
        vitals = {
            name: each for name, each in picture.vitals.items() if self._seen.get(name) is not each
        }
        self._note(vitals.values())
        changed = {n for n in vitals if n in state.nodes} | {
            n for n in self._seen if n not in picture.vitals
        }
        self._seen = dict(picture.vitals)
        if state.nodes is not before.nodes:
            changed |= {n for n, node in state.nodes.items() if before.nodes.get(n) is not node}
        for name in changed:
            node = state.nodes.get(name)
            if node is not None:
                fresh[f"node/{name}"] = node_values(node, picture.vitals.get(name))
        for job_name in state.jobs:
            fresh[f"job/{job_name}"] = self._job(state.jobs[job_name])
        for number, sweep in state.sweeps.items():
            fresh[f"sweep/{number}"] = _sweep(sweep)
        self._state = state
        return self._differing(fresh)

    def _differing(self, fresh: dict[str, Values]) -> tuple[dict[str, Values], list[str]]:
        differing = {name: value for name, value in fresh.items() if self.values.get(name) != value}
        gone = [n for n in self.values if n.startswith("sweep/") and n not in fresh]
        self.values |= differing
        for name in gone:
            del self.values[name]
        return differing, gone

    def _note(self, vitals: Any) -> None:
        """Remember the pace and the loss of each job, by the window that is furthest."""
        for each in vitals:
            if not each.job:
                continue
            step, _ = self._last.get(each.job, (-1, None))
            if each.last_step <= step:
                continue
            self._last[each.job] = (each.last_step, each.loss)
            point = (each.ended_at_ms, _p50(each, STEP_MS), each.loss)
            self._points.setdefault(each.job, deque(maxlen=POINTS_MAX)).append(point)
            self._new_points.setdefault(each.job, []).append(point)

    def points(self) -> dict[str, list[Any]]:
        """Step time in ms and loss over time, for each job: what a curve is drawn from."""
        return {name: list(points) for name, points in self._points.items()}

    def new_points(self) -> dict[str, list[Any]]:
        """Those since this was asked the last time."""
        fresh, self._new_points = self._new_points, {}
        return {name: points[-POINTS_MAX:] for name, points in fresh.items()}

    def _job(self, job: Job) -> Values:
        step, loss = self._last.get(job.job, (None, None))
        return {
            "job": job.job,
            "axes": job.declared.axes,
            "ranks_per_node": job.declared.ranks_per_node,
            "slots": job.layout.slot_count,
            "epoch": job.epoch,
            "state": _job_state(job),
            "stalled": job.stalled,
            "steps": job.declared.steps,
            "step": step,
            "loss": loss,
            "vacant": sorted(job.vacant),
            "idle": sorted(job.idle),
            "pending": _pending(job.pending) if job.pending is not None else None,
        }


def _fleet(picture: Picture) -> Values:
    state = picture.state
    counts = {each.value: 0 for each in NodeState}
    for node in state.nodes.values():
        counts[node.state] += 1
    leader, term = picture.leader if picture.leader is not None else (None, None)
    return {
        "fleet": picture.fleet,
        "position": state.position,
        "at_ms": state.at_ms,
        "leader": leader,
        "term": term,
        "paused_by": state.paused_by,
        "policy_version": state.policy_version,
        "shadow": state.policy.shadow,
        "newer_events": len(state.unknown_tags),
        "counts": {name: count for name, count in counts.items() if count},
    }


def _job_state(job: Job) -> str:
    if job.finished:
        return "finished"
    if job.stalled:
        return "stalled"
    if not job.launched:
        return "waiting to launch"
    return "running" if not job.vacant else "parked"


def _pending(pending: Transition) -> Values:
    plan, commit = pending.plan, pending.committed
    preparing = pending.phase is Phase.PREPARING or commit is None
    return {
        "transition": plan.transition,
        "motive": plan.motive,
        "phase": pending.phase,
        "from_ms": pending.planned_at_ms if preparing else pending.committed_at_ms,
        "until_ms": plan.deadline_at_ms if commit is None else commit.deadline_at_ms,
        "answered": len(pending.answers),
        "members": len(pending.members),
        "awaited": list(pending.awaited()[:32]),
        "changes": [
            {"slot": c.slot, "joiner": c.joiner, "leaver": c.leaver} for c in plan.changes[:64]
        ],
        "refused": [{"node": r.node, "reason": r.reason} for r in pending.refused],
        "reason": plan.reason,
    }


def node_values(node: Node, vitals: Vitals | None) -> Values:
    """What the page shows of one node."""
    if vitals is not None and vitals.incarnation != node.incarnation:
        vitals = None
    verdict = node.verdict
    return {
        "node": node.node,
        "incarnation": node.incarnation,
        "state": node.state,
        "since_ms": node.since_at_ms,
        "job": node.job,
        "slot": node.slot,
        "host": node.host,
        "warm": [[r.job, r.role, r.warmth, r.reason] for r in node.rehearsals],
        "wanted_out": f"{node.wanted_out} by {node.wanted_out_by}" if node.wanted_out else "",
        "kept_out": node.retired or node.quarantine,
        "verdict": None
        if verdict is None or node.state in AWAY
        else {
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "position": node.verdict_position,
            "expires_ms": verdict.expires_at_ms,
            "indicators": [
                {
                    "metric": i.metric,
                    "value": i.value,
                    "peers": i.peers_median,
                    "windows": i.windows,
                }
                for i in verdict.indicators
            ],
        },
        "step": vitals.last_step if vitals is not None else None,
        "step_ms": _p50(vitals, STEP_MS),
        "work_ms": _p50(vitals, WORK_MS),
        "wait_ms": _p50(vitals, WAIT_MS),
        "data_ms": _p50(vitals, DATA_MS),
    }


def _p50(vitals: Vitals | None, metric: str) -> float | None:
    found = vitals.measured(metric) if vitals is not None else None
    return round(found.p50, 3) if found is not None else None


def _sweep(sweep: Sweep) -> Values:
    return {
        "node": sweep.request.node,
        "partner": sweep.request.partner,
        "since_ms": sweep.started_at_ms,
        "done": [each.round for each in sweep.rounds],
        "open": list(sweep.open_rounds()),
        "reason": sweep.request.reason,
    }

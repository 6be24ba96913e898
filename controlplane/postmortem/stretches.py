"""Who was in which state from when to when, by the fold of a log.

What belongs here: hearing states, and the moments at which they change, of nodes and of jobs. An
entry touches the nodes that it names; what touches a whole job (a commit, its end) is looked up
in the job, so that hearing costs what changed and not the size of the fleet.
"""

from __future__ import annotations

from msgspec import Struct

from statemachine import events as e
from statemachine.ids import Epoch, JobId, NodeId
from statemachine.lifecycle import NodeState
from statemachine.notation import names_in
from statemachine.state import FleetState, Job

WHOLE_JOB = (e.TransitionCommitted, e.TransitionFinished, e.JobFinished, e.JobRestarted)
"""Events that may move every node of a job."""


class NodeStretch(Struct, frozen=True):
    """A node in one state, times in Unix ms; `slot` is -1 without one."""

    node: NodeId
    state: NodeState
    slot: int
    job: JobId
    from_ms: int
    to_ms: int


class EpochStretch(Struct, frozen=True):
    """A job at one epoch, times in Unix ms."""

    job: JobId
    epoch: Epoch
    from_ms: int
    to_ms: int


class Stretches:
    """Hears a log together with its fold."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, tuple[NodeState, int, JobId, int]] = {}
        self._epochs: dict[JobId, tuple[Epoch, int]] = {}
        self._end_ms = 0

    def hear(
        self, before: FleetState, recorded: e.Recorded, after: FleetState
    ) -> tuple[list[NodeStretch], list[EpochStretch]]:
        """Take in one entry; returns the stretches that it ended."""
        event = recorded.event
        names: set[NodeId] = set(names_in(event))
        job_name = getattr(event, "job", None)
        if isinstance(event, WHOLE_JOB) and job_name:
            for state in (before, after):
                job = state.jobs.get(job_name)
                if job is not None:
                    names |= _members(job)
        at_ms = self._end_ms = after.at_ms
        ended = [found for name in sorted(names) if (found := self._node(name, after, at_ms))]
        epochs = []
        if job_name:
            job = after.jobs.get(job_name)
            known = self._epochs.get(job_name)
            if job is not None and (known is None or known[0] != job.epoch):
                if known is not None:
                    epochs.append(EpochStretch(job_name, known[0], known[1], at_ms))
                self._epochs[job_name] = (job.epoch, at_ms)
        return ended, epochs

    def _node(self, name: NodeId, state: FleetState, at_ms: int) -> NodeStretch | None:
        node = state.nodes.get(name)
        if node is None:
            return None
        known = self._nodes.get(name)
        if known is not None and known[:3] == (node.state, node.slot, node.job):
            return None
        self._nodes[name] = (node.state, node.slot, node.job, at_ms)
        if known is None:
            return None
        return NodeStretch(name, known[0], known[1], known[2], known[3], at_ms)

    def rest(self, end_ms: int | None = None) -> tuple[list[NodeStretch], list[EpochStretch]]:
        """What has not ended when the log does."""
        end = self._end_ms if end_ms is None else end_ms
        nodes = [
            NodeStretch(name, state, slot, job, since, end)
            for name, (state, slot, job, since) in sorted(self._nodes.items())
        ]
        epochs = [
            EpochStretch(job, epoch, since, end)
            for job, (epoch, since) in sorted(self._epochs.items())
        ]
        return nodes, epochs


def _members(job: Job) -> set[NodeId]:
    members = set(job.holders.values())
    if job.pending is not None:
        for change in job.pending.plan.changes:
            members |= {change.joiner, change.leaver}
    return members - {NodeId("")}

"""The folded state of a fleet: frozen, with structure-shared maps, cheap to keep at every position.

What belongs here: shapes, and questions answered from one record. What changes them is `evolve`,
what follows from them is `decide`. The index sets (`accused`, `unsettled`, ...) exist so that
`decide` looks at what needs a look and never walks the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from rpds import HashTrieMap, HashTrieSet

from statemachine.answers import Answers
from statemachine.events import (
    CertificateIssued,
    Change,
    Drop,
    GroupBroken,
    Handover,
    JobDeclared,
    RecordingMade,
    RemedyRequested,
    SweepExtended,
    SweepRequested,
    SweepRoundFinished,
    TransitionApplied,
    TransitionCommitted,
    TransitionPlanned,
    TransitionPrepared,
    TransitionRefused,
    Verdict,
    VerdictIssued,
    WorkerReady,
)
from statemachine.ids import (
    Epoch,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Role,
    Slot,
    SweepId,
    TransitionId,
)
from statemachine.layout import Layout
from statemachine.lifecycle import AWAY_STATES, NodeState, Phase, Warmth
from statemachine.policy import Policy
from statemachine.sweep import TOGETHER

__all__ = ["FleetState", "Job", "Node", "Rehearsal", "Sweep", "Transition", "replace"]


class Rehearsal(Struct, frozen=True, kw_only=True, gc=False):
    """Warm-up of one (job, role) on one node."""

    job: JobId
    role: Role
    warmth: Warmth
    since_at_ms: int
    digest: str = ""
    recording: str = ""
    first_step_ms: float = 0.0
    reason: str = ""


class Accusation(Struct, frozen=True, kw_only=True, gc=False):
    """One piece of evidence that an incarnation is gone."""

    position: Position
    kind: str
    by: NodeId
    text: str
    due_at_ms: int = 0
    """When it suffices, Unix ms: a mere wait can be taken back until then."""


def is_harmful(verdict: VerdictIssued | None) -> bool:
    """Whether a verdict speaks against giving a node a slot, or leaving it in one."""
    return verdict is not None and verdict.verdict in (Verdict.DEGRADED, Verdict.FAULTY)


class Node(Struct, frozen=True, kw_only=True, gc=False):
    """One machine as the log tells it."""

    node: NodeId
    incarnation: Incarnation
    state: NodeState
    host: str
    since_at_ms: int
    joined_at_ms: int
    hardware: str = ""
    probe_port: int = 0
    pid: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    serves: tuple[JobId, ...] = ()
    """Jobs that it may be assigned to."""
    worker: WorkerReady | None = None
    job: JobId = JobId("")
    slot: Slot = Slot(-1)
    rehearsals: tuple[Rehearsal, ...] = ()
    verdict: VerdictIssued | None = None
    verdict_position: Position = Position(0)
    accusations: tuple[Accusation, ...] = ()
    ready_position: Position = Position(0)
    """Where its training process said that it is ready."""
    placed_position: Position = Position(0)
    """Where its slot was given away last, or it was pooled, drained, quarantined or retired."""
    ended_position: Position = Position(0)
    """Where its last life was ended, by a loss or in good order."""
    wanted_out: str = ""
    """What an operator wants: empty, ``drain``, ``switchover``, ``quarantine`` or ``release``."""
    wanted_out_by: str = ""
    wanted_position: Position = Position(0)
    """Where that was said."""
    wanted_force: bool = False
    """Whether a release shall skip the sweep."""
    wanted_to: NodeId = NodeId("")
    """Who shall take its slot, where a switchover names somebody."""
    wanted_alone: bool = False
    """Whether nobody could take its slot, not even later, when that was said."""
    drained_by: str = ""
    """Who drained it; a node belongs to the operator until it is released, whatever it does."""
    quarantine: str = ""
    """Reason of an open quarantine; survives restarts of the node."""
    quarantined_at_ms: tuple[int, ...] = ()
    retired: str = ""
    """Reason of a retirement; survives restarts of the node."""
    withheld: str = ""
    """What was recorded last as not done about the standing verdict, and why."""
    blocked: int = 0
    """Transitions that this incarnation blocked since it last took part in one to its end."""
    sweep: SweepId = SweepId(0)
    sweep_wanted: str = ""
    sweep_wanted_position: Position = Position(0)
    """Where that was said, or followed from."""
    sweeps_failed: int = 0
    """Sweeps in a row that it did not pass."""
    certificate: CertificateIssued | None = None
    remedy: RemedyRequested | None = None
    """The remedy under way; survives restarts of the node, which may be what it consists of."""
    remedies: int = 0
    """Remedies begun since it was well."""
    sweep_due: bool = True
    """Whether a sweep may tell more about a quarantine: not after one that failed, until a remedy
    was carried out, where there are remedies."""
    indexed: int = 0
    """The indexes of the state in which this record stands; see `indexes`."""
    promotions: int = 0
    cooldown_until_ms: int = 0

    def rehearsal(self, job: JobId, role: Role) -> Rehearsal | None:
        """This node's warm-up of one role, if there ever was one."""
        for entry in self.rehearsals:
            if entry.job == job and entry.role == role:
                return entry
        return None

    def warm_for(self, job: JobId, role: Role) -> bool:
        """Whether it may take a slot of `role` without a cold start."""
        entry = self.rehearsal(job, role)
        return (
            entry is not None
            and entry.warmth is Warmth.WARM
            and self.worker is not None
            and entry.digest == self.worker.digest
        )


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """The parts of a plan to come that are in the log so far."""

    transition: TransitionId
    parts: int = 0
    changes: tuple[Change, ...] = ()
    drops: tuple[Drop, ...] = ()


class Transition(Struct, frozen=True, kw_only=True, gc=False):
    """The one pending transition of a job, with what its members said; `plan` and `committed` are
    whole, whatever was left out of their events.
    """

    plan: TransitionPlanned
    phase: Phase
    planned_at_ms: int
    position: Position
    members: Mapping[NodeId, int]
    """Who must answer in the present phase, numbered: the plan's `required`, after the commit
    without those who leave."""
    harmful: int = 0
    """How many nodes it takes out for their health; what the budget counts."""
    gone: tuple[NodeId, ...] = ()
    """Those of `members` whose incarnation is over."""
    prepared: Answers[TransitionPrepared] = field(default_factory=Answers)
    refused: tuple[TransitionRefused, ...] = ()
    chosen: tuple[Handover, ...] = ()
    """Handovers of the commit to come, and in how many parts they were said."""
    chosen_parts: int = 0
    committed: TransitionCommitted | None = None
    committed_at_ms: int = 0
    committed_position: Position = Position(0)
    applied: Answers[TransitionApplied] = field(default_factory=Answers)

    @property
    def answers(self) -> Answers[Any]:
        """What members answered in the present phase."""
        return self.prepared if self.phase is Phase.PREPARING else self.applied

    @property
    def is_answered(self) -> bool:
        """Whether every member has answered in the present phase."""
        return len(self.answers) == len(self.members)

    def awaited(self) -> tuple[NodeId, ...]:
        """Who must still answer in the present phase, sorted."""
        said = self.answers
        return tuple(sorted(name for name in self.members if name not in said))


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """One training job: its layout, who holds which slot, and what is pending."""

    job: JobId
    declared: JobDeclared
    layout: Layout
    roles: tuple[Role, ...]
    """The roles that a standby rehearses, in this order."""
    declared_at_ms: int
    declared_position: Position = Position(0)
    ended_position: Position = Position(0)
    """Where an operator asked that it end, or the last member said that it had taken the last step.
    """
    epoch: Epoch = Epoch(0)
    holders: HashTrieMap[Slot, NodeId] = field(default_factory=HashTrieMap)
    vacant: HashTrieSet[Slot] = field(default_factory=HashTrieSet)
    """Slots whose holder is lost or gone."""
    vacant_since_ms: int = 0
    """Since when not every slot has a live holder; counts while `vacant` is not empty."""
    idle: HashTrieSet[Slot] = field(default_factory=HashTrieSet)
    """Slots that nobody holds at this epoch, on purpose: the job was shrunk."""
    unproven: HashTrieSet[Slot] = field(default_factory=HashTrieSet)
    """Slots whose holder did not yet report from inside its group: it may lack the state."""
    givers: HashTrieMap[Slot, NodeId] = field(default_factory=HashTrieMap)
    """Who gave an unproven slot away: it may be the only one that holds the state."""
    began: bool = False
    """Whether any member ever reported from inside a group: from then on there is state to lose."""
    stalled: str = ""
    """Why the job could not go on from memory."""
    saves_asked: bool = False
    """Whether it could not go on from what was saved either; no plan is made until it is restarted.
    """
    reached: int = -1
    """The last step that is known to have been committed; what is told when steps are repeated."""
    broken: GroupBroken | None = None
    """The first word of this epoch that a group broke although nobody died."""
    broken_position: Position = Position(0)
    pending: Transition | None = None
    draft: Draft | None = None
    lent: tuple[NodeId, ...] = ()
    """Nodes that were assigned to it and are not ready yet."""
    last_transition: TransitionId = TransitionId(0)
    cooldown_until_ms: int = 0
    stop_requested: bool = False
    """Whether an operator asked that it end; its ranks agree on the last step."""
    finished_nodes: HashTrieMap[NodeId, int] = field(default_factory=HashTrieMap)
    recordings: HashTrieMap[Role, RecordingMade] = field(default_factory=HashTrieMap)
    """What each role is rehearsed with, since this launch."""
    keepers: HashTrieMap[Role, tuple[tuple[NodeId, Incarnation], ...]] = field(
        default_factory=HashTrieMap
    )
    """Who has that recording: its maker, and who rehearsed with it; the newest last."""
    finished: bool = False
    launched: bool = False
    """Whether the job runs, or ran until its slots were lost; false again once it is restarted."""

    @property
    def slots_held(self) -> int:
        """How many slots somebody shall hold at this epoch: all, unless the job was shrunk."""
        return self.layout.slot_count - len(self.idle)


class Sweep(Struct, frozen=True, kw_only=True, gc=False):
    """An open sweep with the rounds finished so far."""

    request: SweepRequested
    position: Position
    started_at_ms: int
    rounds: tuple[SweepRoundFinished, ...] = ()
    heard: tuple[Position, ...] = ()
    """Where each of these rounds is in the log."""
    third: SweepExtended | None = None
    """The third party, once the pair was slow."""

    def open_rounds(self) -> tuple[str, ...]:
        """Rounds that are not finished, in the order of the request; a third party comes last."""
        done = {finished.round for finished in self.rounds}
        wanted = self.request.rounds
        if self.third is not None and self.third.round not in wanted:
            wanted = (*wanted, self.third.round)
        return tuple(name for name in wanted if name not in done)

    def parties(self) -> tuple[NodeId, ...]:
        """Who measures with the node."""
        third = (self.third.partner,) if self.third is not None else ()
        return tuple(name for name in (self.request.partner, *third) if name)

    def is_alone_done(self) -> bool:
        """Whether the node, and its partner as a reference, were measured each alone."""
        return not set(self.open_rounds()).difference(TOGETHER)


class FleetState(Struct, frozen=True, kw_only=True, gc=False):
    """Everything the log says, folded."""

    position: Position = Position(0)
    at_ms: int = 0
    nodes: HashTrieMap[NodeId, Node] = field(default_factory=HashTrieMap)
    jobs: HashTrieMap[JobId, Job] = field(default_factory=HashTrieMap)
    open_jobs: tuple[JobId, ...] = ()
    """Jobs that are not finished, by name."""
    sweeps: HashTrieMap[SweepId, Sweep] = field(default_factory=HashTrieMap)
    last_sweep: SweepId = SweepId(0)
    policy: Policy = field(default_factory=Policy)
    policy_version: int = 0
    paused_by: str = ""
    term: int = 0
    controller: str = ""
    harmful_at_ms: tuple[int, ...] = ()
    """One entry for each node that was taken out for its health, by time of the plan."""
    present: int = 0
    """Nodes that are neither lost nor gone."""
    pool: HashTrieSet[NodeId] = field(default_factory=HashTrieSet)
    """Nodes in SPARE, WARMING or STANDBY: those that may take a slot or need a rehearsal."""
    accused: HashTrieSet[NodeId] = field(default_factory=HashTrieSet)
    """Nodes with evidence that their incarnation is gone."""
    accusers: HashTrieSet[NodeId] = field(default_factory=HashTrieSet)
    """Nodes that may have spoken against another one: what a lost one of them said is void."""
    unsettled: HashTrieSet[NodeId] = field(default_factory=HashTrieSet)
    """Nodes about which something other than a loss is to be decided."""
    unready: HashTrieSet[NodeId] = field(default_factory=HashTrieSet)
    """Nodes of the pool that rehearse, or have not rehearsed every role of their job."""
    reference: HashTrieMap[str, tuple[dict[str, float], ...]] = field(default_factory=HashTrieMap)
    """Measurements of passed sweeps by hardware kind: the fleet's own baseline."""
    unknown_tags: tuple[str, ...] = ()
    """Tags of events that only a newer version can fold."""

    def whole(self, plan: TransitionPlanned) -> TransitionPlanned:
        """A plan with what was left out of its event because it was too much; of the state after
        it. One that is not pending there is given back as it is.
        """
        job = self.jobs.get(plan.job)
        pending = job.pending if job is not None else None
        known = pending is not None and pending.plan.transition == plan.transition
        return pending.plan if pending is not None and known else plan

    def node(self, node: NodeId) -> Node | None:
        """The record of a node, if it ever joined."""
        return self.nodes.get(node)

    def current(self, node: NodeId, incarnation: Incarnation) -> Node | None:
        """The record of a node if this incarnation is alive by the log."""
        record = self.nodes.get(node)
        if record is None or record.incarnation != incarnation:
            return None
        return None if record.state in AWAY_STATES else record

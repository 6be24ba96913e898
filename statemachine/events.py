"""Every fact, one frozen tagged struct each, named in the past tense.

What belongs here: the shape of facts. No rule about what follows from one (`evolve`), no bytes
(`codec`). The schema only grows: a new field has a default, a tag (the class name) is never
reused or given another meaning. Facts are immutable, and at most 64 KiB encoded.

Who states what:
- a *node* states facts about itself and what it saw of its peers (inbox, then log);
- an *operator* states acts, with a name;
- the *controller* states decisions, each with a reason, and the positions it decided from.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from statemachine.ids import (
    Epoch,
    GroupName,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Role,
    Slot,
    SweepId,
    TransitionId,
)


class Verdict(StrEnum):
    """A judged health state."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEGRADED = "degraded"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


class Motive(StrEnum):
    """Why a transition takes place; decides what its commit must wait for."""

    LAUNCH = "launch"
    PLANNED = "planned"
    UNPLANNED = "unplanned"


class SweepOutcome(StrEnum):
    """Result of a sweep; inconclusive is never a pass."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """A fact already appended to the log.

    Facts are trees of immutable values, so the garbage collector need not look at them (`gc`): it
    would walk every one of a long log again and again.
    """


# --- membership -------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True, tag=True):
    """An agent took a lease under a new incarnation."""

    node: NodeId
    incarnation: Incarnation
    host: str
    ranks: int = 1
    hardware: str = ""
    probe_port: int = 0
    pid: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    serves: tuple[JobId, ...] = ()
    """Jobs whose training process its agent can start, beside the one it begins with."""


class NodeLeft(Event, frozen=True, tag=True):
    """An agent gave its lease back in good order."""

    node: NodeId
    incarnation: Incarnation
    reason: str = ""


class NodeLost(Event, frozen=True, tag=True):
    """The controller fenced an incarnation: its key was deleted in this very transaction."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    evidence: tuple[Position, ...] = ()


class WorkerReady(Event, frozen=True, tag=True):
    """A node's training process reached its step loop and can rehearse or run.

    `host`, `port` is where its links listen; `transfer_port` where state may be fetched;
    `digest` stands for code, configuration and layout.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    host: str
    port: int
    transfer_port: int
    pid: int
    digest: str
    state_bytes: int = 0
    records: bool = False
    """Whether one node of each role records its first step, for others to rehearse with."""
    phases_ms: dict[str, float] = field(default_factory=dict)
    """Where the time since the process was started went."""
    reached: int = -1
    """The last step that this node's life before committed, as its agent saw; -1: none."""


class WorkerExited(Event, frozen=True, tag=True):
    """The agent saw its training process end without being asked to."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    reason: str
    exit_code: int | None = None
    signal: int | None = None


class WorkerFinished(Event, frozen=True, tag=True):
    """A training process committed the job's last step."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    step: int
    weights_digest: str = ""
    loss: float | None = None


class PeerReset(Event, frozen=True, tag=True):
    """A node saw the link to a peer end without a goodbye: the peer's process is gone."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    epoch: Epoch
    peer: NodeId
    peer_incarnation: Incarnation
    group: GroupName
    step: int = -1


class PeerWaited(Event, frozen=True, tag=True):
    """A node waits for a peer whose process gives no sign of life; `silent_ms` 0: it does again."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    epoch: Epoch
    peer: NodeId
    peer_incarnation: Incarnation
    waited_ms: float
    silent_ms: float


class GroupBroken(Event, frozen=True, tag=True):
    """A member is parked in a broken group and nothing was planned about it: nobody died."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    epoch: Epoch
    cause: str


class LeaseExpired(Event, frozen=True, tag=True):
    """The controller saw an incarnation key vanish that nobody had given back."""

    node: NodeId
    incarnation: Incarnation


# --- jobs -------------------------------------------------------------------------------------


class JobDeclared(Event, frozen=True, tag=True):
    """An operator asked for a job: ordered axes with sizes, ranks per node, seed.

    `axes` maps axis name to size, outermost first; `groups` names further groups as sets of axes.
    `replica_axis` is the axis along which ranks hold equal state; empty where none do, as with an
    optimizer that is sharded over the replicas.
    """

    job: JobId
    axes: dict[str, int]
    ranks_per_node: int = 1
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rank_sets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    standbys: int = 0
    seed: int = 0
    steps: int = 0
    by: str = ""
    replica_axis: str = "dp"


class JobStopRequested(Event, frozen=True, tag=True):
    """An operator asked that a job end: all ranks agree on the last step in a boundary vote."""

    job: JobId
    by: str = ""
    comment: str = ""


class JobFinished(Event, frozen=True, tag=True):
    """Every slot committed the job's last step."""

    job: JobId
    step: int
    reason: str = ""
    evidence: tuple[Position, ...] = ()


class JobRestarted(Event, frozen=True, tag=True):
    """The run cannot go on from memory: it is launched anew, from its last checkpoint."""

    job: JobId
    reason: str
    evidence: tuple[Position, ...] = ()


# --- warm-up ----------------------------------------------------------------------------------


class WarmupStarted(Event, frozen=True, tag=True):
    """The controller asked a node to rehearse a role of a job."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    role: Role
    reason: str = ""
    evidence: tuple[Position, ...] = ()


class WarmupPassed(Event, frozen=True, tag=True):
    """A node rehearsed a role in the process that will train.

    `recording` names what it rehearsed with, empty if nothing was recorded; `allocate_bytes` is
    what this role's state takes, and must still be allocated if the role does not stay resident.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    role: Role
    digest: str
    first_step_ms: float
    steady_step_ms: float
    took_ms: float
    recording: str = ""
    allocate_bytes: int = 0


class WarmupFailed(Event, frozen=True, tag=True):
    """A rehearsal raised, hung, or met a NaN; the run never noticed."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    role: Role
    reason: str


class NodeAssigned(Event, frozen=True, tag=True):
    """A free node shall serve another job: its agent ends the process it has, and starts one of
    that job.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    reason: str
    evidence: tuple[Position, ...] = ()


class RecordingMade(Event, frozen=True, tag=True):
    """A node recorded what its groups answered in one step, for others to rehearse its role with.

    `recording` names the content, `digest` what made it (see `WorkerReady`). If `failure` says why
    nothing could be recorded, `recording` is empty and the role is rehearsed without.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    role: Role
    recording: str = ""
    digest: str = ""
    step: int = 0
    nbytes: int = 0
    tensors: int = 0
    took_ms: float = 0.0
    failure: str = ""


class CheckpointWritten(Event, frozen=True, tag=True):
    """A node wrote its shard's checkpoint of a step, or could not, and says why in `failure`.

    `copy_ms` is what the step paid for it, `write_ms` what was done beside the run.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    slot: Slot
    step: int
    nbytes: int = 0
    copy_ms: float = 0.0
    write_ms: float = 0.0
    failure: str = ""


# --- health -----------------------------------------------------------------------------------


class Indicator(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One metric that spoke for a verdict: own value, the peers' median, and the score."""

    metric: str
    value: float
    peers_median: float
    score: float
    windows: int
    peers: int


class VerdictIssued(Event, frozen=True, tag=True):
    """The detector (or an operator) judged a node."""

    node: NodeId
    incarnation: Incarnation
    verdict: Verdict
    reason: str
    job: JobId = JobId("")
    indicators: tuple[Indicator, ...] = ()
    window_first: int = 0
    window_last: int = 0
    detector: str = ""
    expires_at_ms: int = 0
    by: str = ""
    cause: str = ""
    """What the fault looks like, such as ``compute: heat`` or ``communication: its links``."""


class VerdictWithdrawn(Event, frozen=True, tag=True):
    """Later evidence, or the end of its validity, took a verdict back."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    by: str = ""
    evidence: tuple[Position, ...] = ()


class ActWithheld(Event, frozen=True, tag=True):
    """What would have been done about a verdict, and was not.

    `cause` is ``shadow``, ``paused`` or ``budget``. Said once per verdict and cause.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    act: str
    cause: str
    reason: str
    evidence: tuple[Position, ...] = ()


# --- transitions ------------------------------------------------------------------------------


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One slot changes hands. `leaver` is empty when the slot was vacant."""

    slot: Slot
    joiner: NodeId
    joiner_incarnation: Incarnation
    leaver: NodeId = NodeId("")
    leaver_incarnation: Incarnation = Incarnation(0)


class Drop(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One slot that nobody holds any more: the job goes on without the replica it is part of.

    `node` is who holds it still, empty when the slot was vacant.
    """

    slot: Slot
    node: NodeId = NodeId("")
    incarnation: Incarnation = Incarnation(0)


class Giver(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who gave a slot away without being seen to have handed the state over.

    It is parked while what follows is repaired, and asked where nobody else holds that state.
    """

    slot: Slot
    node: NodeId
    incarnation: Incarnation


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where a node stands in its steps when it is parked.

    `applied` is the last step whose update is in its weights (-1: initial weights);
    `pending` the step whose gradients it holds, synchronised, without having seen the vote
    (-1: none); `has_state` is false for a joiner, whose weights mean nothing. `saved` is said at a
    launch, and where a plan asks: the last step whose update is in the newest save that it can load
    (-1: none), `saved_in` where, in words; `saves` all such steps, if it knows more than one.
    """

    has_state: bool
    applied: int = -1
    pending: int = -1
    saved: int = -1
    saved_in: str = ""
    saves: tuple[int, ...] = ()


class ChangesDrafted(Event, frozen=True, tag=True):
    """A part of a plan that is too large for one event; parts count from 1, the plan follows."""

    job: JobId
    transition: TransitionId
    part: int
    reason: str
    changes: tuple[Change, ...] = ()
    drops: tuple[Drop, ...] = ()
    evidence: tuple[Position, ...] = ()


class TransitionPlanned(Event, frozen=True, tag=True):
    """Phase one begins: joiners and affected members prepare new links.

    `parts` counts the `ChangesDrafted` before it, which belong to it. Where `implied`, those who
    must acknowledge are too many to list: they follow from the motive, the layout and the holders
    at this position, by the rule of `transition.required_members`. With `asks_saves` everybody says
    what it could load, too: nobody who lives may hold the state of some slot.
    """

    job: JobId
    transition: TransitionId
    motive: Motive
    from_epoch: Epoch
    changes: tuple[Change, ...]
    required: tuple[NodeId, ...]
    deadline_at_ms: int
    reason: str
    evidence: tuple[Position, ...] = ()
    replaces: TransitionId = TransitionId(0)
    considered: tuple[str, ...] = ()
    drops: tuple[Drop, ...] = ()
    givers: tuple[Giver, ...] = ()
    parts: int = 0
    implied: bool = False
    asks_saves: bool = False


class TransitionPrepared(Event, frozen=True, tag=True):
    """A required node holds every new link; if it is parked, `report` says at which step."""

    job: JobId
    transition: TransitionId
    node: NodeId
    incarnation: Incarnation
    report: Report | None = None
    links_opened: int = 0
    took_ms: float = 0.0
    quiesce_ms: float = 0.0


class TransitionRefused(Event, frozen=True, tag=True):
    """A required node cannot prepare, and says why."""

    job: JobId
    transition: TransitionId
    node: NodeId
    incarnation: Incarnation
    reason: str
    blames: NodeId = NodeId("")


class Handover(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One slot receives the training state; any of `sources` (slots' nodes) holds it."""

    slot: Slot
    joiner: NodeId
    sources: tuple[NodeId, ...]
    kind: str = "replica"


class SourcesChosen(Event, frozen=True, tag=True):
    """A part of the handovers of a commit that is too large for one event; parts count from 1, the
    commit follows.
    """

    job: JobId
    transition: TransitionId
    part: int
    reason: str
    handovers: tuple[Handover, ...] = ()
    evidence: tuple[Position, ...] = ()


class TransitionCommitted(Event, frozen=True, tag=True):
    """Phase two: from here only forward. The new epoch is the job's epoch.

    For a parked job `resume_step` is the next step to run and `apply` lists the slots that must
    first apply the step before it; for a planned transition the vote chooses the boundary and
    `resume_step` is -1. `parts` counts the `SourcesChosen` before it, which belong to it.

    Where it `loads`, every slot that receives nothing loads what was saved of the step before
    `resume_step`. `repeats` is how many steps had been committed from there on, by all that is
    known, and are done again.
    """

    job: JobId
    transition: TransitionId
    epoch: Epoch
    resume_step: int
    apply: tuple[Slot, ...]
    handovers: tuple[Handover, ...]
    deadline_at_ms: int
    reason: str
    parts: int = 0
    loads: bool = False
    repeats: int = 0
    evidence: tuple[Position, ...] = ()


class TransitionApplied(Event, frozen=True, tag=True):
    """A member trains inside the new group with `peers`, and in the same step if it keeps it."""

    job: JobId
    transition: TransitionId
    epoch: Epoch
    node: NodeId
    incarnation: Incarnation
    step: int
    peers: tuple[str, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)
    bytes_received: int = 0
    keeps_step: bool = False


class TransitionFinished(Event, frozen=True, tag=True):
    """Every member, the joiners included, reported from inside the new group."""

    job: JobId
    transition: TransitionId
    epoch: Epoch
    reason: str
    evidence: tuple[Position, ...] = ()


class TransitionAborted(Event, frozen=True, tag=True):
    """A transition that did not commit was given up; the run was not touched.

    `stalls` says that no live member holds the job's state: another try would end alike.
    """

    job: JobId
    transition: TransitionId
    reason: str
    blockers: tuple[NodeId, ...] = ()
    retry_after_ms: int = 0
    stalls: bool = False
    evidence: tuple[Position, ...] = ()


class StepResumed(Event, frozen=True, tag=True):
    """A member committed its first step of the new epoch; ends the downtime of an incident."""

    job: JobId
    transition: TransitionId
    node: NodeId
    incarnation: Incarnation
    step: int
    step_ms: float
    committed_at_ms: float = 0.0
    previous_at_ms: float = 0.0


# --- leaving, sweeping, returning -------------------------------------------------------------


class NodeQuarantined(Event, frozen=True, tag=True):
    """A node is kept out of every duty until a sweep or an operator clears it."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    evidence: tuple[Position, ...] = ()


class NodeDrained(Event, frozen=True, tag=True):
    """A leaver that an operator drained was released to the operator."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    evidence: tuple[Position, ...] = ()


class NodePooled(Event, frozen=True, tag=True):
    """A healthy leaver, or a drained node given back, belongs to the pool again."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    evidence: tuple[Position, ...] = ()


class NodeRetired(Event, frozen=True, tag=True):
    """A repeat offender left the fleet for good, until an operator releases it."""

    node: NodeId
    incarnation: Incarnation
    reason: str
    evidence: tuple[Position, ...] = ()


class SweepRequested(Event, frozen=True, tag=True):
    """A sweep of one node begins: the rounds to run, and the partner where one is needed."""

    sweep: SweepId
    node: NodeId
    incarnation: Incarnation
    rounds: tuple[str, ...]
    reason: str
    partner: NodeId = NodeId("")
    partner_host: str = ""
    partner_port: int = 0
    deadline_at_ms: int = 0
    by: str = ""
    evidence: tuple[Position, ...] = ()


class SweepRoundFinished(Event, frozen=True, tag=True):
    """One round's measurements; numbers only, the judgement is the controller's."""

    sweep: SweepId
    node: NodeId
    incarnation: Incarnation
    round: str
    measurements: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    partner: NodeId = NodeId("")


class SweepExtended(Event, frozen=True, tag=True):
    """A slow pair has two ends: the link of the swept node to a third party is measured as well."""

    sweep: SweepId
    node: NodeId
    incarnation: Incarnation
    round: str
    partner: NodeId
    partner_host: str
    partner_port: int
    reason: str
    evidence: tuple[Position, ...] = ()


class SweepFinished(Event, frozen=True, tag=True):
    """The judgement over a sweep's measurements."""

    sweep: SweepId
    node: NodeId
    incarnation: Incarnation
    outcome: SweepOutcome
    reason: str
    evidence: tuple[Position, ...] = ()


class CertificateIssued(Event, frozen=True, tag=True):
    """Proof of a passed sweep: what ran, its numbers, the versions, until when it counts."""

    sweep: SweepId
    node: NodeId
    incarnation: Incarnation
    measurements: dict[str, float]
    expires_at_ms: int
    versions: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    evidence: tuple[Position, ...] = ()


class RemedyRequested(Event, frozen=True, tag=True):
    """A node in quarantine shall be mended: the remedy by its name, the how-manieth from 0.

    It survives a restart of the node, since restarting may be the remedy.
    """

    node: NodeId
    remedy: str
    number: int
    reason: str
    deadline_at_ms: int
    evidence: tuple[Position, ...] = ()


class RemedyFinished(Event, frozen=True, tag=True):
    """A remedy was carried out, or could not be; the next sweep says if it helped."""

    node: NodeId
    remedy: str
    number: int
    is_done: bool
    detail: str = ""


# --- operators and the controller -------------------------------------------------------------


class DrainRequested(Event, frozen=True, tag=True):
    """An operator wants a node out at the next step boundary."""

    node: NodeId
    by: str
    comment: str = ""


class SwitchoverRequested(Event, frozen=True, tag=True):
    """An operator wants a slot's node replaced; the leaver stays in the pool."""

    node: NodeId
    by: str
    to: NodeId = NodeId("")
    comment: str = ""


class QuarantineRequested(Event, frozen=True, tag=True):
    """An operator wants a node out and kept out."""

    node: NodeId
    by: str
    comment: str = ""


class ReleaseRequested(Event, frozen=True, tag=True):
    """An operator gives a drained, quarantined or retired node back; `force` needs a comment."""

    node: NodeId
    by: str
    force: bool = False
    comment: str = ""


class SweepAsked(Event, frozen=True, tag=True):
    """An operator wants a node swept."""

    node: NodeId
    by: str
    comment: str = ""


class ActRefused(Event, frozen=True, tag=True):
    """An operator's act that the state forbids, with the reason."""

    act: str
    node: NodeId
    by: str
    reason: str
    evidence: tuple[Position, ...] = ()


class DecisionsPaused(Event, frozen=True, tag=True):
    """Harmful decisions stop until resumed; recovery from losses goes on."""

    by: str
    comment: str = ""


class DecisionsResumed(Event, frozen=True, tag=True):
    """Harmful decisions are allowed again."""

    by: str
    comment: str = ""


class PolicyChanged(Event, frozen=True, tag=True):
    """From this position on the policy is this one; `knobs` are those that differ from default."""

    version: int
    knobs: dict[str, Any]
    by: str
    comment: str = ""


class LeaderElected(Event, frozen=True, tag=True):
    """A controller won the leadership; `term` is its fencing token."""

    controller: str
    term: int


class FaultInjected(Event, frozen=True, tag=True):
    """A test or campaign hurt a node on purpose; never an input of a decision."""

    node: NodeId
    kind: str
    detail: str = ""
    injected_at_ms: float = 0.0


class FaultLifted(Event, frozen=True, tag=True):
    """A test or campaign took its fault back; never an input of a decision."""

    node: NodeId
    kind: str
    detail: str = ""


class UnknownEvent(Event, frozen=True, tag=True):
    """A tag of a newer version: kept as it is, reported, folded into nothing."""

    tag: str
    raw: bytes


AnyEvent = (
    NodeJoined
    | NodeLeft
    | NodeLost
    | NodeAssigned
    | WorkerReady
    | WorkerExited
    | WorkerFinished
    | PeerReset
    | PeerWaited
    | GroupBroken
    | LeaseExpired
    | JobDeclared
    | JobStopRequested
    | JobFinished
    | JobRestarted
    | WarmupStarted
    | WarmupPassed
    | WarmupFailed
    | RecordingMade
    | CheckpointWritten
    | VerdictIssued
    | VerdictWithdrawn
    | ActWithheld
    | ChangesDrafted
    | TransitionPlanned
    | TransitionPrepared
    | TransitionRefused
    | SourcesChosen
    | TransitionCommitted
    | TransitionApplied
    | TransitionFinished
    | TransitionAborted
    | StepResumed
    | NodeQuarantined
    | NodeDrained
    | NodePooled
    | NodeRetired
    | SweepRequested
    | SweepRoundFinished
    | SweepExtended
    | SweepFinished
    | CertificateIssued
    | RemedyRequested
    | RemedyFinished
    | DrainRequested
    | SwitchoverRequested
    | QuarantineRequested
    | ReleaseRequested
    | SweepAsked
    | ActRefused
    | DecisionsPaused
    | DecisionsResumed
    | PolicyChanged
    | LeaderElected
    | FaultInjected
    | FaultLifted
    | UnknownEvent
)
"""The closed union of facts: a `match` over it ends in `assert_never`."""


class Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a writer puts into its inbox: the event, when and by whom it was stated.

    `at_ms` is Unix time of the writer's clock; it is kept for people and never ordered by.
    `counter` is the writer's own dense number, from 1.
    """

    event: AnyEvent
    at_ms: int
    writer: str
    incarnation: Incarnation = Incarnation(0)
    counter: int = 0


class Recorded(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event with its place in the log.

    `at_ms` is Unix time of the sequencer's clock, never decreasing along the log; `stated_at_ms`
    the writer's own; `policy_version` is the policy in force at a decision.
    """

    position: Position
    at_ms: int
    writer: str
    event: AnyEvent
    stated_at_ms: int = 0
    incarnation: Incarnation = Incarnation(0)
    counter: int = 0
    decided_from: Position = Position(0)
    policy_version: int = 0

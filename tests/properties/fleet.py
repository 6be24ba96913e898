"""A fleet to which anything may be said: facts in any order, twice, late, from whoever is dead.

What belongs here: one method per kind of fact, each of which picks what it is about by a function
it is given, so that hypothesis and a seeded generator can both drive it. Nothing here is sensible;
whatever is said, every invariant must hold and the core must come to rest. `heal` is the other
half: when everybody cooperates again, the job must come back to work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from statemachine import events as e
from statemachine.decide import next_deadline, settle
from statemachine.ids import (
    Epoch,
    GroupName,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Role,
    SweepId,
    TransitionId,
)
from statemachine.invariants import CheckedFold
from statemachine.lifecycle import NodeState, Phase, Warmth
from statemachine.state import FleetState, Job

T = TypeVar("T")
Pick = Callable[[Sequence[Any]], Any]

JOB: Final = JobId("j")
NODES: Final = tuple(NodeId(f"n{number}") for number in range(6))
SLOTS: Final = 3
BEGIN_MS: Final = 1_000_000
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"shadow": True},
    {"on_loss": ["standby", "wait"]},
    {"on_loss": ["standby", "cold", "shrink", "wait"]},
    {"on_loss": ["standby", "cold", "wait", "restart"], "loss_wait_s": 30.0},
    {"harmful_nodes_max": 0, "harmful_share_max": 0.0},
    {"renew_interval_s": 1000.0},  # refused: the lattice does not hold
)
_ROUNDS: Final = ("solo", "reference", "pair", "third")


class Fleet:
    """The fold, the log and the clock. `pick` chooses one of several."""

    serves: tuple[JobId, ...] = ()

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.fold = CheckedFold()
        self.log: list[e.Recorded] = []
        self.facts: list[e.AnyEvent] = []
        self.now_ms = BEGIN_MS
        self.about = JOB
        """The job that things are said of."""
        self.say(e.JobDeclared(job=JOB, axes={"dp": SLOTS}, standbys=1))

    @property
    def state(self) -> FleetState:
        """The folded state."""
        return self.fold.state

    @property
    def job(self) -> Job:
        """The job that things are said of."""
        return self.state.jobs[self.about]

    def say(self, *events: e.AnyEvent) -> None:
        """State facts, then decide until nothing follows."""
        for event in events:
            self.facts.append(event)
            position = Position(self.state.position + 1)
            self._take(e.Recorded(position=position, at_ms=self.now_ms, writer="w", event=event))
        settled = settle(self.state, self.now_ms, "core")
        for recorded in settled.recorded:
            self._take(recorded)
        assert self.state == settled.state, "what was decided folds to another state"

    def _take(self, recorded: e.Recorded) -> None:
        self.fold.take(recorded)
        self.log.append(recorded)

    # --- who, of which life -------------------------------------------------------------------

    def node(self) -> NodeId:
        """Any node, whether it ever joined or not."""
        found: NodeId = self.pick(NODES)
        return found

    def life(self, node: NodeId) -> Incarnation:
        """Mostly its present life, sometimes the one before, or one to come."""
        record = self.state.nodes.get(node)
        present = record.incarnation if record is not None else 0
        return Incarnation(max(1, present + self.pick((0, 0, 0, 0, -1, 1))))

    def who(self) -> dict[str, Any]:
        """A node and one of its lives, as fields."""
        node = self.node()
        return {"node": node, "incarnation": self.life(node)}

    def transition(self) -> TransitionId:
        """Mostly the last transition, sometimes an earlier one, or one to come."""
        return TransitionId(max(1, self.job.last_transition + self.pick((0, 0, 0, 0, -1, 1))))

    # --- what may be said ---------------------------------------------------------------------

    def join(self) -> None:
        """An agent starts, whether its last life is over or not."""
        node = self.node()
        record = self.state.nodes.get(node)
        life = (record.incarnation if record is not None else 0) + 1
        labels = {"fabric": self.pick(("a", "b"))}
        self.say(
            e.NodeJoined(
                node=node,
                incarnation=Incarnation(life),
                host="h",
                probe_port=9,
                labels=labels,
                serves=self.serves,
            )
        )

    def ready(self) -> None:
        """A training process is ready, of one code or another."""
        digest = self.pick(("code", "code", "other"))
        self.say(
            e.WorkerReady(
                **self.who(),
                job=self.about,
                host="h",
                port=1,
                transfer_port=2,
                pid=3,
                digest=digest,
            )
        )

    def evidence(self) -> None:
        """Somebody is said to be gone, by itself, a peer or its lease."""
        who = self.who()
        peer = self.node()
        about: dict[str, Any] = {
            "peer": peer,
            "peer_incarnation": self.life(peer),
            "epoch": self.job.epoch,
        }
        said: tuple[e.AnyEvent, ...] = (
            e.WorkerExited(**who, job=self.about, reason="it ended"),
            e.LeaseExpired(**who),
            e.NodeLeft(**who),
            e.PeerReset(**who, **about, job=self.about, group=GroupName("dp[0]")),
            e.PeerWaited(**who, **about, job=self.about, waited_ms=1.0, silent_ms=1.0),
            e.PeerWaited(**who, **about, job=self.about, waited_ms=1.0, silent_ms=0.0),
            e.GroupBroken(**who, job=self.about, epoch=self.job.epoch, cause="timed out"),
        )
        self.say(self.pick(said))

    def two_accuse_each_other(self) -> None:
        """Two nodes accuse each other before anybody decides."""
        one, other = self.who(), self.who()
        group = GroupName("dp[0]")
        for by, of in ((one, other), (other, one)):
            reset = e.PeerReset(
                **by,
                job=self.about,
                epoch=Epoch(1),
                peer=of["node"],
                peer_incarnation=of["incarnation"],
                group=group,
            )
            self.facts.append(reset)
            position = Position(self.state.position + 1)
            self._take(e.Recorded(position=position, at_ms=self.now_ms, writer="w", event=reset))
        self.say()

    def prepared(self) -> None:
        """Somebody acknowledges, with any report."""
        report = e.Report(
            has_state=self.pick((True, True, False)),
            applied=self.pick((3, 4, 5)),
            pending=self.pick((-1, 4, 5, 6)),
        )
        self.say(
            e.TransitionPrepared(
                **self.who(),
                job=self.about,
                transition=self.transition(),
                report=self.pick((report, report, None)),
            )
        )

    def members_answer(self) -> None:
        """Everybody who is awaited answers as asked."""
        pending = self.job.pending
        if pending is None:
            return
        for name in pending.awaited():
            record = self.state.nodes[name]
            self.say(self._answer(record.node, record.incarnation))

    def _answer(self, node: NodeId, incarnation: Incarnation) -> e.AnyEvent:
        pending = self.job.pending
        if pending is None or pending.phase is Phase.COMMITTED:
            return e.TransitionApplied(
                job=self.about,
                transition=self.job.last_transition,
                epoch=self.job.epoch,
                node=node,
                incarnation=incarnation,
                step=6,
            )
        joins = any(change.joiner == node for change in pending.plan.changes)
        fresh = joins or pending.plan.motive is e.Motive.LAUNCH
        return e.TransitionPrepared(
            job=self.about,
            transition=pending.plan.transition,
            node=node,
            incarnation=incarnation,
            report=e.Report(has_state=not fresh, applied=5),
        )

    def refused(self) -> None:
        """Somebody cannot prepare, and names anybody or nobody."""
        blames = self.pick((*NODES, NodeId("")))
        self.say(
            e.TransitionRefused(
                **self.who(),
                job=self.about,
                transition=self.transition(),
                reason="no",
                blames=blames,
            )
        )

    def applied(self) -> None:
        """Somebody reports from inside, rightly or not."""
        self.say(
            e.TransitionApplied(
                **self.who(),
                job=self.about,
                transition=self.transition(),
                epoch=self.job.epoch,
                step=6,
            )
        )

    def rehearsed(self) -> None:
        """A rehearsal ends, whether one is under way or not."""
        who, role = self.who(), Role(self.pick(("only", "first")))
        digest = self.pick(("code", "code", "other"))
        passed = e.WarmupPassed(
            **who,
            job=self.about,
            role=role,
            digest=digest,
            first_step_ms=1.0,
            steady_step_ms=1.0,
            took_ms=1.0,
        )
        failed = e.WarmupFailed(**who, job=self.about, role=role, reason="NaN")
        self.say(self.pick((passed, passed, failed)))

    def all_rehearse(self) -> None:
        """Every rehearsal that is under way is passed."""
        for name in sorted(self.state.pool):
            node = self.state.nodes[name]
            for entry in node.rehearsals:
                if entry.warmth is Warmth.WARMING and node.worker is not None:
                    self.say(
                        e.WarmupPassed(
                            node=name,
                            incarnation=node.incarnation,
                            job=entry.job,
                            role=entry.role,
                            digest=node.worker.digest,
                            first_step_ms=1.0,
                            steady_step_ms=1.0,
                            took_ms=1.0,
                        )
                    )

    def verdict(self) -> None:
        """The detector speaks."""
        verdict = self.pick(tuple(e.Verdict))
        issued = e.VerdictIssued(
            **self.who(), verdict=verdict, reason="slow", expires_at_ms=self.now_ms + 60_000
        )
        withdrawn = e.VerdictWithdrawn(**self.who(), reason="fast again")
        self.say(self.pick((issued, issued, withdrawn)))

    def round(self) -> None:
        """A round of a sweep ends, of a sweep that is open or not."""
        number = SweepId(max(1, self.state.last_sweep + self.pick((0, 0, -1, 1))))
        name, speed = self.pick(_ROUNDS), self.pick((100.0, 100.0, 50.0))
        self.say(
            e.SweepRoundFinished(
                **self.who(),
                sweep=number,
                round=name,
                measurements={"gemm_gflops_best": speed, "link_mbps_best": speed},
                failure=self.pick(("", "", "it crashed")),
            )
        )

    def act(self) -> None:
        """An operator wants something."""
        node = self.node()
        acts: tuple[e.AnyEvent, ...] = (
            e.DrainRequested(node=node, by="ann"),
            e.SwitchoverRequested(node=node, by="ann", to=self.pick((*NODES, NodeId("")))),
            e.QuarantineRequested(node=node, by="ann", comment="odd"),
            e.ReleaseRequested(node=node, by="ann", force=self.pick((True, False))),
            e.SweepAsked(node=node, by="ann"),
            e.DecisionsPaused(by="ann"),
            e.DecisionsResumed(by="ann"),
        )
        self.say(self.pick(acts))

    def policy(self) -> None:
        """An operator changes the policy, to one that holds together or not."""
        version = self.state.policy_version + 1
        self.say(e.PolicyChanged(version=version, knobs=self.pick(POLICIES), by="ann"))

    def finished(self) -> None:
        """A training process claims to have committed the last step."""
        self.say(e.WorkerFinished(**self.who(), job=self.about, step=9))

    def again(self) -> None:
        """Any fact that was ever stated is stated again, but no birth: the store numbers lives."""
        self.say(self.pick([f for f in self.facts if not isinstance(f, e.NodeJoined)]))

    def takeover(self) -> None:
        """Another controller leads."""
        self.say(e.LeaderElected(controller="c2", term=self.state.term + 1))

    def wait(self) -> None:
        """Time passes: a little, or up to the next deadline."""
        due_ms = next_deadline(self.state, self.now_ms, self.state.policy)
        later = self.now_ms + self.pick((1, 500, 20_000))
        self.now_ms = self.pick((later, due_ms or later))
        self.say()

    # --- the other half -----------------------------------------------------------------------

    def heal(self, rounds: int = 40) -> None:
        """Everybody cooperates again, for so many rounds at most.

        Raises:
            AssertionError: the job did not come back to work.
        """
        self._give_back()
        for _ in range(rounds):
            if self._works():
                return
            for name in NODES:
                self._bring_up(name)
            self._all_answer()
            self.all_rehearse()
            self._finish_sweeps()
            due_ms = next_deadline(self.state, self.now_ms, self.state.policy)
            if not self._is_pending() and due_ms is not None:
                self.now_ms = due_ms
            self.say()
        raise AssertionError(f"not at work after {rounds} rounds")

    def _is_pending(self) -> bool:
        return any(job.pending is not None for job in self.state.jobs.values())

    def home(self, name: NodeId) -> JobId:
        """The job whose training process a node starts by itself."""
        return self.about

    def _all_answer(self) -> None:
        self.members_answer()

    def _give_back(self) -> None:
        """Nothing is forbidden any more, and nobody is accused of being slow."""
        version = self.state.policy_version + 1
        knobs = {"on_loss": ["standby", "cold", "wait", "restart"]}
        self.say(
            e.DecisionsResumed(by="ann"),
            e.PolicyChanged(version=version, knobs=knobs, by="ann"),
        )
        for name in NODES:
            record = self.state.nodes.get(name)
            if record is not None and record.verdict is not None:
                self.say(
                    e.VerdictWithdrawn(node=name, incarnation=record.incarnation, reason="healed")
                )

    def _bring_up(self, name: NodeId) -> None:
        record = self.state.nodes.get(name)
        if record is None or record.state in (NodeState.LOST, NodeState.GONE):
            life = Incarnation((record.incarnation if record is not None else 0) + 1)
            self.say(
                e.NodeJoined(
                    node=name, incarnation=life, host="h", probe_port=9, serves=self.serves
                )
            )
        record = self.state.nodes[name]
        if record.worker is None and self.state.current(name, record.incarnation) is not None:
            self.say(
                e.WorkerReady(
                    node=name,
                    incarnation=record.incarnation,
                    job=record.job or self.home(name),
                    host="h",
                    port=1,
                    transfer_port=2,
                    pid=3,
                    digest="code",
                )
            )
        out = (NodeState.DRAINED, NodeState.QUARANTINED, NodeState.RETIRED)
        if self.state.nodes[name].state in out:
            self.say(e.ReleaseRequested(node=name, by="ann", force=True, comment="healed"))

    def _finish_sweeps(self) -> None:
        for number in sorted(self.state.sweeps):
            sweep = self.state.sweeps[number]
            for name in sweep.open_rounds():
                self.say(
                    e.SweepRoundFinished(
                        sweep=number,
                        node=sweep.request.node,
                        incarnation=sweep.request.incarnation,
                        round=name,
                        measurements={"gemm_gflops_best": 100.0, "link_mbps_best": 100.0},
                        partner=sweep.request.partner,
                    )
                )

    def _works(self) -> bool:
        job = self.job
        if job.finished:
            return True
        shrunk = bool(job.idle) and not job.finished_nodes  # near its end it is not grown
        whole = job.launched and not (job.vacant or shrunk or job.unproven)
        busy = (NodeState.LEAVING, NodeState.WARMING, NodeState.SWEEPING)
        at_rest = not any(self.state.nodes[n].state in busy for n in self.state.nodes)
        return whole and job.pending is None and at_rest


ACTIONS: Final = (
    Fleet.join,
    Fleet.join,
    Fleet.ready,
    Fleet.ready,
    Fleet.evidence,
    Fleet.two_accuse_each_other,
    Fleet.prepared,
    Fleet.members_answer,
    Fleet.members_answer,
    Fleet.members_answer,
    Fleet.refused,
    Fleet.applied,
    Fleet.rehearsed,
    Fleet.all_rehearse,
    Fleet.verdict,
    Fleet.round,
    Fleet.act,
    Fleet.policy,
    Fleet.finished,
    Fleet.again,
    Fleet.takeover,
    Fleet.wait,
)
"""What may happen, the more often named the more likely."""


def begun(pick: Pick) -> Fleet:
    """A fleet whose job trains, with three standbys."""
    fleet = Fleet(pick)
    for name in NODES:
        fleet._bring_up(name)
    fleet.heal()
    return fleet

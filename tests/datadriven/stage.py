"""The commands of scripts: one short method each, named like it.

What belongs here: which facts a command states. `do_fleet` and its siblings say what they take:
names first, then options.
"""

from __future__ import annotations

import msgspec

from statemachine import events as e
from statemachine.codec import decode_event
from statemachine.decide import next_deadline
from statemachine.ids import (
    Epoch,
    GroupName,
    Incarnation,
    JobId,
    NodeId,
    Role,
    TransitionId,
)
from statemachine.lifecycle import Phase, Warmth
from statemachine.notation import lines_of_state
from tests.datadriven.ground import Ground, Options

VERDICT_S = 600


class Stage(Ground):
    """A fleet that obeys commands."""

    # --- nodes --------------------------------------------------------------------------------

    def do_fleet(self, names: list[str], options: Options) -> None:
        """Declare a job, let nodes join, launch, and let every standby rehearse."""
        standbys = options.pop("standby", "").split(",") if options.get("standby") else []
        axes = [f"{name}={size}" for name, size in options.items() if name in ("pp", "dp", "tp")]
        self.do_job(["j"], {**dict(a.split("=") for a in axes or [f"dp={len(names)}"])})
        self.do_join([*names, *standbys], {})
        self.do_ready([*names, *standbys], {})
        self.do_prepared([], {})
        self.do_applied([], {})
        self.do_warm([], {})
        self._lines = []

    def do_join(self, names: list[str], options: Options) -> None:
        """Nodes join, each under its next incarnation."""
        labels = {"fabric": options["fabric"]} if "fabric" in options else {}
        for name in names:
            node, last = self.life(name)
            joined = e.NodeJoined(
                node=node,
                incarnation=Incarnation(last + 1),
                host="h",
                probe_port=9,
                hardware=options.get("hardware", ""),
                labels=labels,
                serves=tuple(JobId(job) for job in options.get("serves", "").split(",") if job),
            )
            self._enter(joined, name)
        self.settle()

    def do_ready(self, names: list[str], options: Options) -> None:
        """Training processes reach their step loop."""
        job = JobId(options.get("job", min(self.state.jobs, default="j")))
        digest = options.get("digest", "code")
        for name in names:
            node, incarnation = self.life(name)
            ready = e.WorkerReady(
                node=node,
                incarnation=incarnation,
                job=job,
                host="h",
                port=1,
                transfer_port=2,
                pid=3,
                digest=digest,
            )
            self._enter(ready, name)
        self.settle()

    def do_warm(self, names: list[str], options: Options) -> None:
        """Every rehearsal that is under way is passed, until none is left."""
        for _ in range(20):
            self._rehearse(names, options, failure="")
            if not any(r for name in self.state.unready for r in self._under_way(name)):
                return

    def do_fail_warmup(self, names: list[str], options: Options) -> None:
        """Every rehearsal that is under way fails."""
        self._rehearse(names, options, failure=options.get("reason", "it raised"))

    def _under_way(self, name: NodeId) -> list[Role]:
        node = self.state.nodes[name]
        return [r.role for r in node.rehearsals if r.warmth is Warmth.WARMING]

    def _rehearse(self, names: list[str], options: Options, *, failure: str) -> None:
        for name in sorted(self.state.unready):
            node = self.state.nodes[name]
            for role in self._under_way(name) if not names or name in names else []:
                digest = options.get("digest", node.worker.digest if node.worker else "")
                fact: e.AnyEvent = e.WarmupPassed(
                    node=name,
                    incarnation=node.incarnation,
                    job=node.job,
                    role=role,
                    digest=digest,
                    first_step_ms=1.0,
                    steady_step_ms=1.0,
                    took_ms=1.0,
                )
                if failure:
                    fact = e.WarmupFailed(
                        node=name,
                        incarnation=node.incarnation,
                        job=node.job,
                        role=role,
                        reason=failure,
                    )
                self._enter(fact, name)
        self.settle()

    # --- evidence -----------------------------------------------------------------------------

    def do_reset(self, names: list[str], options: Options) -> None:
        """``reset n0 n1 n2``: n0 and n1 report that their link to n2 was reset."""
        peer, peer_incarnation = self.life(names[-1])
        for name in names[:-1]:
            node, incarnation = self.life(name)
            fact = e.PeerReset(
                node=node,
                incarnation=incarnation,
                job=JobId("j"),
                epoch=Epoch(0),
                peer=peer,
                peer_incarnation=peer_incarnation,
                group=GroupName("dp[0]"),
            )
            self._enter(fact, name)
        self.settle()

    def do_mutual(self, names: list[str], options: Options) -> None:
        """Two nodes accuse each other before anybody can decide; the first named speaks first."""
        (one, first), (two, second) = self.life(names[0]), self.life(names[1])
        job, group = JobId("j"), GroupName("dp[0]")
        for node, incarnation, peer, peer_life in (
            (one, first, two, second),
            (two, second, one, first),
        ):
            fact = e.PeerReset(
                node=node,
                incarnation=incarnation,
                job=job,
                epoch=Epoch(0),
                peer=peer,
                peer_incarnation=peer_life,
                group=group,
            )
            self._enter(fact, node)
        self.settle()

    def do_waits(self, names: list[str], options: Options) -> None:
        """``waits n0 n1 n2``: n0 and n1 wait for n2, which is silent; ``silent=0``: no more."""
        peer, peer_incarnation = self.life(names[-1])
        for name in names[:-1]:
            node, incarnation = self.life(name)
            fact = e.PeerWaited(
                node=node,
                incarnation=incarnation,
                job=JobId("j"),
                epoch=Epoch(0),
                peer=peer,
                peer_incarnation=peer_incarnation,
                waited_ms=5000.0,
                silent_ms=float(options.get("silent", "2000")),
            )
            self._enter(fact, name)
        self.settle()

    def do_broken(self, names: list[str], options: Options) -> None:
        """A member is parked in a broken group, though nobody died; ``epoch=`` of the group."""
        job = self.job(options)
        node, incarnation = self.life(names[0])
        epoch = Epoch(int(options.get("epoch", job.epoch)))
        fact = e.GroupBroken(
            node=node, incarnation=incarnation, job=job.job, epoch=epoch, cause="timed out"
        )
        self.state_facts(fact, writer=names[0])

    def do_exit(self, names: list[str], options: Options) -> None:
        """Agents see their training processes end."""
        for name in names:
            node, incarnation = self.life(name)
            fact = e.WorkerExited(
                node=node, incarnation=incarnation, job=JobId("j"), reason="signal 9"
            )
            self._enter(fact, name)
        self.settle()

    def do_expire(self, names: list[str], options: Options) -> None:
        """Leases run out."""
        lives = [self.life(name) for name in names]
        self.state_facts(*(e.LeaseExpired(node=n, incarnation=i) for n, i in lives))

    def do_leave(self, names: list[str], options: Options) -> None:
        """Agents give their leases back."""
        lives = [self.life(name) for name in names]
        self.state_facts(*(e.NodeLeft(node=n, incarnation=i) for n, i in lives))

    # --- transitions --------------------------------------------------------------------------

    def _members(self, names: list[str], options: Options) -> list[str]:
        return names or [str(name) for name in self.pending(options).awaited()]

    def do_prepared(self, names: list[str], options: Options) -> None:
        """Members acknowledge; without names all who are awaited. ``at=5`` and ``holds=6`` say
        which step they applied and whose gradients they hold; ``state=no`` that they hold none;
        ``saves=1,3`` what they could load, which they say where they are asked.
        """
        pending, job = self.pending(options), self.job(options).job
        joiners = {change.joiner for change in pending.plan.changes}
        asked = pending.plan.asks_saves or pending.plan.motive is e.Motive.LAUNCH
        said = options.get("saves", "") if asked else ""
        saves = tuple(int(step) for step in said.split(",") if step)
        for name in self._members(names, options):
            node, incarnation = self.life(name)
            fresh = pending.plan.motive is e.Motive.LAUNCH or node in joiners
            report = e.Report(
                has_state=options.get("state", "no" if fresh else "yes") == "yes",
                applied=int(options.get("at", "5")),
                pending=int(options.get("holds", "-1")),
                saved=saves[-1] if saves else -1,
                saves=saves,
            )
            fact = e.TransitionPrepared(
                job=job,
                transition=TransitionId(int(options.get("t", pending.plan.transition))),
                node=node,
                incarnation=incarnation,
                report=None if pending.plan.motive is e.Motive.PLANNED else report,
            )
            self._enter(fact, name)
        self.settle()

    def do_refuse(self, names: list[str], options: Options) -> None:
        """A member cannot prepare."""
        pending, (node, incarnation) = self.pending(options), self.life(names[0])
        refused = e.TransitionRefused(
            job=self.job(options).job,
            transition=pending.plan.transition,
            node=node,
            incarnation=incarnation,
            reason=options.get("reason", "no link"),
            blames=NodeId(options.get("blames", "")),
        )
        self.state_facts(refused, writer=names[0])

    def do_applied(self, names: list[str], options: Options) -> None:
        """Members report from inside the new group; without names all who are awaited."""
        pending, job = self.pending(options), self.job(options)
        for name in self._members(names, options):
            node, incarnation = self.life(name)
            fact = e.TransitionApplied(
                job=job.job,
                transition=TransitionId(int(options.get("t", pending.plan.transition))),
                epoch=job.epoch,
                node=node,
                incarnation=incarnation,
                step=6,
            )
            self._enter(fact, name)
        self.settle()

    def do_carry(self, names: list[str], options: Options) -> None:
        """Whatever is pending is carried out to its end: all prepare, all apply."""
        if self.pending(options).phase is Phase.PREPARING:
            self.do_prepared([], options)
        self.do_applied([], options)

    def do_stop(self, names: list[str], options: Options) -> None:
        """An operator asks that a job end."""
        job = self.job(options).job if not names else JobId(names[0])
        self.state_facts(e.JobStopRequested(job=job, by="op"))

    def do_finish(self, names: list[str], options: Options) -> None:
        """``finish n0 step=9``: members commit the last step."""
        job = self.job(options).job
        step = int(options.get("step", "9"))
        for name in names:
            node, incarnation = self.life(name)
            fact = e.WorkerFinished(node=node, incarnation=incarnation, job=job, step=step)
            self._enter(fact, name)
        self.settle()

    # --- health -------------------------------------------------------------------------------

    def do_verdict(self, names: list[str], options: Options) -> None:
        """``verdict n1 degraded``: the detector judges a node."""
        node, incarnation = self.life(names[0])
        lasts_s = int(options.get("for", VERDICT_S))
        verdict = e.VerdictIssued(
            node=node,
            incarnation=incarnation,
            verdict=e.Verdict(names[1]),
            reason=options.get("reason", "work 1.4x its peers"),
            expires_at_ms=self.now_ms + lasts_s * 1000,
        )
        self.state_facts(verdict)

    def do_withdraw(self, names: list[str], options: Options) -> None:
        """The detector takes a verdict back."""
        node, incarnation = self.life(names[0])
        reason = "as fast as its peers"
        self.state_facts(e.VerdictWithdrawn(node=node, incarnation=incarnation, reason=reason))

    def do_measure(self, names: list[str], options: Options) -> None:
        """``measure n1 fast``: every open round of the node's sweep is finished; ``fast``, ``slow``
        or ``blind`` says what it measures.
        """
        node = self.state.nodes[NodeId(names[0])]
        for name in self.state.sweeps[node.sweep].open_rounds():
            slow = names[1] == "slow" and name == "solo"
            measured = e.SweepRoundFinished(
                sweep=node.sweep,
                node=node.node,
                incarnation=node.incarnation,
                round=name,
                measurements=_measurements(name, 2.0 if slow else 1.0),
                failure="the probe crashed" if names[1] == "blind" else "",
                partner=self.state.sweeps[node.sweep].request.partner,
            )
            self._enter(measured, names[0])
        self.settle()

    # --- operators and the controller -----------------------------------------------------------

    def do_drain(self, names: list[str], options: Options) -> None:
        """An operator drains nodes."""
        self.state_facts(*(e.DrainRequested(node=NodeId(name), by="ann") for name in names))

    def do_switchover(self, names: list[str], options: Options) -> None:
        """An operator has a node replaced, ``to=`` a certain one."""
        to = NodeId(options.get("to", ""))
        self.state_facts(e.SwitchoverRequested(node=NodeId(names[0]), by="ann", to=to))

    def do_quarantine(self, names: list[str], options: Options) -> None:
        """An operator quarantines nodes."""
        self.state_facts(
            *(e.QuarantineRequested(node=NodeId(n), by="ann", comment="odd") for n in names)
        )

    def do_release(self, names: list[str], options: Options) -> None:
        """An operator gives a node back, ``force=yes`` without a sweep."""
        force = options.get("force") == "yes"
        self.state_facts(e.ReleaseRequested(node=NodeId(names[0]), by="ann", force=force))

    def do_sweep(self, names: list[str], options: Options) -> None:
        """An operator has a node swept."""
        self.state_facts(e.SweepAsked(node=NodeId(names[0]), by="ann"))

    def do_pause(self, names: list[str], options: Options) -> None:
        """An operator pauses harmful decisions."""
        self.state_facts(e.DecisionsPaused(by="ann"))

    def do_resume(self, names: list[str], options: Options) -> None:
        """An operator allows them again."""
        self.state_facts(e.DecisionsResumed(by="ann"))

    def do_policy(self, names: list[str], options: Options) -> None:
        """Knobs from here on; values are JSON, or else text."""
        knobs = {name: _value(text) for name, text in options.items()}
        version = self.state.policy_version + 1
        self.state_facts(e.PolicyChanged(version=version, knobs=knobs, by="ann"))

    def do_job(self, names: list[str], options: Options) -> None:
        """Declare a job with axes as options."""
        plain = {"standbys", "ranks_per_node"}
        declared = e.JobDeclared(
            job=JobId(names[0]),
            axes={name: int(size) for name, size in options.items() if name not in plain},
            standbys=int(options.get("standbys", "0")),
            ranks_per_node=int(options.get("ranks_per_node", "1")),
        )
        self.state_facts(declared)

    def do_leader(self, names: list[str], options: Options) -> None:
        """Another controller takes over."""
        term = self.state.term + 1
        self.state_facts(e.LeaderElected(controller=names[0], term=term), writer=names[0])

    def do_raw(self, names: list[str], options: Options) -> None:
        """An event as it stands in a log, perhaps of a newer release."""
        self.state_facts(decode_event(" ".join(names).encode()))

    def do_wait(self, names: list[str], options: Options) -> None:
        """Let seconds pass; the core decides at each of its deadlines, and at the end."""
        ends_at_ms = self.now_ms + round(float(names[0]) * 1000)
        while (due_ms := next_deadline(self.state, self.now_ms, self.state.policy)) is not None:
            if due_ms > ends_at_ms:
                break
            self.now_ms = due_ms
            self.settle()
        self.now_ms = ends_at_ms
        self.settle()

    def do_state(self, names: list[str], options: Options) -> None:
        """Show the whole state."""
        self._lines += lines_of_state(self.state)


def _measurements(name: str, times: float) -> dict[str, float]:
    if name == "pair":
        return {"link_mbps_best": 1000.0, "link_latency_us_p50": 50.0}
    return {"gemm_gflops_best": 100.0 / times, "gemm_gflops_median": 99.0 / times}


def _value(text: str) -> object:
    """A knob's value: JSON, or words with commas between."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.split(",")

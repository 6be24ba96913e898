"""`FleetHarness`: a fleet on virtual time, for whoever tests a rule or a policy of their own.

What belongs here: nodes that do what nodes do (join, get ready, rehearse, prepare, apply, resume),
faults, operators, and a clock that jumps. The state machine is the one that ships; every event goes
through its invariants, and an own rule is asked twice each time: an answer that differs from itself
is `NotDeterministic`. An hour of a fleet takes milliseconds, and twice the same way.

    fleet = FleetHarness({"dp": 4}, standbys=1, own=my_rule)
    fleet.kill("n2")
    fleet.run(60)
    assert fleet.holder(2) == "n4"
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from controlplane.explaining import Explanation, explain
from statemachine import events as e
from statemachine.codec import decode_recorded, encode_recorded
from statemachine.decide import Decision, Rule, next_deadline, settle
from statemachine.errors import ChangeoverError
from statemachine.ids import Incarnation, JobId, NodeId, Position, Slot
from statemachine.incidents import Incident, incidents
from statemachine.invariants import CheckedFold
from statemachine.lifecycle import Phase, Warmth
from statemachine.policy import Policy, knobs_of
from statemachine.state import FleetState, Job, Node

JOB: Final = JobId("job")
BEGIN_MS: Final = 1_800_000_000_000

ROUNDS_MAX: Final = 3_000
"""Answers after which a rule and the nodes must be chasing each other."""


class NotDeterministic(ChangeoverError):
    """A rule that answers the same state twice in two ways: replay would tell another story."""


class FleetHarness:
    """A fleet of nodes ``n0``, ``n1``, ... with one job.

    `axes` is the job's layout, `standbys` how many nodes there are beyond its slots; `own` is asked
    before the state machine's rules. `answer_s` is how long a node takes to answer, in virtual
    seconds.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        *,
        standbys: int = 0,
        policy: Policy | None = None,
        own: Rule | None = None,
        answer_s: float = 0.05,
    ) -> None:
        self.now_ms = BEGIN_MS
        self.log: list[e.Recorded] = []
        self.rounds: Callable[[str, str], dict[str, float]] = lambda _, name: healthy_measurements(
            name
        )
        """What a node measures in a round of a sweep: of its name and the round's."""
        self._fold = CheckedFold()
        self._own = _twice(own) if own is not None else None
        self._answer_ms = max(1, round(answer_s * 1000))
        self._silent: set[NodeId] = set()
        if policy is not None:
            self.say(e.PolicyChanged(version=1, knobs=knobs_of(policy), by="test"))
        self.say(e.JobDeclared(job=JOB, axes=dict(axes), standbys=standbys))
        for number in range(self.job.layout.slot_count + standbys):
            self.join(f"n{number}")
        self.run(0)
        if not self.job.launched:  # it waits for standbys that a rule keeps from it
            self.run(self.state.policy.launch_patience_s + 1)

    # --- asking -------------------------------------------------------------------------------

    @property
    def state(self) -> FleetState:
        """The folded state."""
        return self._fold.state

    @property
    def job(self) -> Job:
        """The one job."""
        return self.state.jobs[JOB]

    def node(self, name: str) -> Node:
        """One node."""
        return self.state.nodes[NodeId(name)]

    def holder(self, slot: int) -> str | None:
        """Who holds a slot; None while it is vacant."""
        vacant = Slot(slot) in self.job.vacant
        return None if vacant else self.job.holders.get(Slot(slot))

    def said(self, kind: type[e.Event]) -> list[e.Event]:
        """Events of one kind, in order."""
        return [r.event for r in self.log if isinstance(r.event, kind)]

    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far; downtimes are of the virtual clock."""
        return incidents(self.log)

    def explain(self, subject: str) -> Explanation:
        """Why something happened, as `changeover explain` says it."""
        return explain(self.log, subject, "harness")

    # --- causing ------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """A machine joins, anew if it was there before, and its training process is ready."""
        node = NodeId(name)
        known = self.state.nodes.get(node)
        life = Incarnation(known.incarnation + 1 if known is not None else 1)
        self._silent.discard(node)
        self.say(
            e.NodeJoined(node=node, incarnation=life, host=name, probe_port=1, hardware="test"),
            e.WorkerReady(
                node=node,
                incarnation=life,
                job=JOB,
                host=name,
                port=1,
                transfer_port=2,
                pid=100,
                digest="code",
            ),
        )

    def kill(self, name: str, *, seen_by: Sequence[str] | None = None) -> None:
        """A machine dies; its neighbours (or `seen_by`) see their links reset."""
        victim = self.node(name)
        self._silent.add(victim.node)
        peers = seen_by if seen_by is not None else self._members_but(victim.node)[:1]
        for peer in peers:
            self.say(
                e.PeerReset(
                    node=NodeId(peer),
                    incarnation=self.node(peer).incarnation,
                    job=JOB,
                    epoch=self.job.epoch,
                    peer=victim.node,
                    peer_incarnation=victim.incarnation,
                    group=self.job.layout.groups_of_rank(0)[0].name,
                    step=1,
                )
            )

    def silence(self, name: str) -> None:
        """A machine stops answering; its lease ends, and nobody sees a link reset."""
        node = self.node(name)
        self._silent.add(node.node)
        self.say(e.LeaseExpired(node=node.node, incarnation=node.incarnation))

    def judge(
        self, name: str, verdict: e.Verdict, reason: str = "test", *, for_s: float = 600.0
    ) -> None:
        """A detector judges a node."""
        node = self.node(name)
        self.say(
            e.VerdictIssued(
                node=node.node,
                incarnation=node.incarnation,
                verdict=verdict,
                reason=reason,
                job=JOB,
                detector="test",
                expires_at_ms=self.now_ms + round(for_s * 1000),
            )
        )

    def say(self, *events: e.AnyEvent, writer: str = "harness") -> None:
        """State any event, and let the state machine decide."""
        for event in events:
            self._take(
                e.Recorded(
                    position=Position(self.state.position + 1),
                    at_ms=self.now_ms,
                    writer=writer,
                    event=event,
                )
            )
            self._settle()

    # --- time ---------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let virtual time pass: nodes answer, deadlines come, rules decide."""
        end_ms = self.now_ms + round(seconds * 1000)
        for _ in range(ROUNDS_MAX):
            if self._answer():
                continue
            due_ms = next_deadline(self.state, self.now_ms, self.state.policy)
            if due_ms is None or due_ms > end_ms:
                self.now_ms = max(self.now_ms, end_ms)
                self._settle()
                if not self._owed():
                    return
                continue
            self.now_ms = max(self.now_ms + 1, due_ms)
            self._settle()
        last = ", ".join(type(r.event).__name__ for r in self.log[-8:])
        raise AssertionError(f"the fleet does not come to rest: {last}")

    def _answer(self) -> bool:
        """Let every node that owes something answer, a moment later; whether any did."""
        owed = self._owed()
        if owed:
            self.now_ms += self._answer_ms
            for event in owed:
                if getattr(event, "node", None) not in self._silent:
                    self.say(event)
        return bool(owed)

    def _owed(self) -> list[e.AnyEvent]:
        return [
            event
            for event in (*self._acknowledgements(), *self._rehearsals(), *self._measurements())
            if getattr(event, "node", None) not in self._silent
        ]

    def _acknowledgements(self) -> Iterable[e.AnyEvent]:
        pending = self.job.pending
        if pending is None:
            return
        plan = pending.plan
        for name in pending.awaited():
            node = self.node(name)
            if pending.phase is Phase.PREPARING:
                joins = any(change.joiner == name for change in plan.changes)
                fresh = joins or plan.motive is e.Motive.LAUNCH
                parked = plan.motive is not e.Motive.PLANNED
                yield e.TransitionPrepared(
                    job=JOB,
                    transition=plan.transition,
                    node=name,
                    incarnation=node.incarnation,
                    report=e.Report(has_state=not fresh, applied=9) if parked else None,
                )
                continue
            yield e.TransitionApplied(
                job=JOB,
                transition=plan.transition,
                epoch=self.job.epoch,
                node=name,
                incarnation=node.incarnation,
                step=10,
            )
            yield e.StepResumed(
                job=JOB,
                transition=plan.transition,
                node=name,
                incarnation=node.incarnation,
                step=10,
                step_ms=float(self._answer_ms),
                committed_at_ms=float(self.now_ms + self._answer_ms),
            )

    def _rehearsals(self) -> Iterable[e.AnyEvent]:
        for name in sorted(self.state.unready):
            node = self.node(name)
            for rehearsal in node.rehearsals:
                if rehearsal.warmth is Warmth.WARMING:
                    yield e.WarmupPassed(
                        node=name,
                        incarnation=node.incarnation,
                        job=rehearsal.job,
                        role=rehearsal.role,
                        digest="code",
                        first_step_ms=1.0,
                        steady_step_ms=1.0,
                        took_ms=1.0,
                    )

    def _measurements(self) -> Iterable[e.AnyEvent]:
        for number in sorted(self.state.sweeps):
            sweep = self.state.sweeps[number]
            for name in sweep.open_rounds()[:1]:
                yield e.SweepRoundFinished(
                    sweep=sweep.request.sweep,
                    node=sweep.request.node,
                    incarnation=sweep.request.incarnation,
                    round=name,
                    measurements=self.rounds(sweep.request.node, name),
                    partner=sweep.request.partner,
                )

    def _settle(self) -> None:
        for recorded in settle(self.state, self.now_ms, "harness", own=self._own).recorded:
            self._take(recorded)

    def _take(self, recorded: e.Recorded) -> None:
        # Through its bytes, as a log would have it: what does not survive that would not replay.
        recorded = decode_recorded(encode_recorded(recorded))
        self._fold.take(recorded)
        self.log.append(recorded)

    def _members_but(self, name: NodeId) -> list[NodeId]:
        vacant = self.job.vacant
        held = [n for slot, n in sorted(self.job.holders.items()) if slot not in vacant]
        return [each for each in held if each != name and each not in self._silent]


def healthy_measurements(name: str) -> dict[str, float]:
    """What every healthy node of a harness measures."""
    if name == "pair":
        return {"link_mbps_best": 1000.0, "link_latency_us_p50": 50.0}
    return {
        "gemm_gflops_best": 100.0,
        "gemm_gflops_median": 99.0,
        "gemm_cv": 0.01,
        "memory_gbps_best": 20.0,
        "memory_gbps_median": 19.0,
    }


# --- determinism ------------------------------------------------------------------------------


def _twice(rule: Rule) -> Rule:
    """The rule, asked twice; both answers must be one."""

    def asked(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
        one, other = rule(state, now_ms, policy), rule(state, now_ms, policy)
        if one != other:
            raise NotDeterministic(
                f"position {state.position}: the rule says {_words(one)} and then {_words(other)}: "
                "it must depend on its arguments alone"
            )
        return one

    return asked


def _words(decision: Decision | None) -> str:
    return "nothing" if decision is None else repr(decision.reason)


def decisions_of(rule: Rule, log: Iterable[e.Recorded]) -> list[str]:
    """What a rule says to every state of a log, one line each."""
    fold = CheckedFold()
    told = []
    for recorded in log:
        fold.take(recorded)
        said = rule(fold.state, fold.state.at_ms, fold.state.policy)
        events = [] if said is None else [encode_recorded(_bare(event)) for event in said.events]
        told.append(f"{recorded.position} {_words(said)} {events}")
    return told


def _bare(event: e.AnyEvent) -> e.Recorded:
    return e.Recorded(position=Position(1), at_ms=0, writer="", event=event)


def check_determinism(named: str, log: Sequence[e.Recorded], seeds: Sequence[int] = (0, 1)) -> None:
    """Ask a rule, named ``module:function``, about every state of a log, once per hash seed.

    A rule that walks a set of strings, reads a clock or draws a number answers differently.

    Raises:
        NotDeterministic: the first line in which two processes differ.
    """
    module, _, function = named.partition(":")
    code = (
        "import importlib, sys\n"
        "from controlplane.testkit import decisions_of\n"
        "from statemachine.codec import decode_recorded\n"
        f"rule = getattr(importlib.import_module({module!r}), {function!r})\n"
        "log = [decode_recorded(raw) for raw in sys.stdin.buffer.read().splitlines()]\n"
        "print('\\n'.join(decisions_of(rule, log)))\n"
    )
    raw = b"".join(encode_recorded(entry) + b"\n" for entry in log)
    told = [_told(code, raw, seed).splitlines() for seed in seeds]
    for other in told[1:]:
        for one_line, other_line in zip(told[0], other, strict=True):
            if one_line != other_line:
                raise NotDeterministic(
                    f"{named}: {one_line!r} in one process, {other_line!r} in another"
                )


def _told(code: str, raw: bytes, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=raw,
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode != 0:
        raise NotDeterministic(done.stderr.decode("utf-8", "replace").strip().splitlines()[-1])
    return done.stdout.decode()


def with_knobs(**knobs: Any) -> Policy:
    """The default policy with some knobs set."""
    return replace(Policy(), **knobs)

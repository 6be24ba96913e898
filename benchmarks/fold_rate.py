"""How fast a log folds, decoding included, on a fleet of 8,192 nodes and 65,536 ranks.

The log is what a controller would have written: a launch, rehearsals and losses, each with every
acknowledgement that the protocol asks for, decided by the core itself. (The plan and the commit of
so large a launch are over the 64 KiB that an event may have; here they are folded all the same.)
Measured is the processor time to decode and fold it, since wall time says how busy a shared machine
is; and the memory of a history that can be asked for its state at every position.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter

import msgspec

from statemachine import events as e
from statemachine.codec import decode_recorded
from statemachine.decide import settle
from statemachine.evolve import evolve, fold
from statemachine.ids import Incarnation, JobId, NodeId, Position
from statemachine.lifecycle import Phase, Warmth
from statemachine.state import FleetState

JOB = JobId("j")
ONE = Incarnation(1)
STANDBYS = 64
RANKS_PER_NODE = 8


class Story:
    """A log in the making: facts, and what the core decides upon them."""

    def __init__(self, nodes: int) -> None:
        self.state = FleetState()
        self.log: list[e.Recorded] = []
        self.at_ms = 1_000_000
        slots = nodes - STANDBYS
        names = [NodeId(f"n{number:05d}") for number in range(nodes)]
        axes = {"pp": 8, "dp": slots // 8, "tp": RANKS_PER_NODE}
        self.say(e.JobDeclared(job=JOB, axes=axes, ranks_per_node=RANKS_PER_NODE))
        for name in names:
            self.tell(e.NodeJoined(node=name, incarnation=ONE, host="10.0.0.1", ranks=8))
        for name in names:
            self.tell(ready(name))
        self.decide()
        self.carry()
        self.rehearse()

    def tell(self, event: e.AnyEvent) -> None:
        """Enter a fact and decide nothing yet."""
        entry = e.Recorded(
            position=Position(self.state.position + 1),
            at_ms=self.at_ms,
            writer="n00001",
            event=event,
            stated_at_ms=self.at_ms,
            incarnation=ONE,
            counter=7,
        )
        self.log.append(entry)
        self.state = evolve(self.state, entry)

    def decide(self) -> None:
        """Let the core decide until it comes to rest."""
        settled = settle(self.state, self.at_ms, "c0")
        self.log += settled.recorded
        self.state = settled.state

    def say(self, event: e.AnyEvent) -> None:
        """Enter a fact and decide."""
        self.tell(event)
        self.decide()

    def carry(self) -> None:
        """Whatever is pending is prepared, applied and resumed by every member."""
        pending = self.state.jobs[JOB].pending
        while pending is not None:
            for name in pending.awaited():
                self.tell(self._answer(pending.plan, pending.phase, name))
            transition = pending.plan.transition
            if pending.phase is Phase.COMMITTED:
                for name in sorted(pending.members):
                    self.tell(resumed(transition, name))
            self.at_ms += 50
            self.decide()
            pending = self.state.jobs[JOB].pending

    def _answer(self, plan: e.TransitionPlanned, phase: Phase, name: NodeId) -> e.AnyEvent:
        job = self.state.jobs[JOB]
        if phase is Phase.COMMITTED:
            return e.TransitionApplied(
                job=JOB,
                transition=plan.transition,
                epoch=job.epoch,
                node=name,
                incarnation=ONE,
                step=6,
                phases_ms={"switch": 1.2},
            )
        joins = any(change.joiner == name for change in plan.changes)
        fresh = joins or plan.motive is e.Motive.LAUNCH
        return e.TransitionPrepared(
            job=JOB,
            transition=plan.transition,
            node=name,
            incarnation=ONE,
            report=e.Report(has_state=not fresh, applied=5),
            links_opened=4,
            took_ms=3.5,
        )

    def rehearse(self) -> None:
        """Every rehearsal that is under way is passed, until none is left."""
        while len(self.state.unready):
            for name in sorted(self.state.unready):
                for entry in self.state.nodes[name].rehearsals:
                    if entry.warmth is Warmth.WARMING:
                        self.say(passed(name, entry.job, entry.role))
            self.decide()

    def lose(self, name: NodeId) -> None:
        """A node's process ends, and the job is repaired."""
        self.say(e.WorkerExited(node=name, incarnation=ONE, job=JOB, reason="signal 9"))
        self.carry()


def ready(name: NodeId) -> e.WorkerReady:
    """A training process that reached its step loop."""
    return e.WorkerReady(
        node=name,
        incarnation=ONE,
        job=JOB,
        host="10.0.0.1",
        port=40000,
        transfer_port=40001,
        pid=1234,
        digest="0123456789abcdef",
        state_bytes=1 << 30,
    )


def passed(name: NodeId, job: JobId, role: str) -> e.AnyEvent:
    """A rehearsal of a role."""
    return e.WarmupPassed(
        node=name,
        incarnation=ONE,
        job=job,
        role=role,  # type: ignore[arg-type]
        digest="0123456789abcdef",
        first_step_ms=900.0,
        steady_step_ms=300.0,
        took_ms=1500.0,
    )


def resumed(transition: int, name: NodeId) -> e.AnyEvent:
    """A member's first step of a new epoch."""
    return e.StepResumed(
        job=JOB,
        transition=transition,  # type: ignore[arg-type]
        node=name,
        incarnation=ONE,
        step=6,
        step_ms=301.0,
        committed_at_ms=1_000_001.0,
    )


def main() -> None:
    """Print rates and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8192 + STANDBYS)
    parser.add_argument("--losses", type=int, default=4)
    given = parser.parse_args()
    story = Story(given.nodes)
    for number in range(given.losses):
        story.lose(NodeId(f"n{number * 7:05d}"))
    raw = [msgspec.json.encode(entry) for entry in story.log]
    kinds = Counter(type(entry.event).__name__ for entry in story.log)
    print(f"{given.nodes} nodes, {len(raw)} events of {sum(map(len, raw)) // len(raw)} bytes")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6)))
    del story
    rates = []
    for _ in range(3):
        began_s = time.process_time()
        entries = [decode_recorded(each) for each in raw]
        decoded_s = time.process_time()
        fold(FleetState(), entries)
        rates.append(
            (len(raw) / (decoded_s - began_s), len(raw) / (time.process_time() - decoded_s))
        )
    decode_rate, fold_rate = max(r[0] for r in rates), max(r[1] for r in rates)
    both = 1 / (1 / decode_rate + 1 / fold_rate)
    print(
        f"decode {decode_rate:,.0f}/s, fold {fold_rate:,.0f}/s, both {both:,.0f}/s (goal 200,000)"
    )
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state, states = FleetState(), []
    for each in raw:
        state = evolve(state, decode_recorded(each))
        states.append(state)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    per_event = grown_kb * 1024 / len(states)
    print(
        f"every state kept: {per_event:,.0f} bytes an event, {per_event / 1000:,.2f} GB a million"
    )


if __name__ == "__main__":
    main()

"""How fast a log folds, decoding included, on a fleet of 8,192 nodes and 65,536 ranks.

The log is what a controller would have written: a launch, rehearsals and losses, each with every
acknowledgement that the protocol asks for, decided by the core itself. Measured is the processor
time to decode and fold it, since wall time says how busy a shared machine is; and the memory of a
history of a million events that can be asked for its state at every position.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil

from statemachine import events as e
from statemachine.codec import decode_recorded
from statemachine.decide import settle
from statemachine.evolve import evolve, fold
from statemachine.history import History
from statemachine.ids import Incarnation, JobId, NodeId, Position, Slot
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

    def renew(self) -> None:
        """Whoever was lost comes back as another machine, ready and warm."""
        name = NodeId(f"m{self.state.position:08d}")
        self.tell(e.NodeJoined(node=name, incarnation=ONE, host="10.0.0.2", ranks=8))
        self.say(ready(name))
        self.rehearse()

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


def write_log(path: Path, nodes: int, events: int) -> None:
    """Write a log of at least so many events: a launch, then one loss after the other."""
    with path.open("wb") as file:
        story = Story(nodes)
        number = written = 0
        while True:
            for entry in story.log:
                file.write(msgspec.json.encode(entry) + b"\n")
            written += len(story.log)
            story.log.clear()
            if written >= events:
                return
            holders = story.state.jobs[JOB].holders
            story.lose(holders[Slot(number * 7 % len(holders))])
            story.renew()
            number += 1


def rss_bytes() -> int:
    """Resident memory of this process now."""
    return psutil.Process().memory_info().rss


def measure_rates(raw: list[bytes]) -> dict[str, float]:
    """Events per second of processor time, the best of three."""
    rates = []
    for _ in range(3):
        began_s = time.process_time()
        entries = [decode_recorded(each) for each in raw]
        decoded_s = time.process_time()
        fold(FleetState(), entries)
        ended_s = time.process_time()
        rates.append((len(raw) / (decoded_s - began_s), len(raw) / (ended_s - decoded_s)))
    decode_rate, fold_rate = max(rate[0] for rate in rates), max(rate[1] for rate in rates)
    return {
        "decode_per_s": decode_rate,
        "fold_per_s": fold_rate,
        "both_per_s": 1 / (1 / decode_rate + 1 / fold_rate),
        "unit_ns": unit_ns(),
    }


def unit_ns() -> float:
    """What this machine takes for one call that makes one small tuple, in ns: the unit in which
    figures of two machines, or of one that is shared, may be compared.
    """

    def call(x: int) -> tuple[int, int]:
        return (x, x)

    best = 1e9
    for _ in range(5):
        began_s = time.process_time()
        for number in range(100_000):
            call(number)
        best = min(best, time.process_time() - began_s)
    return best * 1e4


def measure_history(path: Path) -> dict[str, float]:
    """Memory of a history of the whole file, and what asking for a state takes."""
    gc.collect()
    before = rss_bytes()
    with path.open("rb") as lines:
        history = History(decode_recorded(line) for line in lines)
    gc.collect()
    grown = rss_bytes() - before
    chance = random.Random(1)
    took_us = []
    for _ in range(2000):
        position = chance.randint(1, len(history))
        began_ns = time.process_time_ns()
        state = history.state_at(position)
        took_us.append((time.process_time_ns() - began_ns) / 1000)
        assert state.position == position
    return {
        "events": len(history),
        "bytes_per_event": grown / len(history),
        "gib": grown / 2**30,
        "state_at_us_p50": statistics.median(took_us),
        "state_at_us_p99": sorted(took_us)[int(len(took_us) * 0.99)],
    }


def main() -> None:
    """Print rates and memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8192 + STANDBYS)
    parser.add_argument("--losses", type=int, default=4, help="losses in the log of the rate")
    parser.add_argument("--history", type=int, default=1_000_000, help="events; 0: no history")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.write is not None:
        write_log(given.write, given.nodes, given.history)
        return
    found: dict[str, dict[str, float]] = {}
    if given.history:  # first, while nothing else is in memory; written by another process
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log.jsonl")
            sizes = ["--nodes", str(given.nodes), "--history", str(given.history)]
            subprocess.run([sys.executable, __file__, *sizes, "--write", str(path)], check=True)
            found["history"] = measure_history(path)
    story = Story(given.nodes)
    for number in range(given.losses):
        story.lose(NodeId(f"n{number * 7:05d}"))
    raw = [msgspec.json.encode(entry) for entry in story.log]
    kinds = Counter(type(entry.event).__name__ for entry in story.log)
    del story
    found["rate"] = measure_rates(raw)
    if given.json:
        print(json.dumps({"nodes": given.nodes, "events": len(raw), "machine": machine(), **found}))
        return
    print(f"{machine()}; {given.nodes} nodes, {given.nodes * RANKS_PER_NODE} ranks")
    print(f"{len(raw)} events of {sum(map(len, raw)) // len(raw)} bytes")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6)))
    rate = found["rate"]
    print(
        f"decode {rate['decode_per_s']:,.0f}/s, fold {rate['fold_per_s']:,.0f}/s, both "
        f"{rate['both_per_s']:,.0f}/s of processor time (goal 200,000); "
        f"a call takes {rate['unit_ns']:.0f} ns here"
    )
    if "history" in found:
        kept = found["history"]
        print(
            f"history of {kept['events']:,.0f} events: {kept['gib']:.2f} GiB (goal 2), "
            f"{kept['bytes_per_event']:,.0f} bytes an event; a state at any position in "
            f"{kept['state_at_us_p50']:.0f} us, p99 {kept['state_at_us_p99']:.0f} us"
        )


def machine() -> str:
    """Where this was measured."""
    return f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"


if __name__ == "__main__":
    main()

"""Fleets of which the truth is known, and a watch that feeds them to the detector.

The generator draws each step of each node: a bias of the machine, noise of the window, noise of the
step, now and then a window at 1.2x that costs wall time but no processor time. All ranks finish a
step together, so everybody waits for the slowest. `QUIET` is a production fleet with windows of
30 s, `NOISY` a demo of four nodes on two cores with windows of 1 s.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from statemachine.detector import DetectorPolicy, DetectorState, Judgement, observe
from statemachine.events import Verdict, VerdictIssued, VerdictWithdrawn
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import CPU_MS, STEP_MS, WAIT_MS, WORK_MS, Vitals, summarise

POLICY = DetectorPolicy()
"""The defaults."""
ACTED_UPON = (Verdict.DEGRADED, Verdict.FAULTY)
"""Verdicts that cost a node its slot."""


@dataclass(frozen=True)
class Fleet:
    """Nodes of one job that train in step; `slow` maps a node's number to its factor."""

    nodes: int = 4
    steps: int = 20
    work_ms: float = 30.0
    exchange_ms: float = 6.0
    bias: float = 0.01
    window_noise: float = 0.08
    step_noise: float = 0.05
    hiccups: float = 0.05
    cpu: bool = True
    slow: Mapping[int, float] = field(default_factory=dict)
    onset: int = 0
    end: int = 10**9

    def windows(self, seed: int, count: int) -> Iterator[list[Vitals]]:
        """Yield one window of each node, `count` times."""
        chance = random.Random(seed)
        bias = [1 + chance.gauss(0, self.bias) for _ in range(self.nodes)]
        for window in range(count):
            wall, cpu = [], []
            for node in range(self.nodes):
                sick = self.onset <= window < self.end
                own = self.work_ms * bias[node] * (self.slow.get(node, 1.0) if sick else 1.0)
                noise = 1 + chance.uniform(-self.window_noise, self.window_noise)
                noise *= 1.2 if chance.random() < self.hiccups else 1.0
                steps = [1 + abs(chance.gauss(0, self.step_noise)) for _ in range(self.steps)]
                wall.append([own * noise * step for step in steps])
                cpu.append([own * (1 + chance.gauss(0, 0.02)) for _ in steps])
            step = [max(column) + self.exchange_ms for column in zip(*wall, strict=True)]
            yield [
                self._vitals(node, window, wall[node], step, cpu[node])
                for node in range(self.nodes)
            ]

    def _vitals(
        self, node: int, window: int, work: list[float], step: list[float], cpu: list[float]
    ) -> Vitals:
        wait = [whole - own for whole, own in zip(step, work, strict=True)]
        metrics = {
            WORK_MS: summarise(work),
            WAIT_MS: summarise(wait),
            STEP_MS: summarise(step),
        } | ({CPU_MS: summarise(cpu)} if self.cpu else {})
        return Vitals(
            node=NodeId(f"n{node}"),
            incarnation=Incarnation(1),
            job=JobId("j"),
            slot=Slot(node),
            role=Role("only"),
            epoch=Epoch(1),
            window=window,
            started_at_ms=window * 1_000,
            ended_at_ms=(window + 1) * 1_000,
            steps=self.steps,
            last_step=(window + 1) * self.steps - 1,
            metrics=metrics,
        )


NOISY = Fleet()
QUIET = Fleet(nodes=16, work_ms=800, exchange_ms=200, window_noise=0.025, hiccups=0.002)
STILL = Fleet(bias=0, window_noise=0.005, step_noise=0.005, hiccups=0)

Alter = Callable[[Vitals], Vitals | None]


@dataclass
class Watch:
    """Feeds a detector and keeps what it said, with the number of the round."""

    policy: DetectorPolicy = POLICY
    state: DetectorState = field(default_factory=DetectorState)
    now_ms: int = 0
    round: int = -1
    said: list[tuple[int, Judgement]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def see(self, batch: list[Vitals], *, pass_ms: int = 1_000) -> "Watch":
        """Take in one batch."""
        self.now_ms += pass_ms
        self.round += 1
        seen = observe(self.state, batch, self.now_ms, self.policy)
        self.state = seen.state
        self.said += [(self.round, judgement) for judgement in seen.judgements]
        self.notes += seen.notes
        return self

    def watch(self, fleet: Fleet, count: int, seed: int = 1, alter: Alter | None = None) -> "Watch":
        """Take in `count` windows of a fleet, each altered or (None) lost on the way."""
        for batch in fleet.windows(seed, count):
            altered = [alter(vitals) if alter else vitals for vitals in batch]
            self.see([vitals for vitals in altered if vitals is not None])
        return self

    @property
    def verdicts(self) -> list[tuple[int, NodeId, Verdict]]:
        """Verdicts issued, in order."""
        return [(r, j.node, j.verdict) for r, j in self.said if isinstance(j, VerdictIssued)]

    @property
    def withdrawn(self) -> list[tuple[int, NodeId]]:
        """Verdicts withdrawn, in order."""
        return [(r, j.node) for r, j in self.said if isinstance(j, VerdictWithdrawn)]


def altered(vitals: Vitals, **changes: object) -> Vitals:
    """Return vitals with some fields changed."""
    return msgspec.structs.replace(vitals, **changes)


def without(vitals: Vitals, *metrics: str) -> Vitals:
    """Return vitals that lack some metrics."""
    kept = {name: metric for name, metric in vitals.metrics.items() if name not in metrics}
    return altered(vitals, metrics=kept)

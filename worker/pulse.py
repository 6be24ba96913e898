"""The pulse of one training process: own work, waiting and processor time per step, in windows.

What belongs here: measuring without a synchronisation that the step did not have, and summing up
a window as `Vitals`. No judgement (`statemachine.detector`), no sending.

Own work is the step's time less the time that its groups spent blocked on peers; groups count that
themselves, so nothing is timed twice.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import DATA_MS, LINK_MBPS, WAIT_MS, Metric, Vitals, summarise
from worker import loading, phases


class Waiting(Protocol):
    """A group that counts how long it was blocked on peers."""

    label: str
    """Name of the group, such as ``dp``."""

    def waited_s(self) -> float:
        """Seconds blocked since the group exists."""
        ...

    def carried(self) -> dict[str, tuple[int, float]]:
        """By peer: bytes of large messages that came from it, and the seconds that took."""
        ...

    def take_costs(self) -> dict[str, list[float]]:
        """What changes of members cost since this was asked last, in ms, by metric."""
        ...


@dataclass
class Samples:
    """Per-step samples of the open window, in milliseconds."""

    step_ms: list[float] = field(default_factory=list)
    work_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    data_ms: list[float] = field(default_factory=list)
    group_ms: dict[str, list[float]] = field(default_factory=dict)


class Took(NamedTuple):
    """What one step took, in ms: in all, blocked on peers, of the processor."""

    step_ms: float = 0.0
    wait_ms: float = 0.0
    cpu_ms: float = 0.0


RATE_BYTES_MIN: Final = 1 << 20
"""Bytes from a peer in a window below which its rate says nothing."""


@dataclass
class Pulse:
    """Measures steps and closes a window when it is old enough."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    window_s: float
    groups: "Sequence[Waiting]"
    window: int = 0
    last: Took = field(default_factory=Took)
    """The step that ended last."""
    _samples: Samples = field(default_factory=Samples)
    _window_began_s: float = field(default_factory=time.time)
    _step_began_s: float = 0.0
    _cpu_began_s: float = 0.0
    _waited_s: list[float] = field(default_factory=list)
    _loading_s: float = 0.0
    _carried: dict[str, tuple[int, float]] = field(default_factory=dict)
    _loss: float | None = None
    _last_step: int = -1

    def begin_step(self) -> None:
        """A step begins."""
        self._step_began_s = time.perf_counter()
        self._cpu_began_s = time.process_time()
        self._waited_s = [group.waited_s() for group in self.groups]
        self._loading_s = loading.waited_s()

    def work_so_far_s(self) -> float:
        """Own work in the step so far, in seconds."""
        elapsed_s = time.perf_counter() - self._step_began_s
        return max(0.0, elapsed_s - (self._total_waited_s() - sum(self._waited_s)))

    def record(self, loss: float) -> None:
        """Remember the last loss for whoever looks."""
        self._loss = loss if math.isfinite(loss) else None

    @property
    def loss(self) -> float | None:
        """The last loss, if there was a finite one."""
        return self._loss

    def end_step(self, step: int) -> float:
        """A step was committed; return how long it took in milliseconds."""
        step_ms = (time.perf_counter() - self._step_began_s) * 1000
        wait_ms = 0.0
        for group, before_s in zip(self.groups, self._waited_s, strict=True):
            own_ms = max(0.0, (group.waited_s() - before_s) * 1000)
            self._samples.group_ms.setdefault(group.label, []).append(own_ms)
            wait_ms += own_ms
        self._samples.data_ms.append((loading.waited_s() - self._loading_s) * 1000)
        self._samples.step_ms.append(step_ms)
        self._samples.wait_ms.append(wait_ms)
        self._samples.work_ms.append(max(0.0, step_ms - wait_ms))
        self.last = Took(step_ms, wait_ms, (time.process_time() - self._cpu_began_s) * 1000)
        self._samples.cpu_ms.append(self.last.cpu_ms)
        self._last_step = step
        return step_ms

    def account(self) -> str:
        """Where the time of the last step went, in words."""
        step_ms, wait_ms, cpu_ms = self.last
        return (
            f"{step_ms:.1f} ms, of them {cpu_ms:.1f} of processor, {wait_ms:.1f} waiting for peers"
        )

    def drop(self) -> None:
        """Forget the open window: a transition fell into it."""
        self._samples = Samples()
        self._window_began_s = time.time()

    def due(self) -> bool:
        """Whether the open window is old enough to be closed."""
        return bool(self._samples.step_ms) and time.time() - self._window_began_s >= self.window_s

    def close(self, slot: Slot, role: Role, epoch: Epoch) -> Vitals:
        """Sum up the open window and open the next."""
        samples, began_s = self._samples, self._window_began_s
        vitals = Vitals(
            node=self.node,
            incarnation=self.incarnation,
            job=self.job,
            slot=slot,
            role=role,
            epoch=epoch,
            window=self.window,
            started_at_ms=round(began_s * 1000),
            ended_at_ms=round(time.time() * 1000),
            phase=phases.taken(),
            steps=len(samples.step_ms),
            last_step=self._last_step,
            metrics={
                "step_ms": summarise(samples.step_ms),
                "work_ms": summarise(samples.work_ms),
                "wait_ms": summarise(samples.wait_ms),
                "cpu_ms": summarise(samples.cpu_ms),
                **self._split(samples),
                **self._rates(),
                **self._costs(),
            },
            loss=self._loss,
        )
        self.window += 1
        self.drop()
        return vitals

    @staticmethod
    def _split(samples: Samples) -> dict[str, Metric]:
        """Waiting by group, where there are several; data, where the script says when it waits."""
        found = {}
        if len(samples.group_ms) > 1:
            for name, took_ms in sorted(samples.group_ms.items()):
                found[f"{WAIT_MS}.{name}"] = summarise(took_ms)
        if any(samples.data_ms):
            found[DATA_MS] = summarise(samples.data_ms)
        return found

    def _rates(self) -> dict[str, Metric]:
        """What came from each peer per second while it came."""
        now: dict[str, tuple[int, float]] = {}
        for group in self.groups:
            for peer, (size, took_s) in group.carried().items():
                before = now.get(peer, (0, 0.0))
                now[peer] = (before[0] + size, before[1] + took_s)
        found = {}
        for peer, total in sorted(now.items()):
            before = self._carried.get(peer, (0, 0.0))
            size, took_s = total[0] - before[0], total[1] - before[1]
            if size >= RATE_BYTES_MIN and took_s > 0:
                rate = 8 * size / took_s / 1e6
                found[f"{LINK_MBPS}.{peer}"] = Metric(count=1, mean=rate, p50=rate, p95=rate)
        self._carried = now
        return found

    def _costs(self) -> dict[str, Metric]:
        """What changes of members cost; nothing, in a window without any."""
        found: dict[str, list[float]] = {}
        for group in self.groups:
            for name, took_ms in group.take_costs().items():
                found.setdefault(name, []).extend(took_ms)
        return {name: summarise(found[name]) for name in sorted(found)}

    def _total_waited_s(self) -> float:
        return sum(group.waited_s() for group in self.groups)

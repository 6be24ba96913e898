"""The pulse of one training process: own work, waiting and processor time per step, in windows.

What belongs here: measuring without a synchronisation that the step did not have, and summing up
a window as `Vitals`. No judgement (`statemachine.detector`), no sending.

Own work is the step's time less the time that its groups spent blocked on peers; groups count that
themselves, so nothing is timed twice.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import Metric, Vitals, summarise


class Waiting(Protocol):
    """A group that counts how long it was blocked on peers."""

    def waited_s(self) -> float:
        """Seconds blocked since the group exists."""
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


@dataclass
class Pulse:
    """Measures steps and closes a window when it is old enough."""

    node: NodeId
    incarnation: Incarnation
    job: JobId
    window_s: float
    groups: "Iterable[Waiting]"
    window: int = 0
    _samples: Samples = field(default_factory=Samples)
    _window_began_s: float = field(default_factory=time.time)
    _step_began_s: float = 0.0
    _cpu_began_s: float = 0.0
    _waited_s: float = 0.0
    _loss: float | None = None
    _last_step: int = -1

    def begin_step(self) -> None:
        """A step begins."""
        self._step_began_s = time.perf_counter()
        self._cpu_began_s = time.process_time()
        self._waited_s = self._total_waited_s()

    def work_so_far_s(self) -> float:
        """Own work in the step so far, in seconds."""
        elapsed_s = time.perf_counter() - self._step_began_s
        return max(0.0, elapsed_s - (self._total_waited_s() - self._waited_s))

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
        wait_ms = max(0.0, (self._total_waited_s() - self._waited_s) * 1000)
        self._samples.step_ms.append(step_ms)
        self._samples.wait_ms.append(wait_ms)
        self._samples.work_ms.append(max(0.0, step_ms - wait_ms))
        self._samples.cpu_ms.append((time.process_time() - self._cpu_began_s) * 1000)
        self._last_step = step
        return step_ms

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
            steps=len(samples.step_ms),
            last_step=self._last_step,
            metrics={
                "step_ms": summarise(samples.step_ms),
                "work_ms": summarise(samples.work_ms),
                "wait_ms": summarise(samples.wait_ms),
                "cpu_ms": summarise(samples.cpu_ms),
                **self._costs(),
            },
            loss=self._loss,
        )
        self.window += 1
        self.drop()
        return vitals

    def _costs(self) -> dict[str, Metric]:
        """What changes of members cost; nothing, in a window without any."""
        found: dict[str, list[float]] = {}
        for group in self.groups:
            for name, took_ms in group.take_costs().items():
                found.setdefault(name, []).extend(took_ms)
        return {name: summarise(found[name]) for name in sorted(found)}

    def _total_waited_s(self) -> float:
        return sum(group.waited_s() for group in self.groups)

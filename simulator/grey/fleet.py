"""Windows of a made-up fleet: recorded noise, machines that differ a little, faults on top.

What belongs here: how a synchronous step puts the nodes' times together. All ranks finish a step
together, so whoever works less waits for whoever works longest, and for the exchange; the exchange
is as slow as the slowest link in it. Nothing here knows what a detector makes of it.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from simulator.grey.faults import Fault, Gauges, Kind, gauges
from simulator.grey.noise import Recording, Stretch, nodes_windows, shipped
from simulator.rng import Streams
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import (
    CPU_MS,
    CPU_STEAL,
    DATA_MS,
    GPU_POWER_W,
    GPU_TEMP_C,
    LINK_MBPS,
    SM_CLOCK_MHZ,
    STEP_MS,
    TRAINING,
    WAIT_MS,
    WORK_MS,
    Metric,
    Vitals,
    summarise,
)

DATA_SHARE = 0.02
"""Of own work, spent waiting for the data loader in a healthy node."""


class FleetSpec(Struct, frozen=True, kw_only=True):
    """A fleet that trains in step. Times in ms, windows in s, `bias` and `link_noise` relative.

    `roles` gives each slot class and how much more it works by design; nodes take them in turn.
    `noise` names a recording; `alone` says that no node shares its machine with another program.
    `imbalance` is how much longer the batch of a random node is in each step (sequence lengths).
    `pauses` says every how many windows all nodes evaluate or write a checkpoint.
    """

    nodes: int = 8
    window_s: float = 30.0
    steps: int = 20
    work_ms: float = 800.0
    exchange_ms: float = 200.0
    bias: float = 0.01
    link_mbps: float = 100_000.0
    link_noise: float = 0.03
    noise: str = "paired"
    alone: bool = True
    cpu: bool = True
    gauges: bool = False
    links: bool = True
    roles: tuple[tuple[str, float], ...] = (("only", 1.0),)
    imbalance: float = 0.0
    pauses: int = 0
    faults: dict[int, Fault] = field(default_factory=dict)


def name_of(number: int) -> NodeId:
    """The name of a node by its number."""
    return NodeId(f"n{number}")


def windows(
    spec: FleetSpec, seed: int, count: int, recordings: Sequence[Recording] = ()
) -> Iterator[list[Vitals]]:
    """Yield one window of each node, `count` times; the same for the same arguments."""
    return _Fleet(spec, seed, recordings or shipped(spec.noise)).run(count)


class _Fleet:
    def __init__(self, spec: FleetSpec, seed: int, recordings: Sequence[Recording]) -> None:
        self.spec = spec
        streams = Streams(seed)
        self.chance = streams.stream("fleet")
        self.bias = [max(0.5, self.chance.gauss(1, spec.bias)) for _ in range(spec.nodes)]
        own = streams.stream("noise")  # so that one more fault does not reshuffle it
        self.noise = nodes_windows(recordings, spec.steps, spec.nodes, own, alone=spec.alone)
        self.cpu_share = self.chance.uniform(0.3, 0.9)

    def run(self, count: int) -> Iterator[list[Vitals]]:
        for window in range(count):
            yield self._window(window)

    def _window(self, window: int) -> list[Vitals]:
        spec = self.spec
        pausing = bool(spec.pauses) and window % spec.pauses == spec.pauses - 1
        drawn = next(self.noise)
        longer = self._imbalanced(window)
        own = [
            self._work(number, window, drawn[number], longer.get(number, ()))
            for number in range(spec.nodes)
        ]
        shares = {n: f.link_share(window) for n, f in spec.faults.items()}
        exchange_ms = spec.exchange_ms / min(shares.values(), default=1.0)
        step = [longest + exchange_ms for longest in map(max, zip(*own, strict=True))]
        rates = self._rates(shares) if spec.links else {}
        return [
            self._vitals(
                n,
                window,
                self._metrics(n, window, own[n], step, drawn[n]) | rates.get(n, {}),
                pausing=pausing,
            )
            for n in range(spec.nodes)
        ]

    def _imbalanced(self, window: int) -> Mapping[int, Sequence[int]]:
        """Steps of this window in which a node got the long sequences."""
        if not self.spec.imbalance:
            return {}
        found: dict[int, list[int]] = {}
        for step in range(self.spec.steps):
            found.setdefault(self.chance.randrange(self.spec.nodes), []).append(step)
        return found

    def _work(
        self, number: int, window: int, drawn: Stretch, long_steps: Sequence[int]
    ) -> list[float]:
        spec = self.spec
        role_factor = spec.roles[number % len(spec.roles)][1]
        base = spec.work_ms * self.bias[number] * role_factor
        fault = spec.faults.get(number)
        if fault is None:
            work = [base * step for step in drawn.work]
        else:
            base *= fault.factor(window)
            first = window * spec.steps
            work = [
                base * step * fault.slow_step(window, first + index)
                for index, step in enumerate(drawn.work)
            ]
        for step in long_steps:
            work[step] *= 1 + spec.imbalance
        return work

    def _rates(self, shares: Mapping[int, float]) -> dict[int, dict[str, Metric]]:
        """What each node receives from its two neighbours in a ring."""
        spec = self.spec
        found: dict[int, dict[str, Metric]] = {}
        for number in range(spec.nodes):
            for peer in {(number - 1) % spec.nodes, (number + 1) % spec.nodes} - {number}:
                share = min(shares.get(number, 1.0), shares.get(peer, 1.0))
                rate = spec.link_mbps * share * max(0.2, self.chance.gauss(1, spec.link_noise))
                metric = Metric(count=spec.steps, mean=rate, p50=rate, p95=rate)
                found.setdefault(number, {})[f"{LINK_MBPS}.{name_of(peer)}"] = metric
        return found

    def _metrics(
        self, number: int, window: int, work: list[float], step: list[float], drawn: Stretch
    ) -> dict[str, Metric]:
        spec, fault = self.spec, self.spec.faults.get(number)
        metrics = {
            WORK_MS: summarise(work),
            WAIT_MS: summarise([whole - own for whole, own in zip(step, work, strict=True)]),
            STEP_MS: summarise(step),
            DATA_MS: self._data(work, fault, window),
        }
        if spec.cpu:
            metrics[CPU_MS] = self._cpu(number, window, drawn, fault)
        if spec.gauges:
            metrics |= _gauges(gauges(fault, window, self.chance))
        return metrics

    def _vitals(
        self, number: int, window: int, metrics: dict[str, Metric], *, pausing: bool
    ) -> Vitals:
        spec = self.spec
        return Vitals(
            node=name_of(number),
            incarnation=Incarnation(1),
            job=JobId("job"),
            slot=Slot(number),
            role=Role(spec.roles[number % len(spec.roles)][0]),
            epoch=Epoch(1),
            window=window,
            started_at_ms=round(window * spec.window_s * 1000),
            ended_at_ms=round((window + 1) * spec.window_s * 1000),
            phase="checkpoint" if pausing else TRAINING,
            steps=spec.steps,
            last_step=(window + 1) * spec.steps - 1,
            metrics=metrics,
        )

    def _data(self, work: list[float], fault: Fault | None, window: int) -> Metric:
        usual = self.spec.work_ms * DATA_SHARE * max(0.0, self.chance.gauss(1, 0.1))
        if fault is not None and fault.kind is Kind.INPUT:
            usual += (1 - 1 / fault.factor(window)) * sum(work) / len(work)
        return _flat(usual, len(work))

    def _cpu(self, number: int, window: int, drawn: Stretch, fault: Fault | None) -> Metric:
        spec = self.spec
        role_factor = spec.roles[number % len(spec.roles)][1]
        used = spec.work_ms * self.cpu_share * self.bias[number] * role_factor * drawn.cpu
        if fault is not None and fault.shows_in_cpu():
            steps = range(window * spec.steps, (window + 1) * spec.steps)
            slow = [fault.factor(window) * fault.slow_step(window, step) for step in steps]
            return summarise([used * factor for factor in slow])
        return _flat(used, spec.steps)


def _gauges(read: Gauges) -> dict[str, Metric]:
    said = {
        SM_CLOCK_MHZ: read.clock_mhz,
        GPU_TEMP_C: read.temp_c,
        GPU_POWER_W: read.power_w,
        CPU_STEAL: read.steal,
    }
    return {name: _flat(value, 6) for name, value in said.items()}


def _flat(value: float, count: int) -> Metric:
    return Metric(count=count, mean=value, p50=value, p95=value)

"""Many replications of many strategies on the same traces, with intervals and a closed form.

Strategies see the same trace in the same replication, so differences are compared pairwise: the
interval of a difference is far narrower than that of either. Work is shared among processes by
replication; results are put together in the order of replications, so their number changes nothing.
"""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as ready_of
from threading import Thread
from typing import Self

import msgspec
from msgspec import Struct

from simulator.closed_form import ettr as closed_form
from simulator.faults import draw
from simulator.meter import Totals
from simulator.parts import STRATEGIES
from simulator.restarts import Restarts
from simulator.scenario import Scenario
from simulator.stats import Estimate, estimate, quantiles
from simulator.world import World

Progress = Callable[[int, int], None]


class Sample(Struct, frozen=True, kw_only=True):
    """One strategy in one replication."""

    strategy: str
    replication: int
    ettr: float
    wall_s: float
    wasted_gpu_h: float
    """GPU-hours of ranks that made no work, and of machines that stood idle for the job."""
    losses: int
    planned: int
    cold: int
    chosen: int
    preempted: int
    grey: int
    caught: int
    sweeps: int
    restored: int
    human_h: float
    down_s: float
    slow_s: float
    lost_s: float
    planned_s: float
    idle_gpu_h: float
    downtime_p50_s: float
    downtime_p99_s: float
    digest: str = ""


class Row(Struct, frozen=True, kw_only=True):
    """One strategy over all replications."""

    strategy: str
    words: str
    ettr: Estimate
    closed_form: float | None
    wasted_gpu_h: Estimate
    cost_usd: float
    idle_gpu_h: float
    human_h: float
    losses: float
    planned: float
    cold: float
    caught: float
    grey: float
    restored: float
    """Times that the job went back to a checkpoint."""
    downtime_p50_s: float
    downtime_p99_s: float
    against: str
    difference: Estimate
    """Of the ETTR, against the first strategy, pairwise over replications."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Everything `compare` found; `digest` stands for all of it."""

    scenario: str
    gpus: int
    days: float
    replications: int
    rows: tuple[Row, ...]
    digest: str


def one(scenario: Scenario, strategy: str, replication: int) -> Sample:
    """Run one strategy once."""
    recipe = STRATEGIES[strategy]
    trace = draw(scenario, replication)
    if recipe.family == "swap":
        world = World(scenario, recipe, trace, replication)
        totals, digest = world.run(), world.core.digest
    else:
        totals, digest = Restarts(scenario, recipe, trace, replication).run(), ""
    return _sample(scenario, strategy, replication, totals, digest)


def _sample(
    scenario: Scenario, strategy: str, replication: int, totals: Totals, digest: str
) -> Sample:
    gpus = scenario.fleet.gpus_per_node
    idle_gpu_h = totals.idle_node_s * gpus / 3600
    middle, late = quantiles(totals.downtimes_s, (0.5, 0.99))
    return Sample(
        strategy=strategy,
        replication=replication,
        ettr=totals.ettr(),
        wall_s=totals.wall_s,
        wasted_gpu_h=(totals.wall_s - totals.work_s) * scenario.ranks / 3600 + idle_gpu_h,
        losses=totals.losses,
        planned=totals.planned,
        cold=totals.cold,
        chosen=totals.chosen,
        preempted=totals.preempted,
        grey=totals.grey,
        caught=totals.caught,
        sweeps=totals.sweeps,
        restored=totals.restored,
        human_h=totals.human_h,
        down_s=totals.down_s,
        slow_s=totals.slow_s,
        lost_s=totals.lost_s,
        planned_s=totals.planned_s,
        idle_gpu_h=idle_gpu_h,
        downtime_p50_s=middle,
        downtime_p99_s=late,
        digest=digest,
    )


Task = tuple[Scenario, tuple[str, ...], int]


def replication(task: Task) -> list[Sample]:
    """Run every strategy once on the trace of one replication."""
    scenario, strategies, number = task
    return [one(scenario, strategy, number) for strategy in strategies]


class Crew:
    """Processes that run replications, started when they are first needed and kept until the end:
    to start one takes as long as many a replication.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Begin without any process."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End every process; after an error, without waiting for what they are at."""
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def spread(
        self, tasks: Sequence[Task], progress: Progress | None = None
    ) -> Iterator[tuple[int, list[Sample]]]:
        """Run tasks; yield (index, samples) as they come."""
        if self.workers <= 1 or len(tasks) == 1:
            for index, task in enumerate(tasks):
                yield index, replication(task)
                if progress is not None:
                    progress(index + 1, len(tasks))
            return
        waiting = self._submitted(tasks)
        done_count = 0
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                done_count += 1
                yield waiting.pop(future), future.result()
                if progress is not None:
                    progress(done_count, len(tasks))

    def _submitted(self, tasks: Sequence[Task]) -> dict[Future[list[Sample]], int]:
        pool = self._pool
        if pool is None:
            pool = ProcessPoolExecutor(self.workers, get_context("spawn"), _begin_worker)
            self._pool = pool
        found: dict[Future[list[Sample]], int] = {}
        with _deaf_to_ctrl_c():  # the first ones start the processes
            for index in range(min(self.workers, len(tasks))):
                found[pool.submit(replication, tasks[index])] = index
        for index in range(len(found), len(tasks)):
            found[pool.submit(replication, tasks[index])] = index
        return found


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun in here never hear Ctrl-C, which is the parent's to answer: they keep its
    mask. The parent hears it afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """End with the parent, however it ends: a killed one closes no queue that its workers wait
    at.
    """
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    ready_of([sentinel])
    os._exit(1)


def compare(
    scenario: Scenario,
    strategies: Sequence[str],
    workers: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compare strategies over the scenario's replications; Ctrl-C leaves what is done."""
    tasks = [(scenario, tuple(strategies), number) for number in range(scenario.replications)]
    done: dict[int, list[Sample]] = {}
    try:
        with Crew(workers) as crew:
            done.update(crew.spread(tasks, progress))
    except KeyboardInterrupt:
        if not done:
            raise
    return summed(scenario, strategies, [done[index] for index in sorted(done)])


def summed(
    scenario: Scenario, strategies: Sequence[str], done: Sequence[Sequence[Sample]]
) -> Comparison:
    """Put samples together: one row per strategy."""
    rows = tuple(_row(scenario, place, strategies[0], done) for place, _ in enumerate(strategies))
    digest = hashlib.blake2b(digest_size=16)
    for samples in done:
        for sample in samples:
            digest.update(msgspec.json.encode(sample))
    return Comparison(
        scenario=scenario.name,
        gpus=scenario.ranks,
        days=scenario.days,
        replications=len(done),
        rows=rows,
        digest=digest.hexdigest(),
    )


def _row(scenario: Scenario, place: int, against: str, done: Sequence[Sequence[Sample]]) -> Row:
    mine = [samples[place] for samples in done]
    recipe = STRATEGIES[mine[0].strategy]

    def mean(name: str) -> float:
        return float(sum(getattr(sample, name) for sample in mine) / len(mine))

    wasted = estimate([sample.wasted_gpu_h for sample in mine])
    return Row(
        strategy=recipe.name,
        words=recipe.words,
        ettr=estimate([sample.ettr for sample in mine]),
        closed_form=closed_form(scenario, recipe),
        wasted_gpu_h=wasted,
        cost_usd=wasted.mean * scenario.human.gpu_hour_usd,
        idle_gpu_h=mean("idle_gpu_h"),
        human_h=mean("human_h"),
        losses=mean("losses"),
        planned=mean("planned"),
        cold=mean("cold"),
        caught=mean("caught"),
        grey=mean("grey"),
        restored=mean("restored"),
        downtime_p50_s=mean("downtime_p50_s"),
        downtime_p99_s=mean("downtime_p99_s"),
        against=against,
        difference=estimate([s[place].ettr - s[0].ettr for s in done]),
    )

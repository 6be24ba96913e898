"""A fleet with everything that looks at it, for as long as a block runs.

What belongs here: putting a local fleet, its log and its chronicle together, starting nodes the
same way every time, and noticing a part that ends when it should not. Both the run that is hurt and
the one that is not are staged by this file, so that they differ in nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio

from controlplane.config import Settings
from controlplane.demo.chronicle import Chronicle
from controlplane.demo.greys import GREYS
from controlplane.demo.options import STEPS_MIN, TRAINING, BadDemo, DemoOptions
from controlplane.demo.shape import is_plain, model_arguments
from controlplane.etcd_binary import ensure_etcd
from controlplane.etcd_server import EtcdServer
from controlplane.eventlog import EventLog, EventLogError
from controlplane.localfleet.children import Child, last_line
from controlplane.localfleet.fleet import (
    BUDGET_VARIABLE,
    SHARE_VARIABLE,
    WINDOW_VARIABLE,
    FleetError,
    LocalFleet,
    example,
)
from controlplane.localfleet.folder import RunFolder
from controlplane.server import opened
from statemachine import events as e
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import NodeState

JOB: Final = JobId("demo")
OPERATOR: Final = "demo"

HURRY: Final = {WINDOW_VARIABLE: "1", BUDGET_VARIABLE: "0.3", SHARE_VARIABLE: "0.3"}
"""Seconds of a window of vitals and of a probe, and how much of them the partner works, unless the
environment of the demo says otherwise; a real fleet takes its time."""

LEAD_S: Final = 30.0
LAUNCH_S: Final = 90.0
WARM_S: Final = 90.0

KNOBS: Final[dict[str, object]] = {
    "retry_cooldown_s": 0.5,
    "launch_patience_s": 60.0,
    "sweep": {"tolerance": 1.25, "judge_medians": False},
}
"""What differs from a real fleet's policy: a demo has minutes where a fleet has days, and its nodes
share one machine, so that a median says how busy it was and a best sample how fast it is."""

_LOOK_S: Final = 0.1
_ERASE_S: Final = 3.0


@dataclass(slots=True)
class Stage:
    """A staged fleet. `hurt` names nodes whose end is expected; `knobs` is the policy's."""

    options: DemoOptions
    fleet: LocalFleet
    log: EventLog
    chronicle: Chronicle
    hurt: set[NodeId] = field(default_factory=set)
    knobs: Mapping[str, object] = field(default_factory=lambda: KNOBS)

    async def submit(self, event: e.AnyEvent) -> None:
        """State an operator's act."""
        await self.log.submit_operator(OPERATOR, event, round(time.time() * 1000))

    async def declare(self, nodes: Sequence[NodeId], standbys: int) -> None:
        """Declare the policy and the job, and start the nodes once a controller leads."""
        await self.submit(e.PolicyChanged(version=1, knobs=dict(self.knobs), by=OPERATOR))
        declared = e.JobDeclared(
            job=JOB,
            axes=self.options.axes,
            standbys=standbys,
            seed=self.options.seed,
            steps=0 if self.options.steps_spare else self.options.steps,
            by=OPERATOR,
        )
        await self.submit(declared)
        await self.chronicle.until(lambda: self.chronicle.state.term > 0, LEAD_S, "a leader")
        for node in nodes:
            self.start_node(node)

    def start_node(self, node: NodeId) -> Child:
        """Start a node, or start it again as a machine that was repaired."""
        self.hurt.discard(node)
        training = training_command(self.options)
        settings = HURRY | dict(GREYS[self.options.grey_kind].environment)
        settings = {name: os.environ.get(name, value) for name, value in settings.items()}
        return self.fleet.start_node(node, JOB, training, settings)

    async def launched(self) -> None:
        """Wait until the job trains with every slot filled.

        Raises:
            FleetError: a training process ended before it trained; says what it wrote last.
        """
        chronicle = self.chronicle

        def runs() -> bool:
            job = chronicle.job
            return job is not None and job.launched and job.pending is None

        await chronicle.until(lambda: runs() or self._false_start() != "", LAUNCH_S, "the launch")
        if not runs():
            raise FleetError(self._false_start())

    def _false_start(self) -> str:
        """How the first training process that ended ended; empty if none did."""
        found = self.chronicle.found(lambda event: isinstance(event, e.WorkerExited))
        if found is None or not isinstance(found.event, e.WorkerExited):
            return ""
        node = found.event.node
        log_path = self.fleet.folder.logs / f"worker-{node}.log"
        return f"{node}: {found.event.reason}: {last_line(log_path)} (log: {log_path})"

    async def warm(self, count: int, timeout_s: float = WARM_S) -> None:
        """Wait until `count` nodes are standby, that is warm."""
        chronicle = self.chronicle

        def warm() -> bool:
            nodes = chronicle.state.nodes
            return sum(nodes[n].state is NodeState.STANDBY for n in nodes) >= count

        await chronicle.until(warm, timeout_s, f"{count} warm standby nodes")

    async def step(self, step: int, timeout_s: float) -> None:
        """Wait until a step was committed."""
        await self.chronicle.until(
            lambda: self.chronicle.step >= step, timeout_s, f"step {step} to be committed"
        )

    async def finished(self, timeout_s: float) -> None:
        """Wait until the job is finished."""
        chronicle = self.chronicle

        def over() -> bool:
            return chronicle.job is not None and chronicle.job.finished

        await chronicle.until(over, timeout_s, "the job to finish")

    async def watch_children(self) -> None:
        """Raise when a part of the fleet ends that was not hurt on purpose.

        Raises:
            FleetError: names it, says how it ended and what it wrote last.
        """
        while True:
            for child in list(self.fleet.children()):
                if child.exit_code is None or NodeId(child.name) in self.hurt:
                    continue
                job = self.chronicle.job
                if job is not None and job.finished and child is not self.fleet.controller:
                    continue
                raise FleetError(
                    f"{child.name} ended with code {child.exit_code}: {child.last_words()} "
                    f"(log: {child.log_path})"
                )
            await anyio.sleep(_LOOK_S)


def training_command(options: DemoOptions) -> list[str]:
    """The command of the training process; the same on every node of both runs."""
    script = example("train_gpt.py" if is_plain(options.axes) else "train_pipeline.py")
    command = [sys.executable, str(script), "--steps", str(options.steps_most)]
    if options.data is not None:
        command += ["--data", str(options.data.resolve())]
    return [*command, *TRAINING, *model_arguments(options.axes), *options.training]


async def check_training(options: DemoOptions) -> None:
    """Have the training script look at the arguments that somebody asked for; without any, nothing.

    Raises:
        BadDemo: it does not take them; says what it said.
    """
    if not options.training:
        return
    sized = replace(options, steps=options.steps or STEPS_MIN)
    command = [*training_command(sized), "--check"]
    done = await anyio.run_process(command, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise BadDemo(f"what stands behind -- does not work: {said}")


@asynccontextmanager
async def store_for(options: DemoOptions, folder: RunFolder) -> AsyncIterator[str]:
    """The URL of the etcd that the demo uses: the one that was named, or one of its own.

    Raises:
        EtcdMissing, EtcdServerError: none to be had, or it does not start.
    """
    if options.etcd:
        yield options.etcd
        return
    binary = await anyio.to_thread.run_sync(lambda: ensure_etcd(demo=True))
    path = folder.path / "etcd"
    server = EtcdServer(binary, path, port=options.etcd_port)
    async with server, _watched(server.watch):
        yield server.url
    if not options.keep:
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(path / "etcd-data", True))


@asynccontextmanager
async def staged(
    options: DemoOptions,
    folder: RunFolder,
    name: str,
    etcd_url: str,
    knobs: Mapping[str, object] = KNOBS,
) -> AsyncIterator[Stage]:
    """Stage a fleet; everything that it started is gone when the block is left.

    Raises:
        FleetError, StoreAbsent, EventLogError: a part does not start, or ended.
    """
    folder.write_secret()
    settings = Settings(etcd=etcd_url, fleet=name, demo=True)
    async with opened(settings) as log:
        try:
            async with LocalFleet(folder, name, etcd_url) as fleet:
                stage = Stage(options, fleet, log, Chronicle(log, folder, JOB), knobs=knobs)
                fleet.start_controller()
                watchers = (stage.chronicle.follow_log, stage.chronicle.follow_vitals)
                async with _watched(*watchers, stage.watch_children):
                    yield stage
        finally:
            folder.secret.unlink()
            if options.etcd and not options.keep:
                with anyio.move_on_after(_ERASE_S, shield=True), suppress(EventLogError):
                    await log.erase()


@asynccontextmanager
async def _watched(*watchers: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Let others watch while the block runs; the first error of any ends it, unwrapped."""
    try:
        async with anyio.create_task_group() as group:
            for watch in watchers:
                group.start_soon(watch)
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise _first(several) from None


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that matters of a group: the first that is not a cancellation."""
    for error in several.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first(error)
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            return error
    return several.exceptions[0]

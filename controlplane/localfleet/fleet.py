"""The processes of one fleet: a controller, and nodes.

What belongs here: which command makes which part, where it writes, and ending all of it. It reads
no log and takes no decision.

Rule: whatever `LocalFleet` started is gone when its `async with` block is left, however it is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
import psutil

from controlplane.localfleet.children import Child
from controlplane.localfleet.folder import RunFolder
from statemachine.ids import JobId, NodeId

FAULT_VARIABLE: Final = "CHANGEOVER_FAULT_FILE"
WINDOW_VARIABLE: Final = "CHANGEOVER_WINDOW_S"
STEPS_VARIABLE: Final = "CHANGEOVER_STEPS_FILE"
BUDGET_VARIABLE: Final = "CHANGEOVER_PROBE_BUDGET_S"
SHARE_VARIABLE: Final = "CHANGEOVER_PROBE_SHARE"
"""What agents and training processes read from their environment; the names are `worker`'s."""

_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
_GRACE_S: Final = 2.0


class FleetError(Exception):
    """A part of the fleet did not start or ended when it should not. Fit for an operator."""


class LocalFleet:
    """One fleet on loopback, whose log is in the etcd at `etcd_url`."""

    def __init__(self, folder: RunFolder, fleet: str, etcd_url: str) -> None:
        self.folder = folder
        self.fleet = fleet
        self.etcd_url = etcd_url
        self.controller: Child | None = None
        self.nodes: dict[NodeId, Child] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()

    def start_controller(self) -> Child:
        """Start the control plane's one process."""
        command = [sys.executable, "-m", "controlplane", "controller"]
        command += ["--etcd", self.etcd_url, "--fleet", self.fleet, "--name", "c0", "--no-wait"]
        log_path = self.folder.logs / "controller.log"
        self.controller = Child.started("controller", command, log_path)
        return self.controller

    def start_node(
        self,
        node: NodeId,
        job: JobId,
        training: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a node: an agent and, under it, the training process, as one process group.

        A node of the same name that ended stays in its logs; its process is forgotten.
        """
        command = [sys.executable, "-m", "worker.agent", "--node", node, "--fleet", self.fleet]
        command += ["--etcd", self.etcd_url, "--job", job, "--run-dir", str(self.folder.logs)]
        command += ["--secret-file", str(self.folder.secret), "--rejoin", "--", *training]
        settings = {
            FAULT_VARIABLE: str(self.folder.fault_file(node)),
            STEPS_VARIABLE: str(self.folder.step_file(node)),
            **_ONE_THREAD,
            **(env or {}),
        }
        self.folder.faults.mkdir(exist_ok=True)
        self.folder.steps.mkdir(exist_ok=True)
        child = Child.started(node, command, self.folder.logs / f"agent-{node}.log", settings)
        self.nodes[node] = child
        return child

    def kill_node(self, node: NodeId) -> None:
        """End a node's whole process group at once, as a power cut would."""
        self.nodes[node].kill_group()

    def children(self) -> Iterable[Child]:
        """Every process that this fleet runs."""
        yield from (child for child in (self.controller, *self.nodes.values()) if child)

    async def stop(self) -> None:
        """End the nodes, then the controller; idempotent."""
        await _stop_all(list(self.nodes.values()))
        if self.controller is not None:
            await _stop_all([self.controller])


async def _stop_all(children: Iterable[Child]) -> None:
    async with anyio.create_task_group() as group:
        for child in children:
            group.start_soon(child.stop, _GRACE_S)


def born_at_s(pid: int) -> float | None:
    """When a process was started (Unix time), which tells it from a later one with its id."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def example(name: str) -> Path:
    """The path of a script of the checkout's `examples/`.

    Raises:
        FleetError: this installation has none.
    """
    path = Path(__file__).resolve().parents[2] / "examples" / name
    if not path.is_file():
        raise FleetError(
            f"{path} is missing: the demo trains the examples of a checkout; run it from one"
        )
    return path

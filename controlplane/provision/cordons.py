"""Which events make the scheduler keep work away from a machine, and which give it back.

Theory of operation. Level-triggered, like everything that acts: an event only names a node to look
at; what is then asked of the scheduler follows from the folded state at that moment. So a machine
that was quarantined and cleared while the scheduler was away ends as it should, and a takeover
looks once at every node that is, or ever was, kept out. A failure is told and tried again; it never
ends a term.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import anyio

from controlplane import journal
from controlplane.provision.port import Provisioner, ProvisionerError
from statemachine import events as e
from statemachine.ids import NodeId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Node

KEPT_OUT: Final = (
    NodeState.DRAINED,
    NodeState.QUARANTINED,
    NodeState.SWEEPING,
    NodeState.RETIRED,
)
"""States in which no work of anybody belongs on a machine."""

AWAY: Final = (NodeState.LOST, NodeState.GONE)

PAUSE_S: Final = 5.0
PAUSE_S_MAX: Final = 300.0

_LABEL: Final = re.compile(r"\{label\.([A-Za-z0-9._-]+)\}")


def machine_of(node: Node, template: str) -> str:
    """The scheduler's name of a node; empty if it lacks a label that the template needs."""
    labels = dict(node.labels)
    if any(name not in labels for name in _LABEL.findall(template)):
        return ""
    named = _LABEL.sub(lambda found: labels[found[1]], template)
    return named.replace("{host}", node.host).replace("{node}", node.node)


def wanted(node: Node) -> str | None:
    """Why work shall be kept away; empty to give the machine back; None to leave it as it is."""
    if node.state in KEPT_OUT or node.quarantine or node.retired or node.drained_by:
        why = node.retired or node.quarantine
        return why or (f"drained by {node.drained_by}" if node.drained_by else str(node.state))
    return None if node.state in AWAY else ""


class Cordons:
    """Keeps a scheduler in step with the fold."""

    def __init__(
        self,
        provisioner: Provisioner,
        template: str,
        states: Callable[[], FleetState],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._provisioner = provisioner
        self._template = template
        self._states = states
        self._pause_s = pause_s
        self._asked: dict[NodeId, str] = {}
        """What the scheduler was last told of a node."""
        self._due: dict[NodeId, None] = {}
        self._wake = anyio.Event()

    def begin(self, state: FleetState) -> None:
        """Look at every node that is kept out, or was: it may have been cleared meanwhile."""
        for name, node in state.nodes.items():
            if wanted(node):
                self._due[name] = None
            elif node.quarantined_at_ms or node.certificate is not None:
                self._asked[name] = "by a controller before"
                self._due[name] = None
        self._wake.set()

    def heard(self, recorded: Sequence[e.Recorded], _: FleetState) -> None:
        """Note which nodes to look at. Neither blocks nor raises."""
        for entry in recorded:
            node = getattr(entry.event, "node", None)
            if node:
                self._due[node] = None
        self._wake.set()

    async def run(self) -> NoReturn:
        """Tell the scheduler what changed, until cancelled."""
        pause_s = self._pause_s
        while True:
            while not self._due:
                self._wake = anyio.Event()
                await self._wake.wait()
            name = next(iter(self._due))
            try:
                await self._settle(name)
            except ProvisionerError as error:
                journal.warn("the scheduler could not be told", node=name, why=error)
                del self._due[name]
                self._due[name] = None  # the others first
                await anyio.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, pause_s * 2)
            else:
                pause_s = self._pause_s

    async def _settle(self, name: NodeId) -> None:
        node = self._states().nodes.get(name)
        why = wanted(node) if node is not None else None
        machine = machine_of(node, self._template) if node is not None else ""
        if why is None or not machine or bool(self._asked.get(name)) == bool(why):
            self._due.pop(name, None)
            return
        if why:
            await self._provisioner.cordon(machine, why)
        elif self._asked.get(name):
            await self._provisioner.uncordon(machine)
        self._asked[name] = why
        journal.note("scheduler told", node=name, machine=machine, cordoned=bool(why))

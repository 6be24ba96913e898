"""A sweep of many nodes, from the wish to a report: who passed, who did not, and by which numbers.

What belongs here: asking for the sweeps and listening until each has an outcome. Who is measured
with whom, and when, is decided by the state machine: whoever serves in a sweep is swept after it,
so a fleet of any size needs two rounds, and a third party's measurement where a pair was slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
from jinja2 import Environment, PackageLoader
from msgspec import Struct, field, to_builtins

from controlplane.acting import known_node
from controlplane.eventlog import EventLog
from controlplane.picture import fold_log
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import NodeId, Position, SweepId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState

MEASURABLE = frozenset(
    {
        NodeState.SPARE,
        NodeState.WARMING,
        NodeState.STANDBY,
        NodeState.DRAINED,
        NodeState.QUARANTINED,
        NodeState.SWEEPING,
    }
)
"""Nodes in one of these can be swept: they hold no slot, and are there."""


class Swept(Struct, kw_only=True):
    """What became of one node. `outcome` is empty while its sweep is not over."""

    node: NodeId
    outcome: str = ""
    reason: str = ""
    sweep: int = 0
    partner: str = ""
    third: str = ""
    took_s: float = 0.0
    rounds: dict[str, dict[str, float]] = field(default_factory=dict)


class SweepReport(Struct, kw_only=True):
    """A sweep of many nodes. Times in seconds; `left_out` says why a node was not measured."""

    fleet: str
    nodes: list[Swept]
    left_out: dict[NodeId, str]
    took_s: float = 0.0
    is_complete: bool = False

    def count(self, outcome: str) -> int:
        """How many nodes ended so."""
        return sum(swept.outcome == outcome for swept in self.nodes)

    def as_values(self) -> dict[str, Any]:
        """For `--json`."""
        outcomes = [str(outcome) for outcome in e.SweepOutcome]
        return to_builtins(self) | {"outcomes": {name: self.count(name) for name in outcomes}}  # type: ignore[no-any-return]

    def as_html(self) -> str:
        """One page that needs nothing besides; what nodes report is escaped."""
        pages = Environment(loader=PackageLoader("controlplane.health", "."), autoescape=True)
        return pages.get_template("sweep_report.html.j2").render(report=self, outcomes=_COLOURS)


_COLOURS = {"passed": "#1a7f37", "failed": "#c62828", "inconclusive": "#8a6d00", "": "#666"}


async def sweep_nodes(
    log: EventLog,
    wanted: Iterable[str] | None,
    by: str,
    comment: str,
    *,
    clock_ms: Callable[[], int],
    deadline_s: float,
    heard: Callable[[SweepReport], None] | None = None,
) -> SweepReport:
    """Have nodes swept, all that can be if `wanted` is None, and wait for their outcomes.

    `heard` is told of each outcome. What is not over after `deadline_s` seconds is reported so.

    Raises:
        NoSuchNode: one of `wanted` never joined.
        StoreUnavailable, OutcomeUnknown.
    """
    state = await fold_log(log)
    asked = state.nodes if wanted is None else wanted
    names = sorted({known_node(state, name, log.fleet) for name in asked})
    report = SweepReport(fleet=log.fleet, nodes=[], left_out={})
    for name in names:
        why = _why_not(state, name)
        if why:
            report.left_out[name] = why
        else:
            report.nodes.append(Swept(node=name))
    began_s = anyio.current_time()
    async with log.follow(Position(state.position + 1)) as follower:
        for swept in report.nodes:
            wish = e.SweepAsked(node=swept.node, by=by, comment=comment)
            await log.submit_operator(by, wish, clock_ms())
        listener = _Listener(report, state)
        with anyio.move_on_after(deadline_s):
            while not listener.is_over:
                for entry in await follower.next_batch():
                    if listener.hear(entry.recorded()) and heard is not None:
                        heard(report)
    report.took_s = anyio.current_time() - began_s
    report.is_complete = listener.is_over
    return report


def _why_not(state: FleetState, name: NodeId) -> str:
    node = state.nodes[name]
    if node.state is NodeState.ACTIVE:
        return "it holds a slot: drain it first"
    return "" if node.state in MEASURABLE else f"it is {node.state}"


class _Listener:
    """Fills the report from the log."""

    def __init__(self, report: SweepReport, state: FleetState) -> None:
        self._open = {swept.node: swept for swept in report.nodes}
        self._by_sweep: dict[SweepId, Swept] = {}
        self._began_ms: dict[SweepId, int] = {}
        self._state = state

    @property
    def is_over(self) -> bool:
        """Whether every node has an outcome."""
        return not self._open

    def hear(self, recorded: e.Recorded) -> bool:
        """Take in one entry; True if a node's outcome is known now."""
        self._state = evolve(self._state, recorded)
        match recorded.event:
            case e.SweepRequested() as request if request.node in self._open:
                swept = self._open[request.node]
                swept.sweep, swept.partner = int(request.sweep), str(request.partner)
                self._by_sweep[request.sweep] = swept
                self._began_ms[request.sweep] = recorded.at_ms
            case e.SweepExtended() as extended if extended.sweep in self._by_sweep:
                self._by_sweep[extended.sweep].third = str(extended.partner)
            case e.SweepRoundFinished() as done if done.sweep in self._by_sweep:
                self._by_sweep[done.sweep].rounds[done.round] = dict(done.measurements)
            case e.SweepFinished() as finished if finished.sweep in self._by_sweep:
                swept = self._by_sweep[finished.sweep]
                swept.outcome, swept.reason = str(finished.outcome), finished.reason
                swept.took_s = (recorded.at_ms - self._began_ms[finished.sweep]) / 1000
                return self._open.pop(swept.node, None) is not None
            case e.ActRefused() as refused if refused.act == "sweep":
                return self._ended(refused.node, f"refused: {refused.reason}")
            case e.NodeLost() | e.NodeLeft() as gone:
                return self._ended(gone.node, f"it is gone: {gone.reason}")
            case _:
                pass
        return False

    def _ended(self, node: NodeId, reason: str) -> bool:
        swept = self._open.pop(node, None)
        if swept is None:
            return False
        swept.outcome, swept.reason = str(e.SweepOutcome.INCONCLUSIVE), reason
        return True

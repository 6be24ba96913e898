"""One term of a leading controller: everything that runs while it leads, in one task group.

What belongs here: which parts there are and how they are wired. The parts know each other only as
functions that they were given. Any of them that fails ends the term; nothing of a term survives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import anyio

from controlplane import journal
from controlplane.eventlog import EventLog, Leadership
from controlplane.health.collector import Collector
from controlplane.leadership import Preview
from controlplane.lines import words_of
from controlplane.membership import Membership
from controlplane.outside import Outside
from controlplane.plugins import Plugins
from controlplane.projection import everything
from controlplane.reconciler import Reconciler
from controlplane.snapshotting import Snapshotter
from controlplane.turn import Ledger, Passed
from statemachine import events as e
from statemachine.policy import Policy, knobs_of, policy_of
from statemachine.state import FleetState

if TYPE_CHECKING:
    from controlplane.metrics import Meters


def unix_ms() -> int:
    """Unix time of this machine, in ms."""
    return time.time_ns() // 1_000_000


class Term:
    """What a controller does from winning the leadership until losing it.

    `knobs` are those of the policy that this controller shall bring about, None for the log's;
    `preview` is what it folded while it stood by.
    """

    def __init__(
        self,
        log: EventLog,
        leadership: Leadership,
        *,
        clock_ms: Callable[[], int] = unix_ms,
        knobs: dict[str, object] | None = None,
        preview: Preview | None = None,
        meters: Meters | None = None,
        outside: Outside | None = None,
        plugins: Plugins | None = None,
    ) -> None:
        self.leading = anyio.Event()
        """Set once the log is folded and the first turn is about to be taken."""
        self.reconciler: Reconciler
        self.collector: Collector
        self._log = log
        self._leadership = leadership
        self._clock_ms = clock_ms
        self._knobs = knobs
        self._meters = meters
        self._plugins = plugins if plugins is not None else Plugins()
        self._outside = outside if outside is not None else Outside()
        self._preview = preview if preview is not None else Preview(log)

    async def run(self) -> NoReturn:
        """Lead until the term is over.

        Raises, possibly in a group:
            Deposed, HeadMoved: another term begins.
            LogCorrupt, InvariantBroken, NoSpace, PermissionDenied: an operator must act.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._leadership.run_renewal)
            ledger = await self._preview.complete()
            membership = self._assemble(ledger)
            async with (
                self._log.watch_inbox() as inbox,
                self._log.watch_nodes() as nodes,
                self._log.watch_vitals() as vitals,
            ):
                group.start_soon(self.reconciler.run_inbox, inbox)
                group.start_soon(membership.run, nodes)
                group.start_soon(self.collector.run, vitals)
                group.start_soon(self._snapshotter.run)
                self._plugins.begin(group, self.reconciler, self.collector)
                await self._outside.begin(group, self._log, self.reconciler, self._clock_ms())
                self.leading.set()
                await self.reconciler.run()
        raise AssertionError

    def _assemble(self, ledger: Ledger) -> Membership:
        """Build the parts around one reconciler, and give it what a new term begins with."""
        reconciler = Reconciler(
            self._leadership, ledger, self._clock_ms, own_rule=self._plugins.rule
        )

        def states() -> FleetState:
            return reconciler.state

        membership = Membership(states, reconciler.state_events)
        self.collector = Collector(states, reconciler.state_events, self._clock_ms)
        self._snapshotter = Snapshotter(self._log, ledger, self._clock_ms)
        reconciler.listeners += [self._narrate, membership.heard, self.collector.heard]
        reconciler.listeners.append(self._snapshotter.heard)
        reconciler.passed_listeners.append(_report_passed)
        if self._meters is not None:
            self._meters.leading.set(1)
            self._meters.terms.inc()
            reconciler.listeners.append(self._meter)
            reconciler.passed_listeners.append(self._meter_passed)
        reconciler.state_events(self._first_words(ledger))
        reconciler.recheck(everything(ledger.state))
        self.reconciler = reconciler
        return membership

    def _first_words(self, ledger: Ledger) -> Iterable[e.AnyEvent]:
        leadership = self._leadership
        yield e.LeaderElected(controller=leadership.controller, term=leadership.term)
        if self._knobs is None:
            return
        wanted = policy_of(self._knobs)
        if wanted != ledger.state.policy:
            yield _policy_change(wanted, ledger.state, leadership.controller)

    def _narrate(self, recorded: Sequence[e.Recorded], state: FleetState) -> None:
        for entry in recorded:
            journal.note(
                f"{type(entry.event).__name__} {words_of(entry.event)}".rstrip(),
                position=entry.position,
                writer=entry.writer,
            )

    def _meter(self, recorded: Sequence[e.Recorded], state: FleetState) -> None:
        assert self._meters is not None
        self._meters.turns.inc()
        self._meters.turn_at.set(recorded[-1].at_ms / 1000)

    def _meter_passed(self, outcome: str, passed: Passed) -> None:
        assert self._meters is not None
        self._meters.passed.labels(outcome).inc()


def _policy_change(wanted: Policy, state: FleetState, by: str) -> e.PolicyChanged:
    return e.PolicyChanged(
        version=state.policy_version + 1,
        knobs=knobs_of(wanted),
        by=by,
        comment="from the controller's configuration",
    )


def _report_passed(outcome: str, passed: Passed) -> None:
    item = passed.item
    journal.warn(
        f"a fact is {outcome}",
        fact=f"{item.writer}/{item.incarnation}/{item.counter}",
        why=passed.reason,
    )

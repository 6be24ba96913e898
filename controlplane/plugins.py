"""What others put into a control plane: a rule, detectors, sources of metrics, listeners.

What belongs here: the shapes, and finding them by name among the entry points of installed packages
(``[plugins]`` of the settings file names them). A rule is pure and asked before ours. The rest runs
in the term's task group: a detector is given every window and states verdicts, a source gives
windows, a listener hears every entry. A plug-in that raises ends the term with its error: whoever
leads next has it too, so that it is seen and not silently missing.

    changeover.policies     rule(state, now_ms, policy) -> Decision | None
    changeover.detectors    async detector(windows, states, state_events) -> None
    changeover.metrics      source() -> async iterator of Vitals
    changeover.listeners    listener(recorded, state) -> None, which must not block
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Struct

from controlplane.errors import BadConfig, PluginFailed
from statemachine.decide import Decision, Rule
from statemachine.events import Recorded, VerdictIssued, VerdictWithdrawn
from statemachine.policy import Policy
from statemachine.state import FleetState
from statemachine.vitals import Vitals

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from controlplane.config import Settings
    from controlplane.health.collector import Collector
    from controlplane.reconciler import Reconciler

States = Callable[[], FleetState]
StateEvents = Callable[[Iterable[VerdictIssued | VerdictWithdrawn]], None]
Detector = Callable[[AsyncIterator[Vitals], States, StateEvents], Awaitable[None]]
Source = Callable[[], AsyncIterator[Vitals]]
Listener = Callable[[Recorded, FleetState], None]

GROUPS: Final = {
    "policy": "changeover.policies",
    "detectors": "changeover.detectors",
    "metrics": "changeover.metrics",
    "listeners": "changeover.listeners",
}
"""Key of ``[plugins]`` -> group of entry points."""

WINDOWS_WAITING: Final = 10_000
"""Windows that a detector may be behind; beyond, the newest are dropped."""


class Plugins(Struct, frozen=True, kw_only=True):
    """What is put in."""

    rule: Rule | None = None
    detectors: tuple[Detector, ...] = ()
    sources: tuple[Source, ...] = ()
    listeners: tuple[Listener, ...] = ()

    def begin(self, group: TaskGroup, reconciler: Reconciler, collector: Collector) -> None:
        """Start what runs during a term; returns at once."""

        def states() -> FleetState:
            return reconciler.state

        def heard(recorded: Sequence[Recorded], state: FleetState) -> None:
            for entry in recorded:
                for listener in self.listeners:
                    listener(entry, state)

        if self.listeners:
            reconciler.listeners.append(heard)
        for detector in self.detectors:
            send, receive = anyio.create_memory_object_stream[Vitals](WINDOWS_WAITING)
            collector.listeners.append(_sender(send))
            group.start_soon(_detect, detector, (send, receive), states, reconciler.state_events)
        for source in self.sources:
            group.start_soon(_feed, source, collector)


def _sender(send: MemoryObjectSendStream[Vitals]) -> Callable[[Vitals], None]:
    def offer(vitals: Vitals) -> None:
        try:
            send.send_nowait(vitals)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # a detector that is behind, or done, misses windows and nothing else

    return offer


async def _detect(
    detector: Detector,
    streams: tuple[MemoryObjectSendStream[Vitals], MemoryObjectReceiveStream[Vitals]],
    states: States,
    state_events: StateEvents,
) -> None:
    send, windows = streams
    with send, windows:
        await detector(windows, states, state_events)


async def _feed(source: Source, collector: Collector) -> None:
    async for vitals in source():
        collector.offer((vitals,))


def check_names(table: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Read and check ``[plugins]``.

    Raises:
        BadConfig: names the key or the plug-in that there is not, with the nearest one.
    """
    if not isinstance(table, dict):
        raise BadConfig(f"{where}: plugins", table, "must be a table")
    found: dict[str, tuple[str, ...]] = {}
    for key, given in table.items():
        if key not in GROUPS:
            near = difflib.get_close_matches(key, GROUPS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadConfig(f"{where}: plugins.{key}", given, f"no such kind of plug-in{hint}")
        names = (given,) if isinstance(given, str) else tuple(given)
        installed = entry_points(group=GROUPS[key]).names
        for name in names:
            if name not in installed:
                have = ", ".join(sorted(installed)) or "none"
                words = f"no entry point of group {GROUPS[key]}; installed: {have}"
                raise BadConfig(f"{where}: plugins.{key}", name, words)
        found[key] = names
    return found


def plugins_of(settings: Settings) -> Plugins:
    """Load what the settings name.

    Raises:
        BadConfig: a plug-in cannot be imported, is not to be called, or there are two rules.
    """

    def load(key: str) -> tuple[Any, ...]:
        named = settings.plugins.get(key, ())
        return tuple(
            _loaded(key, entry)
            for name in named
            for entry in entry_points(group=GROUPS[key], name=name)
        )

    rules = load("policy")
    if len(rules) > 1:
        words = "one rule decides first: name one, or write one that asks the others"
        raise BadConfig("plugins.policy", list(settings.plugins["policy"]), words)
    return Plugins(
        rule=rules[0] if rules else None,
        detectors=load("detectors"),
        sources=load("metrics"),
        listeners=load("listeners"),
    )


def _loaded(key: str, entry: EntryPoint) -> Any:
    try:
        found = entry.load()
    except Exception as error:  # importing runs whatever a package has
        words = f"{entry.value} cannot be loaded: {type(error).__name__}: {error}"
        raise BadConfig(f"plugins.{key}", entry.name, words) from error
    if not callable(found):
        words = f"{entry.value} is of type {type(found).__name__}, which nothing can call"
        raise BadConfig(f"plugins.{key}", entry.name, words)
    return _checked(entry.name, found) if key == "policy" else found


def _checked(name: str, rule: Rule) -> Rule:
    """The rule; one that returns something else is told so by its name."""

    @wraps(rule)
    def asked(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
        found: object = rule(state, now_ms, policy)
        if found is None or isinstance(found, Decision):
            return found
        raise PluginFailed(
            f"the rule {name!r} ([plugins] policy) returned a {type(found).__name__}; a rule "
            "returns a Decision, or None"
        )

    return asked

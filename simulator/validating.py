"""Simulated beside measured: a campaign that was played, simulated again with the log's own costs.

What the injector really did and when comes from the run; the policy is the one of the run's log.
Both logs are told by the same code (`statemachine.incidents`), fault by fault. With costs from the
run itself, downtimes are no prediction, but who replaces whom and the share of time that became
work are; with `--costs` of another run all of it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simulator.calibrating import Measured, calibrate
from simulator.core import EPOCH_MS, number_of
from simulator.errors import BadLog
from simulator.faults import Fault, Kind, Trace
from simulator.parts import STRATEGIES
from simulator.replay import read_log
from simulator.scenario import Scenario
from simulator.scenario_file import load
from simulator.stats import quantiles
from simulator.world import World
from statemachine import events as e
from statemachine.campaign import Injection, Played
from statemachine.incidents import Incident, incidents


class Pair(Struct, frozen=True, kw_only=True):
    """One fault: what followed it in the run, and in the simulation."""

    at_s: float
    kind: str
    machine: int
    measured_replacement: int | None
    simulated_replacement: int | None
    measured_ms: float | None
    simulated_ms: float | None
    error: float | None
    """Of the downtime, relative; None where either has none."""


class Validation(Struct, frozen=True, kw_only=True):
    """A whole run, both ways."""

    pairs: tuple[Pair, ...]
    measured_ettr: float
    simulated_ettr: float
    measured_swaps: int
    simulated_swaps: int
    same_replacements: int
    """Faults after which the same machine took the slot."""
    costs: dict[str, float]
    costs_from: str
    measured: tuple[Measured, ...] = ()
    """Every component: over how many incidents it was measured, or what is assumed of it."""


def validate(run: Path, costs_log: Path | None = None) -> Validation:
    """Simulate a run that a campaign was played on, and put both side by side.

    Raises:
        BadLog, BadScenario: a file of the run is missing or cannot be read.
    """
    log = read_log(run / "events.jsonl")
    played = _played(run / "campaign.json")
    scenario = load(run / "scenario.toml")
    source = read_log(costs_log) if costs_log is not None else log
    measured_costs = calibrate(source, scenario)
    costs = _costs(measured_costs, scenario, played)
    again, trace = _scenario(scenario, played, log, costs), _trace(played)
    kept: list[e.Recorded] = []
    world = World(again, STRATEGIES["standby-swap-guard"], trace, explicit=True, keep=kept.append)
    totals = world.run()
    measured = [each for each in incidents(log) if each.began_at_ms >= played.launched_at_ms]
    simulated = list(incidents(kept))
    pairs = tuple(
        _pair(
            injection,
            _of(measured, injection, played.launched_at_ms),
            _of(simulated, injection, EPOCH_MS),
        )
        for injection in played.injections
    )
    wall_ms = played.ended_at_ms - played.launched_at_ms
    return Validation(
        pairs=pairs,
        measured_ettr=min(1.0, played.steps * played.step_ms / wall_ms),
        simulated_ettr=totals.ettr(),
        measured_swaps=len(measured),
        simulated_swaps=len(simulated),
        same_replacements=sum(
            pair.measured_replacement == pair.simulated_replacement for pair in pairs
        ),
        costs=costs,
        costs_from=str(costs_log) if costs_log is not None else "this run itself",
        measured=measured_costs,
    )


def origins(found: Validation) -> tuple[str, ...]:
    """One line of the costs that were measured, with what they spread over; one of the rest.

    A component of which no incident told is a publication's, for its fleet: a downtime that it is
    part of is no prediction for this one.
    """
    known = [
        f"{each.component} {each.seconds:.3g} ({each.samples}: "
        f"{each.spread_s[0]:.3g} to {each.spread_s[1]:.3g})"
        for each in found.measured
        if each.seconds is not None
    ]
    assumed = [each.component for each in found.measured if each.seconds is None]
    lines = []
    if known:
        lines.append(f"measured (incidents: 10 % to 90 %): {', '.join(known)}")
    if assumed:
        lines.append(f"assumed, nothing in the log tells of it: {', '.join(assumed)}")
    return tuple(lines)


def _played(path: Path) -> Played:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Played)
    except OSError as error:
        raise BadLog(
            f"{path}: cannot be read: {error.strerror}; `changeover demo --scenario` writes it"
        ) from error
    except msgspec.MsgspecError as error:
        raise BadLog(f"{path}: not what a campaign leaves: {error}") from error


def _costs(measured: Sequence[Measured], scenario: Scenario, played: Played) -> dict[str, float]:
    """Measured components; a first step counts as far as it is longer than an ordinary one."""
    found = {each.component: each.seconds for each in measured if each.seconds is not None}
    ordinary_s = played.step_ms / 1000
    found["first_step_s"] = max(0.0, found.get("first_step_s", ordinary_s) - ordinary_s)
    return {"delta_s": 0.0, "transfer_s": 0.0, **found, **scenario.costs.overrides}


def _scenario(
    scenario: Scenario, played: Played, log: Sequence[e.Recorded], costs: dict[str, float]
) -> Scenario:
    knobs: dict[str, Any] = {}
    for entry in log:
        if isinstance(entry.event, e.PolicyChanged):
            knobs = dict(entry.event.knobs)
    sweep_s = _sweep_s(log)
    return replace(
        scenario,
        days=(played.ended_at_ms - played.launched_at_ms) / 86_400_000,
        job=replace(
            scenario.job,
            step_s=played.step_ms / 1000,
            checkpoint_stall_s=0.0,
            transfer_gbps=0.0,
        ),
        costs=replace(scenario.costs, infra=False, overrides=costs),
        guard=replace(
            scenario.guard,
            triage=False,
            sweep_s=sweep_s,
            window_s=1.0,
            peers=max(3, scenario.slots - 1),
            solo_sees=1.0,  # what is injected is the node's own work
            false_pass=0.0,
            false_fail=0.0,
        ),
        repair=replace(scenario.repair, kind="fixed", mean_h=_away_h(played), manual_silent=0.0),
        policy=knobs,
    )


def _away_h(played: Played) -> float:
    """How long after a failed sweep a fault is lifted."""
    away = [each.away_s for each in played.injections if each.kind == "grey"]
    return max(away, default=1.0) / 3600


def _sweep_s(log: Sequence[e.Recorded]) -> float:
    begun: dict[int, int] = {}
    took: list[float] = []
    for entry in log:
        if isinstance(entry.event, e.SweepRequested):
            begun[entry.event.sweep] = entry.at_ms
        elif isinstance(entry.event, e.SweepFinished) and entry.event.sweep in begun:
            took.append((entry.at_ms - begun[entry.event.sweep]) / 1000)
    return max(0.1, quantiles(took, (0.5,))[0]) if took else 5.0


def _trace(played: Played) -> Trace:
    kinds = {"kill": Kind.HARD, "grey": Kind.GREY, "drain": Kind.PLANNED}
    faults = [
        Fault(
            each.at_s,
            kinds[each.kind],
            each.slot if each.kind == "drain" else each.machine,
            severity=each.factor,
            repair_h=each.away_s / 3600,
        )
        for each in played.injections
    ]
    return Trace(tuple(faults), frozenset(), {})


def _of(found: Sequence[Incident], injection: Injection, zero_ms: float) -> Incident | None:
    """The first incident that a fault led to."""
    at_ms = zero_ms + injection.at_s * 1000 - 50  # the injector's word comes with its own delay
    for each in found:
        hit = each.slot == injection.slot or number_of(each.node) == injection.machine
        if hit and each.began_at_ms >= at_ms:
            return each
    return None


def _pair(injection: Injection, measured: Incident | None, simulated: Incident | None) -> Pair:
    one = measured.downtime_ms if measured is not None else None
    other = simulated.downtime_ms if simulated is not None else None
    node = measured or simulated
    return Pair(
        at_s=injection.at_s,
        kind=injection.kind,
        machine=number_of(node.node) if node is not None else injection.machine,
        measured_replacement=number_of(measured.replacement) if measured is not None else None,
        simulated_replacement=number_of(simulated.replacement) if simulated is not None else None,
        measured_ms=one,
        simulated_ms=other,
        error=other / one - 1 if one and other is not None else None,
    )

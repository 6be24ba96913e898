"""A scenario as a live campaign: what is done to a fleet of processes on one machine, and when.

The horizon is squeezed into `live.seconds`; faults keep their order, their victims and their share
of the time. A machine is a process here, so it holds one rank and there are no machines but those
that hold a slot or stand by. The injector (`changeover demo --scenario`) reads the JSON of this;
it draws nothing itself.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from simulator.errors import BadScenario
from simulator.faults import Fault, Kind, draw
from simulator.repair import repair_of
from simulator.scenario import Scenario
from simulator.scenario_file import load
from statemachine.campaign import Campaign, Injection

SLOTS_MAX: Final = 64
"""Processes that train on one machine at most."""


class LiveTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[live]`."""

    seconds: float = 60.0
    """Real time that stands for the scenario's `days`."""
    settle_s: float = 3.0
    """Time after the launch before the first fault: a standby has to be warm."""
    away_s: float = 1.0
    """Least time that a killed or drained machine is away."""


_KINDS: Final = {Kind.HARD: "kill", Kind.GREY: "grey", Kind.PLANNED: "drain"}


def campaign(path: Path) -> Campaign:
    """Read a scenario file as a campaign.

    Raises:
        BadScenario: it cannot be simulated, or not be played on one machine; says why.
    """
    scenario, live = load(path), _live(path)
    for name, value, allowed in (
        ("fleet.gpus_per_node", scenario.fleet.gpus_per_node, 1),
        ("fleet.spares", scenario.fleet.spares, 0),
    ):
        if value != allowed:
            raise BadScenario(
                f"{path}: {name} = {value!r}: a live campaign needs {allowed}; a machine is a "
                "process there, and all of them are started"
            )
    if scenario.slots > SLOTS_MAX:
        raise BadScenario(
            f"{path}: job.axes = {scenario.job.axes!r}: {scenario.slots} slots; a live campaign "
            f"has {SLOTS_MAX} at most"
        )
    scale = (live.seconds - live.settle_s) / scenario.horizon_s
    found = [
        _injection(scenario, fault, scale, live)
        for fault in draw(scenario, 0).faults
        if fault.kind in _KINDS
    ]
    return Campaign(
        name=scenario.name,
        seed=scenario.seed,
        axes=dict(scenario.job.axes),
        standbys=scenario.fleet.standbys,
        seconds=live.seconds,
        injections=tuple(found),
    )


def _injection(scenario: Scenario, fault: Fault, scale: float, live: LiveTable) -> Injection:
    hours = scenario.faults.maintenance_h
    if fault.kind is not Kind.PLANNED:
        hours = repair_of(scenario.repair, fault).hours
    drain = fault.kind is Kind.PLANNED
    return Injection(
        at_s=live.settle_s + fault.at_s * scale,
        kind=_KINDS[fault.kind],
        machine=-1 if drain else fault.machine,
        slot=fault.machine if drain else -1,
        factor=fault.severity,
        away_s=max(live.away_s, hours * 3600 * scale),
    )


def _live(path: Path) -> LiveTable:
    raw: Any = tomllib.loads(path.read_text("utf-8")).get("live", {})
    known = LiveTable.__struct_fields__
    for key, value in raw.items() if isinstance(raw, dict) else ():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean live.{near[0]}?" if near else f"known are {', '.join(known)}"
            raise BadScenario(f"{path}: live.{key} = {value!r}: no such key; {hint}")
    try:
        live = msgspec.convert(raw, LiveTable)
    except msgspec.ValidationError as error:
        raise BadScenario(f"{path}: live: {error}") from error
    if not 0 < live.settle_s < live.seconds or live.away_s <= 0:
        raise BadScenario(
            f"{path}: live.seconds = {live.seconds!r}: must be above live.settle_s = "
            f"{live.settle_s!r}, and both (and live.away_s = {live.away_s!r}) above 0"
        )
    return live

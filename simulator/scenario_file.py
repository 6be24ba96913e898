"""Reading a scenario: TOML in, `Scenario` out, or one line that says what is wrong and where.

An error names the file, the path of the key, its value and what is allowed; an unknown key names
the nearest known one. Tables of bounds are literal, so that a reader sees every rule at once.
"""

import difflib
import tomllib
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from simulator import scenario as s
from simulator.errors import BadScenario
from simulator.models import COMPONENTS, MODELS
from simulator.parts import STRATEGIES
from statemachine.errors import BadLayout, BadPolicy
from statemachine.layout import Layout
from statemachine.policy import Policy, policy_of

_MACHINES_MOST: Final = 1 << 20
_FAULTS_MOST: Final = 10_000_000
_RATES: Final = (
    "faults.per_1000_node_days",
    "faults.rack_per_1000_rack_days",
    "faults.switch_per_1000_switch_days",
    "grey.per_1000_node_days",
    "guard.false_alarms_per_1000_node_days",
)
_MOST: Final[Mapping[str, int]] = {
    "days": 36_525,
    "replications": 1_000_000,
    "fleet.nodes": _MACHINES_MOST,
    "fleet.standbys": _MACHINES_MOST,
    "fleet.spares": _MACHINES_MOST,
    "fleet.borrowed": _MACHINES_MOST,
    "fleet.gpus_per_node": 1024,
}
"""Far beyond what is planned for; what is larger is a slip of the hand."""

_TABLES: Final[Mapping[str, type[Struct]]] = {
    "fleet": s.FleetTable,
    "job": s.JobTable,
    "faults": s.FaultsTable,
    "repair": s.RepairTable,
    "grey": s.GreyTable,
    "guard": s.GuardTable,
    "costs": s.CostTable,
    "human": s.HumanTable,
}
_SHARES: Final = (
    "faults.lemon_share",
    "faults.burst_share",
    "repair.manual_share",
    "repair.auto_silent",
    "repair.manual_silent",
    "grey.initial_share",
    "grey.of_lemons",
    "guard.solo_sees",
    "guard.false_pass",
    "guard.false_fail",
)
_ABOVE_ZERO: Final = (
    "days",
    "replications",
    "fleet.gpus_per_node",
    "fleet.rack_nodes",
    "fleet.switch_nodes",
    "job.step_s",
    "job.microbatches",
    "job.checkpoint_interval_s",
    "faults.shape",
    "faults.lemon_factor",
    "faults.burst_size",
    "faults.burst_window_s",
    "repair.max_h",
    "guard.window_s",
    "guard.sweep_s",
)
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "faults.distribution": ("exponential", "weibull"),
    "repair.kind": ("fixed", "exponential", "lognormal", "two_branch", "resample"),
    "costs.model": tuple(MODELS),
}


def load(path: Path) -> s.Scenario:
    """Read a scenario file.

    Raises:
        BadScenario: it cannot be read, or cannot be simulated; the line says why.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadScenario(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadScenario(f"{path}: no TOML: {error}") from error
    raw = {key: value for key, value in raw.items() if key not in ("grid", "live")}
    return build(_with_files(raw, path.parent), str(path))


def _with_files(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Traces are named relative to the scenario."""
    for table in ("faults", "repair"):
        inner = raw.get(table)
        if isinstance(inner, dict) and isinstance(inner.get("trace"), str) and inner["trace"]:
            raw[table] = {**inner, "trace": str(folder / inner["trace"])}
    return raw


def build(raw: Mapping[str, Any], source: str) -> s.Scenario:
    """Validate what a file, or a grid, says.

    Raises:
        BadScenario: with `source`, the path of the key, its value and what is allowed.
    """
    _refuse_unknown(raw, s.Scenario, source, "")
    try:
        scenario = msgspec.convert(dict(raw), s.Scenario)
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at ")
        place = where.strip("`").removeprefix("$.") or "scenario"
        raise BadScenario(f"{source}: {place} = {_value(raw, place)!r}: {words}") from error
    check(scenario, source)
    return scenario


def _value(raw: Mapping[str, Any], place: str) -> Any:
    found: Any = raw
    for key in place.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return found
        found = found[key]
    return found


def _refuse_unknown(raw: Mapping[str, Any], kind: type[Struct], source: str, at: str) -> None:
    known = kind.__struct_fields__
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {at}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise BadScenario(f"{source}: {at}{key} = {value!r}: no such key; {hint}")
        if not at and key in _TABLES and isinstance(value, Mapping):
            _refuse_unknown(value, _TABLES[key], source, f"{key}.")
        if at == "faults." and key == "classes" and isinstance(value, list):
            for number, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    _refuse_unknown(entry, s.ClassTable, source, f"faults.classes[{number}].")


def _get(scenario: s.Scenario, path: str) -> Any:
    found: Any = scenario
    for name in path.split("."):
        found = getattr(found, name)
    return found


def check(scenario: s.Scenario, source: str = "scenario") -> None:
    """Refuse what no fleet could live.

    Raises:
        BadScenario: names the key, its value and what is allowed.
    """

    def refuse(path: str, allowed: str) -> BadScenario:
        return BadScenario(f"{source}: {path} = {_get(scenario, path)!r}: {allowed}")

    for path in _SHARES:
        if not 0 <= _get(scenario, path) <= 1:
            raise refuse(path, "must be from 0 to 1")
    for path in _ABOVE_ZERO:
        if not 0 < _get(scenario, path) < inf:
            raise refuse(path, "must be above 0, and finite")
    for path, allowed in _CHOICES.items():
        if _get(scenario, path) not in allowed:
            near = difflib.get_close_matches(_get(scenario, path), allowed, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise refuse(path, f"must be one of {', '.join(allowed)}{hint}")
    for table in _TABLES:
        record = getattr(scenario, table)
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, float) and not isfinite(value):
                raise refuse(f"{table}.{name}", "must be a finite number")
            if isinstance(value, int | float) and value < 0:
                raise refuse(f"{table}.{name}", "must not be negative")
    for path, most in _MOST.items():
        if (_get(scenario, path) or 0) > most:
            raise refuse(path, f"at most {most:,}")
    _check_together(scenario, source)
    _check_size(scenario, source)


def _check_size(scenario: s.Scenario, source: str) -> None:
    """Refuse what would never end, rather than begin it: a digit too many is easily typed."""
    if scenario.machines > _MACHINES_MOST:
        machines = f"{scenario.slots:,} slots, {scenario.machines:,} machines in all"
        raise BadScenario(
            f"{source}: job.axes = {scenario.job.axes!r}: {machines}; at most {_MACHINES_MOST:,}"
        )
    for path in _RATES:
        expected = _get(scenario, path) / 1000 * scenario.machines * scenario.days
        if expected > _FAULTS_MOST:
            raise BadScenario(
                f"{source}: {path} = {_get(scenario, path)!r}: {expected:.3g} faults of "
                f"{scenario.machines:,} machines in {scenario.days:g} days; "
                f"at most {_FAULTS_MOST:,}"
            )


def _check_together(scenario: s.Scenario, source: str) -> None:
    def bad(words: str) -> BadScenario:
        return BadScenario(f"{source}: {words}")

    job, fleet = scenario.job, scenario.fleet
    try:
        Layout.of(job.axes, ranks_per_node=fleet.gpus_per_node)
    except BadLayout as error:
        raise bad(f"job.axes = {job.axes!r}: {error}") from error
    if fleet.nodes and fleet.nodes < scenario.slots + fleet.standbys:
        wanted = f"{scenario.slots} slots and {fleet.standbys} standbys"
        raise bad(f"fleet.nodes = {fleet.nodes}: fewer than {wanted} that the job asks for")
    if len(scenario.grey.severities) != len(scenario.grey.weights):
        raise bad(f"grey.weights = {scenario.grey.weights!r}: one for each of grey.severities")
    if any(weight < 0 for weight in scenario.grey.weights) or not sum(scenario.grey.weights):
        raise bad(f"grey.weights = {scenario.grey.weights!r}: none below 0, and not all 0")
    if any(severity < 1 for severity in scenario.grey.severities):
        raise bad(f"grey.severities = {scenario.grey.severities!r}: each must be at least 1")
    shares = sum(each.share for each in scenario.faults.classes)
    if abs(shares - 1) > 1e-3 or any(each.share < 0 for each in scenario.faults.classes):
        raise bad(f"faults.classes: the shares are {shares:.3f} together; they must be 1")
    for each in scenario.faults.classes:
        if each.evidence not in ("exit", "reset", "lease"):
            raise bad(
                f"faults.classes.{each.name}.evidence = {each.evidence!r}: exit, reset, lease"
            )
    if scenario.repair.kind == "resample" and not (
        scenario.repair.samples_h or scenario.repair.trace
    ):
        raise bad("repair.kind = 'resample': needs repair.samples_h or repair.trace")
    for name in scenario.costs.overrides:
        if name not in COMPONENTS:
            near = difflib.get_close_matches(name, COMPONENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COMPONENTS)}"
            raise bad(f"costs.overrides.{name}: no such component; {hint}")
        if not 0 <= scenario.costs.overrides[name] < inf:
            value = scenario.costs.overrides[name]
            raise bad(f"costs.overrides.{name} = {value!r}: seconds, not below 0")
    for name in scenario.strategies:
        if name not in STRATEGIES:
            near = difflib.get_close_matches(name, STRATEGIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(STRATEGIES)}"
            raise bad(f"strategies: {name!r}: no such strategy; {hint}")
    policy_for(scenario, source)


def policy_for(scenario: s.Scenario, source: str = "scenario") -> Policy:
    """Return the state machine's policy: the file's knobs over what the scenario's times need.

    Raises:
        BadScenario: a knob that does not exist, or knobs that are unsafe together.
    """
    sweep_s = scenario.guard.sweep_s
    knobs: dict[str, Any] = {
        "prepare_deadline_s": 1800.0,  # a cold joiner initialises for minutes
        "commit_deadline_s": 3600.0,
        "warmup_deadline_s": 3600.0,
        "retry_cooldown_s": 30.0,
        # State that nobody holds and nobody saved is begun anew; a mere want of machines waits.
        "on_loss": ("standby", "cold", "wait", "restart"),
        "loss_wait_s": 10 * scenario.horizon_s,
        "sweep": {"deadline_s": 2 * sweep_s, "partner_needed": scenario.guard.pair},
    }
    given = dict(scenario.policy)
    if isinstance(given.get("sweep"), Mapping):
        given["sweep"] = {**knobs["sweep"], **given["sweep"]}
    try:
        return policy_of({**knobs, **given}, f"{source}: policy")
    except BadPolicy as error:
        words = str(error)
        raise BadScenario(words if source in words else f"{source}: {words}") from error

"""Which parts of a strategy are there, and what a switch costs with them: the seconds of a recipe.

A strategy is a row: switches, not code. The families `swap` run on the state machine itself
(`world`); the family `restart` is everything that existing systems do (`restarts`).
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from simulator.models import MODELS, Model
from simulator.scenario import Scenario

JIT_S: Final = 44.0
"""A first iteration once everything else is warm (TrainMover: 44 s, six times a normal one)."""


class Recipe(Struct, frozen=True, kw_only=True):
    """A strategy as its parts."""

    name: str
    family: str
    words: str
    standby: bool = True
    warmup: bool = True
    delta: bool = True
    direct: bool = True
    """State from a replica or the leaver, not from a checkpoint."""
    monitor: bool | None = None
    """Guard's monitor; None: as the scenario says."""
    sweep: bool | None = None
    reschedule: bool = True
    """restart: whether machines must be chosen and containers started."""
    process: bool = True
    """restart: whether processes start anew (connect and warm up as well as load)."""
    shrinks: bool = False
    """restart: goes on with one replica less until a machine is there."""
    lose: str = ""
    add: str = ""
    """restart: names of lumps of the cost model for losing and adding a machine."""
    rolls_back: bool = True


def _swap(name: str, words: str) -> Recipe:
    return Recipe(name=name, family="swap", words=words, rolls_back=False)


STRATEGIES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="checkpoint-restart",
            family="restart",
            words="tear down, choose machines, load the last checkpoint",
            standby=False,
        ),
        Recipe(
            name="hot-spares",
            family="restart",
            words="the same, with machines at hand: no rescheduling",
            reschedule=False,
        ),
        Recipe(
            name="in-process",
            family="restart",
            words="processes stay; communicators and state anew, from a peer's memory",
            reschedule=False,
            process=False,
            rolls_back=False,
        ),
        Recipe(
            name="drop-replica",
            family="restart",
            words="go on with one replica less until a machine is there",
            standby=False,
            process=False,
            shrinks=True,
            rolls_back=False,
        ),
        Recipe(
            name="oobleck",
            family="restart",
            words="reconfigure pipelines from templates (Oobleck)",
            standby=False,
            shrinks=True,
            lose="oobleck_lose_s",
            add="oobleck_add_s",
            rolls_back=False,
        ),
        Recipe(
            name="parcae",
            family="restart",
            words="reconfigure by live migration (Parcae)",
            standby=False,
            shrinks=True,
            lose="parcae_lose_s",
            add="parcae_add_s",
            rolls_back=False,
        ),
        _swap("standby-swap", "a warm standby takes the slot by a delta (Changeover, TrainMover)"),
        replace(
            _swap("swap-no-standby", "the same without a standby: its parts overlap"), standby=False
        ),
        replace(_swap("swap-no-warmup", "a standby that has rehearsed nothing"), warmup=False),
        replace(_swap("swap-no-delta", "a warm standby; all communicators anew"), delta=False),
        replace(_swap("swap-no-direct", "a warm standby; state from a checkpoint"), direct=False),
        replace(_swap("swap-migration", "only the direct transfer"), warmup=False, delta=False),
        replace(
            _swap("standby-swap-guard", "with monitor and sweeps (Guard)"), monitor=True, sweep=True
        ),
        replace(
            _swap("standby-swap-monitor", "with the monitor, without sweeps"),
            monitor=True,
            sweep=False,
        ),
        replace(
            _swap("standby-swap-sweep", "with sweeps of what was lost, without the monitor"),
            monitor=False,
            sweep=True,
        ),
        replace(_swap("standby-swap-blind", "without Guard"), monitor=False, sweep=False),
    )
}

DEFAULT: Final = (
    "checkpoint-restart",
    "hot-spares",
    "in-process",
    "drop-replica",
    "oobleck",
    "standby-swap-blind",
    "standby-swap-guard",
)
"""What `compare` compares when neither file nor command line says."""


class Costs(Struct, frozen=True, kw_only=True):
    """Seconds of one recipe at one scale."""

    pause_planned_s: float
    pause_unplanned_s: float
    pause_loading_s: float
    """The pause after a loss for which everybody loads a checkpoint, since nobody has the state."""
    cold_s: float
    prepare_s: float
    rehearse_s: float
    rehearse_next_s: float
    restart_s: float
    lose_s: float
    add_s: float
    infra_s: float
    detect_s: float


def costs_of(scenario: Scenario, recipe: Recipe) -> Costs:
    """What this recipe costs in this scenario."""
    model = MODELS[scenario.costs.model]
    given = scenario.costs.overrides
    gpus = scenario.ranks
    parts = {name: given.get(name, curve.at(gpus)) for name, curve in model.restart.items()}
    if scenario.job.load_gbps and "load_s" not in given:
        parts["load_s"] = scenario.job.state_gb_per_node / scenario.job.load_gbps
    infra_s = scenario.costs.infra_s if scenario.costs.infra else 0.0
    if "stop_s" in given or "reschedule_s" in given:
        infra_s = given.get("stop_s", 31.0) + given.get("reschedule_s", 90.0)
    restart_s = sum(parts.values()) if recipe.process else parts["connect_s"]
    lump = {name: curve.at(gpus) for name, curve in model.lumps.items()}
    return Costs(
        pause_planned_s=given.get(
            "planned_s", _pause(scenario, recipe, model, parts, model.planned.at(gpus))
        ),
        pause_unplanned_s=_pause(scenario, recipe, model, parts, model.unplanned.at(gpus)),
        pause_loading_s=_pause(
            scenario, replace(recipe, direct=False), model, parts, model.unplanned.at(gpus)
        ),
        cold_s=model.no_standby.at(gpus),
        prepare_s=given.get("prepare_s", parts["connect_s"]),
        rehearse_s=given.get("rehearse_s", model.rehearse_s),
        rehearse_next_s=given.get("rehearse_s", JIT_S),
        restart_s=restart_s,
        lose_s=lump.get(recipe.lose, restart_s),
        add_s=lump.get(recipe.add, restart_s),
        infra_s=infra_s,
        detect_s=given.get("detect_s", 0.0),
    )


def _pause(
    scenario: Scenario, recipe: Recipe, model: Model, parts: Mapping[str, float], whole_s: float
) -> float:
    """The pause of a prepared swap; each part that is off puts its own cost back.

    Fig 15 splits 16 s into 7 s of links, 6 s of state (123 - 51 - 66) and 3 s for the rest.
    """
    given = scenario.costs.overrides
    delta_s = whole_s * model.delta_share
    state_s, rest_s = whole_s * 6 / 16, whole_s * (1 - model.delta_share - 6 / 16)
    if scenario.job.transfer_gbps:
        state_s = scenario.job.state_gb_per_node / scenario.job.transfer_gbps
    state_s = given.get("transfer_s", state_s)
    delta_s = given.get("delta_s", delta_s)
    rest_s = given.get("first_step_s", rest_s)
    return (
        (delta_s if recipe.delta else parts["connect_s"])
        + (state_s if recipe.direct else parts["load_s"])
        + (rest_s if recipe.warmup else parts["warmup_s"])
    )

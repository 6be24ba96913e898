"""What a strategy must come to on paper: a renewal argument beside each simulation.

With losses of rate L per second (memoryless, of the whole job) and a downtime of D that a further
loss begins anew, a recovery takes (exp(L D) - 1) / L in the mean, so a job without roll-back is up
a share of exp(-L D) of the time. With checkpoints every t seconds of work it takes
exp(L D) (exp(L t) - 1) / L of wall time to do t of work (Daly). Planned stops and slow steps come
on top as shares of the time up. What shrinks stops twice per loss, to lose a machine and to take
one in, and runs with a replica less in between: L T / dp of its time up for T of running smaller.
Assumed: a machine is there when one is asked for, and standbys are
warm; where the simulation counts otherwise (cold starts, waits), the two part, rightly.
"""

from math import exp, expm1

from simulator.faults import hard_rate_s
from simulator.parts import Costs, Recipe, costs_of
from simulator.scenario import Scenario


def ettr(scenario: Scenario, recipe: Recipe) -> float | None:
    """The share of wall time that becomes work; None where the argument does not reach.

    It does not reach slow machines, bursts, common causes, traces and other distributions.
    """
    faults, grey = scenario.faults, scenario.grey
    if grey.per_1000_node_days or grey.initial_share or faults.burst_share or faults.trace:
        return None
    if faults.rack_per_1000_rack_days or faults.switch_per_1000_switch_days:
        return None
    if faults.distribution != "exponential":
        return None
    costs = costs_of(scenario, recipe)
    rate = hard_rate_s(scenario) * scenario.slots
    detect_s = costs.detect_s + sum(
        each.share * (each.detect_s + each.locate_s) for each in faults.classes
    )
    rolls_back = recipe.rolls_back
    if recipe.family == "swap":
        down_s = detect_s + (costs.pause_unplanned_s if recipe.standby else 0.0)
        if not recipe.standby:
            down_s += costs.infra_s + costs.cold_s
        pause_s = costs.pause_planned_s
        if scenario.job.axes.get("dp", 1) == 1:  # nobody else holds what a lost slot held
            down_s = detect_s + costs.pause_loading_s
            if not recipe.standby:
                down_s += costs.infra_s + max(0.0, costs.cold_s - costs.pause_unplanned_s)
            rolls_back = True
    else:
        infra_s = costs.infra_s if recipe.reschedule else 0.0
        down_s = detect_s + infra_s + costs.restart_s
        pause_s = infra_s + costs.restart_s
    if recipe.shrinks:
        return _shrinking(scenario, costs, rate, detect_s)
    interval_s = scenario.job.checkpoint_interval_s if rolls_back else scenario.job.step_s
    overhead = 1 + scenario.job.checkpoint_stall_s / scenario.job.checkpoint_interval_s
    stretched_s = interval_s * overhead  # wall time, while up, that one interval of work takes
    planned = rate * faults.planned_per_unplanned
    up = interval_s * rate / (exp(rate * down_s) * expm1(rate * stretched_s))
    return up / (1 + planned * pause_s)


def _shrinking(scenario: Scenario, costs: Costs, rate: float, detect_s: float) -> float:
    """The same for what goes on smaller; a planned stop is a loss without detection."""
    job, planned = scenario.job, scenario.faults.planned_per_unplanned
    losses = rate * (1 + planned)
    lose_s = costs.lose_s + detect_s / (1 + planned)
    overhead = 1 + job.checkpoint_stall_s / job.checkpoint_interval_s
    up = exp(-losses * lose_s) / (1 + losses * costs.add_s * exp(rate * costs.add_s))
    smaller_s = costs.infra_s + costs.rehearse_s
    replicas = max(1, job.axes.get("dp", 1))
    step = job.step_s * rate / expm1(job.step_s * overhead * rate)
    return up * (1 - losses * smaller_s / replicas) * step

"""Where the time went: wall time of the job split by what it was used for, and work done.

Work is measured in seconds that a healthy job would need for it. `lost_s` is work that was done
and thrown away. Every second of wall time is in exactly one of the columns.
"""

from collections.abc import Mapping
from math import inf

from msgspec import Struct

from simulator.scenario import Scenario


class Totals(Struct, kw_only=True):
    """Sums over a run; times in seconds of the whole job, `idle_node_s` of single machines."""

    wall_s: float = 0.0
    work_s: float = 0.0
    """Work that counts: done and not thrown away."""
    running_s: float = 0.0
    slow_s: float = 0.0
    """Time lost while running, to slow machines, checkpoints and missing replicas."""
    down_s: float = 0.0
    planned_s: float = 0.0
    lost_s: float = 0.0
    idle_node_s: float = 0.0
    human_h: float = 0.0
    losses: int = 0
    planned: int = 0
    grey: int = 0
    caught: int = 0
    false_swaps: int = 0
    cold: int = 0
    waited: int = 0
    """Losses for which no machine was free at once."""
    chosen: int = 0
    """Times that machines had to be chosen while the job stood still."""
    preempted: int = 0
    sweeps: int = 0
    restored: int = 0
    """Times that the job went back to a checkpoint, since nobody held some of its state."""
    downtimes_s: list[float] = []
    lost_at_s: list[float] = []
    """When the job lost a machine."""

    def ettr(self) -> float:
        """Share of wall time that became work that counts."""
        return self.work_s / self.wall_s if self.wall_s else 0.0


class Meter:
    """Splits the wall time of one run."""

    def __init__(self, scenario: Scenario) -> None:
        job = scenario.job
        self.totals = Totals()
        self.speed = 1.0
        self.idle = 0
        self.state = "running"
        self.finished = False
        self._target_s = job.work_days * 86_400.0 or inf
        self._now_s = 0.0
        self._work_s = 0.0
        self._step_s = job.step_s
        self._down_since_s = 0.0
        self._overhead = 1 + job.checkpoint_stall_s / job.checkpoint_interval_s

    def advance(self, now_s: float) -> bool:
        """Account for the time until now, or until the work is done; tell whether to go on."""
        if self.finished:
            return False
        passed_s = now_s - self._now_s
        if self.state == "running":
            left_s = (self._target_s - self._work_s) * self._overhead / self.speed
            self.finished = left_s <= passed_s
            passed_s = min(left_s, passed_s)
        self._now_s += passed_s
        totals = self.totals
        totals.wall_s += passed_s
        totals.idle_node_s += passed_s * self.idle
        if self.state == "running":
            done_s = passed_s * self.speed / self._overhead
            self._work_s += done_s
            totals.running_s += passed_s
            totals.slow_s += passed_s - done_s
        elif self.state == "planned":
            totals.planned_s += passed_s
        else:
            totals.down_s += passed_s
        return not self.finished

    def stop(self, state: str) -> None:
        """The job stands still from now on: ``down`` or ``planned``."""
        if self.state == "running":
            self._down_since_s = self._now_s
        self.state = state

    def resume(self) -> None:
        """The job runs again."""
        if self.state != "running":
            self.totals.downtimes_s.append(self._now_s - self._down_since_s)
        self.state = "running"

    def roll_back(self, to_multiple_s: float) -> None:
        """Throw away the work since the last multiple of an interval of work."""
        lost_s = self._work_s % to_multiple_s
        self._work_s -= lost_s
        self.totals.lost_s += lost_s

    @property
    def step(self) -> int:
        """The last step that is done; -1: none."""
        return int(self._work_s / self._step_s + 1e-9) - 1

    def saved_step(self, interval_s: float) -> int:
        """The last step that is in a checkpoint; -1: none."""
        return int(self._work_s // interval_s * interval_s / self._step_s + 1e-9) - 1

    def to_boundary_s(self, interval_s: float = 0.0) -> float:
        """Wall time until the next multiple of an interval of work (a step, by default)."""
        interval_s = interval_s or self._step_s
        left_s = interval_s - self._work_s % interval_s
        return left_s / (self.speed / self._overhead)

    def close(self) -> Totals:
        """Return the sums."""
        self.totals.work_s = self._work_s
        return self.totals


def pace(slow: Mapping[int, float], axes: Mapping[str, int], per_node: int, micro: int) -> float:
    """Speed of a job (1: healthy) whose slots have these factors of work.

    A pipeline of p stages and m microbatches takes (m - 1) times its slowest stage plus one pass
    through all. Ranks of a stage exchange in every layer (tensors, contexts, experts), so a stage
    is as slow as its slowest machine; replicas (`dp`) meet at the end of the step only, and wait
    for the slowest pipeline.
    """
    if not slow:
        return 1.0
    stages = axes.get("pp", 1)
    worst = 1.0
    for factors in _pipelines(slow, axes, per_node).values():
        total = (micro - 1) * max(factors.values()) + stages + sum(f - 1 for f in factors.values())
        worst = max(worst, total / (micro - 1 + stages))
    return 1 / worst


def _pipelines(
    slow: Mapping[int, float], axes: Mapping[str, int], per_node: int
) -> dict[int, dict[int, float]]:
    """Replica -> stage -> factor, of stages with a slow machine."""
    found: dict[int, dict[int, float]] = {}
    for slot, factor in slow.items():
        rest, at = slot * per_node, {}
        for name in reversed(list(axes)):
            rest, at[name] = divmod(rest, axes[name])
        stages = found.setdefault(at.get("dp", 0), {})
        stage = at.get("pp", 0)
        stages[stage] = max(stages.get(stage, 1.0), factor)
    return found

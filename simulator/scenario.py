"""What a scenario file may say: one frozen record per table of the TOML, units in the names.

What belongs here: shapes, defaults and where each default comes from. Reading a file, and what is
refused, is `scenario_file`. The defaults are a fleet as published, not one that anybody measured
here: `simctl calibrate` replaces what a log knows.
"""

from typing import Any

from msgspec import Struct, field


class FleetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines. `nodes` is slots + standbys + spares unless it is given."""

    gpus_per_node: int = 8
    standbys: int = 1
    """Warm machines that belong to the job (TrainMover: one)."""
    spares: int | None = None
    """Cold machines that a provisioner can give; by default 6 % of the slots (Alibaba HPN)."""
    nodes: int = 0
    refill: bool = True
    """Restarts: whether a used standby is replaced from the spares at once, or (AIReSim) only by a
    repaired machine or when machines are chosen anyway. Swaps: the rules order machines."""
    borrowed: int = 0
    """Restarts: the last machines of the fleet, which run other work and are preempted first."""
    preempt_s: float = 1200.0
    """Time that preempting one of them takes (AIReSim)."""
    rack_nodes: int = 16
    switch_nodes: int = 128


class JobTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job: ordered axes with sizes, its step, its state and its checkpoints."""

    axes: dict[str, int] = field(default_factory=lambda: {"pp": 8, "dp": 16, "tp": 8})
    step_s: float = 10.0
    """Guard's healthy step."""
    microbatches: int = 16
    state_gb_per_node: float = 64.0
    transfer_gbps: float = 0.0
    """Giga*bytes* per second from a replica or leaver, per node; 0: as the cost model says."""
    load_gbps: float = 0.0
    """Giga*bytes* per second from checkpoint storage, per node; 0: as the cost model says."""
    work_days: float = 0.0
    """End when this much work is done, at `days` at the latest; 0: go on for `days`."""
    checkpoint_interval_s: float = 1800.0
    checkpoint_stall_s: float = 0.6
    """ByteCheckpoint: a stall of 0.59 s at 8,960 GPUs."""


class ClassTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class of hard fault: its share, and how long it takes to see and to place."""

    name: str
    share: float
    detect_s: float = 0.0
    locate_s: float = 0.0
    evidence: str = "exit"
    """What the fleet sees first: ``exit``, ``reset`` or ``lease``."""


class FaultsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hard faults of machines, alone and together. Rates count machines, not ranks."""

    per_1000_node_days: float = 6.5
    """Meta RSC-1, which TrainMover's projection takes."""
    distribution: str = "exponential"
    shape: float = 1.0
    """Of the Weibull distribution of one machine's gaps; below 1 they cluster."""
    lemon_share: float = 0.0
    lemon_factor: float = 5.0
    burst_share: float = 0.0
    """Share of faults that come in bursts of `burst_size` within `burst_window_s`."""
    burst_size: int = 4
    burst_window_s: float = 3600.0
    rack_per_1000_rack_days: float = 0.0
    switch_per_1000_switch_days: float = 0.0
    planned_per_unplanned: float = 47 / 419
    """Maintenance drains per hard fault (Llama 3: 47 to 419)."""
    maintenance_h: float = 4.0
    while_down: bool = True
    """Whether machines of a job that stands still fail as well; not so in AIReSim."""
    trace: str = ""
    """A trace that `simctl import` wrote: its faults instead of drawn ones, cyclically."""
    classes: tuple[ClassTable, ...] = (ClassTable(name="any", share=1.0),)


class RepairTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a machine is away, and whether it comes back cured."""

    kind: str = "two_branch"
    """``fixed``, ``exponential``, ``lognormal``, ``two_branch`` or ``resample``."""
    mean_h: float = 24.0
    log_mean: float = 2.71
    log_sigma: float = 2.52
    max_h: float = 3143.0
    auto_h: float = 2.0
    manual_h: float = 48.0
    manual_share: float = 0.8
    manual_after_auto: bool = False
    """Whether a manual repair begins with an automatic one that did not help (AIReSim)."""
    auto_silent: float = 0.4
    """Automatic repairs that leave the fault where it was (AIReSim)."""
    manual_silent: float = 0.2
    unfound_cures: bool = True
    """Whether a repair can cure what no sweep has shown; if not, what passes stays as it was."""
    samples_h: tuple[float, ...] = ()
    trace: str = ""
    """A trace whose repair times are resampled."""


class GreyTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines that turn slow and stay alive."""

    per_1000_node_days: float = 0.0
    severities: tuple[float, ...] = (1.034, 1.10, 1.20)
    """Factors of work: NIC reroute, MegaScale's machines, CPU or heat (Guard, Greyhound)."""
    weights: tuple[float, ...] = (0.3, 0.5, 0.2)
    initial_share: float = 0.0
    """Machines that are slow from the start."""
    of_lemons: float = 0.0
    """Share of the lemons that are slow as well."""
    duration_h: float = 0.0
    """Mean time after which it ends by itself; 0: it stays until repaired."""
    noise: float = 0.025


class GuardTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Guard's parts. Error rates are per examination: Guard's Table 3."""

    monitor: bool = False
    sweep: bool = False
    triage: bool = True
    """With sweeps, whether a machine that was lost is swept before it comes back."""
    pair: bool = True
    """Whether the sweep has a round with a partner, which sees links and copies as well."""
    solo_sees: float = 0.4
    """Share of defects that a sweep of the node alone can show (SuperBench: most are links)."""
    false_pass: float = 0.078
    false_fail: float = 0.124
    sweep_s: float = 5400.0
    window_s: float = 30.0
    peers: int = 8
    false_alarms_per_1000_node_days: float = 0.0


class CostTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cost model, and what of it is replaced."""

    model: str = "trainmover-fig8"
    infra: bool = True
    """Whether stop, clean-up and rescheduling count (the paper's +2 min; the blog's do not)."""
    infra_s: float = 121.0
    overrides: dict[str, float] = field(default_factory=dict)
    """Seconds by component, such as ``switch_s = 3.2``; what `calibrate` writes."""


class HumanTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operator time, in hours, and what a GPU-hour costs."""

    per_manual_repair_h: float = 1.0
    per_unlocated_h: float = 0.5
    per_sweep_failed_h: float = 0.1
    gpu_hour_usd: float = 3.65


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scenario."""

    name: str = "scenario"
    days: float = 7.0
    seed: int = 0
    replications: int = 10
    strategies: tuple[str, ...] = ()
    fleet: FleetTable = field(default_factory=FleetTable)
    job: JobTable = field(default_factory=JobTable)
    faults: FaultsTable = field(default_factory=FaultsTable)
    repair: RepairTable = field(default_factory=RepairTable)
    grey: GreyTable = field(default_factory=GreyTable)
    guard: GuardTable = field(default_factory=GuardTable)
    costs: CostTable = field(default_factory=CostTable)
    human: HumanTable = field(default_factory=HumanTable)
    policy: dict[str, Any] = field(default_factory=dict)
    """Knobs of the state machine's own policy."""

    @property
    def ranks(self) -> int:
        """GPUs that hold a rank."""
        product = 1
        for size in self.job.axes.values():
            product *= size
        return product

    @property
    def slots(self) -> int:
        """Machines that hold a slot."""
        return self.ranks // self.fleet.gpus_per_node

    @property
    def machines(self) -> int:
        """All machines there are."""
        spares = self.fleet.spares
        if spares is None:
            spares = max(8, round(0.06 * self.slots))
        return self.fleet.nodes or self.slots + self.fleet.standbys + spares

    @property
    def horizon_s(self) -> float:
        """Length of a run in seconds."""
        return self.days * 86_400.0

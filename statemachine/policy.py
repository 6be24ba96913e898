"""All knobs, frozen, with units; validated once, when they are loaded.

The lattice of timeouts is one literal list of inequalities: an unsafe set is refused with the
inequality that fails and its numbers. A policy is a value: the event `PolicyChanged` carries the
knobs that differ from the defaults, so that a log is complete without any configuration file.
"""

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from statemachine.detector import DetectorPolicy
from statemachine.errors import BadPolicy
from statemachine.sweep import SweepPolicy


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every tunable of the state machine and its shells. Durations in seconds."""

    store_try_s: float = 1.0
    """Deadline of one try of one call to the store."""
    renew_interval_s: float = 3.0
    """How often a lease is renewed."""
    self_fence_s: float = 8.0
    """Age of the last successful renewal (from its send) at which a node acts as dead."""
    lease_ttl_s: float = 10.0
    """Life of a lease without renewal."""
    loss_grace_s: float = 1.0
    """How long a node whose lease ended may take to come back before that is evidence of a loss."""
    takeover_grace_s: float = 5.0
    """The same at a takeover, when the store may have been away from everybody."""
    wait_floor_s: float = 1.0
    """A step is never overdue before this: no peer is asked whether it still runs."""
    wait_steps: float = 10.0
    """Multiple of the usual step time after which a step is overdue."""
    silence_s: float = 2.0
    """How long a peer that is waited for may leave questions unanswered before it is reported."""
    silence_deadline_s: float = 1.0
    """How long after that report it may still answer before it counts as lost."""
    hang_deadline_s: float = 600.0
    """How long members may wait in a collective while nothing moves: then all are told to park, and
    whoever does not, although its process runs, is killed. Longer than anything that one rank does
    while the others wait for it, such as an evaluation or a checkpoint."""
    abort_deadline_s: float = 5.0
    """How long a worker may take to leave an aborted collective before it is killed."""
    prepare_deadline_s: float = 30.0
    """How long phase one of a transition may take."""
    commit_deadline_s: float = 60.0
    """How long phase two of a transition may take."""
    warmup_deadline_s: float = 300.0
    """How long a rehearsal may take."""
    warmup_memory_mib: int = 0
    """Resident memory of a training process at which its rehearsal is given up; 0: never."""

    launch_patience_s: float = 30.0
    """How long a launch with every slot filled waits for the standbys that the job asked for."""
    retry_cooldown_s: float = 5.0
    """Pause after an aborted planned transition, a failed warm-up or a sweep that did not pass."""
    sweep_tries_max: int = 10
    """Sweeps in a row that a node may not pass; with the last of them it is retired."""
    sweep_retry_s_max: float = 3600.0
    """The pause after a sweep doubles with each one in a row that is not passed, up to this."""
    on_loss: tuple[str, ...] = ("standby", "cold", "wait")
    """What is tried when a slot is lost, in this order; see `ON_LOSS`."""
    loss_wait_s: float = 600.0
    """How long ``wait`` waits for a node if something follows it in `on_loss`."""
    replicas_min: int = 1
    """Data-parallel replicas below which a job is never shrunk."""

    harmful_nodes_max: int = 2
    """Planned evictions and quarantines allowed per window, at least."""
    harmful_share_max: float = 0.05
    """Planned evictions and quarantines allowed per window as a share of the fleet."""
    harmful_window_s: float = 3600.0
    """Length of the sliding window of both budgets."""
    shadow: bool = False
    """Record what would be done about health verdicts, and do nothing."""
    sweep_partner_active: bool = True
    """Whether a node in duty may serve as sweep partner when no standby is free."""

    detector: DetectorPolicy = field(default_factory=DetectorPolicy)
    sweep: SweepPolicy = field(default_factory=SweepPolicy)

    def __post_init__(self) -> None:
        """Refuse knobs out of range and timeouts that are unsafe together."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name.endswith("_s") and not value > 0:
                raise BadPolicy(f"policy.{name} = {value}: must be above 0 seconds")
        if not 0 <= self.harmful_share_max <= 1:
            raise BadPolicy(
                f"policy.harmful_share_max = {self.harmful_share_max}: must be from 0 to 1"
            )
        if self.harmful_nodes_max < 0:
            raise BadPolicy(f"policy.harmful_nodes_max = {self.harmful_nodes_max}: must be >= 0")
        if self.warmup_memory_mib < 0:
            raise BadPolicy(f"policy.warmup_memory_mib = {self.warmup_memory_mib}: must be >= 0")
        if self.sweep_tries_max < 1:
            raise BadPolicy(f"policy.sweep_tries_max = {self.sweep_tries_max}: must be >= 1")
        if self.replicas_min < 1:
            raise BadPolicy(f"policy.replicas_min = {self.replicas_min}: must be >= 1")
        if len(set(self.on_loss)) < len(self.on_loss) or not set(self.on_loss) <= set(ON_LOSS):
            allowed = ", ".join(ON_LOSS)
            raise BadPolicy(f"policy.on_loss = {self.on_loss}: each at most once of {allowed}")
        for smaller, larger in LATTICE:
            if not getattr(self, smaller) < getattr(self, larger):
                raise BadPolicy(
                    f"policy.{smaller} < policy.{larger} does not hold: "
                    f"{getattr(self, smaller)} s against {getattr(self, larger)} s"
                )

    def sweep_pause_s(self, failures: int) -> float:
        """Pause in seconds after so many sweeps in a row that were not passed."""
        return min(self.sweep_retry_s_max, self.retry_cooldown_s * 2.0 ** min(failures - 1, 32))


ON_LOSS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "standby": "a warm standby takes the slot",
        "cold": "a ready node that has not rehearsed takes the slot",
        "shrink": "the job goes on without the data-parallel replica that the slot is part of",
        "wait": "the job waits, parked, until a node is ready",
        "restart": "the job is launched anew from its last checkpoint",
    }
)
"""What may be done about a slot that was lost; where the list of a policy ends, the job waits."""


LATTICE: Final[tuple[tuple[str, str], ...]] = (
    ("store_try_s", "renew_interval_s"),
    ("renew_interval_s", "self_fence_s"),
    ("self_fence_s", "lease_ttl_s"),
    ("silence_s", "hang_deadline_s"),
    ("loss_grace_s", "takeover_grace_s"),
    ("takeover_grace_s", "prepare_deadline_s"),
    ("abort_deadline_s", "prepare_deadline_s"),
    ("lease_ttl_s", "prepare_deadline_s"),
    ("prepare_deadline_s", "commit_deadline_s"),
    ("prepare_deadline_s", "warmup_deadline_s"),
)
"""(smaller, larger) pairs. A node must fence itself before the store forgets it, and be forgotten
before a transition that waits for it gives up."""


_INNER: Final[Mapping[str, type[Struct]]] = {"detector": DetectorPolicy, "sweep": SweepPolicy}


def policy_of(knobs: Mapping[str, Any], source: str = "policy") -> Policy:
    """A policy from the knobs that differ from the defaults.

    Raises:
        BadPolicy: unknown knob (with the nearest known one), wrong type, or unsafe values.
    """
    _refuse_unknown(knobs, Policy, source)
    try:
        return msgspec.convert(dict(knobs), Policy)
    except msgspec.ValidationError as error:
        raise BadPolicy(f"{source}: {error}") from error


def knobs_of(policy: Policy) -> dict[str, Any]:
    """The knobs in which `policy` differs from the defaults; `policy_of` is the inverse."""
    knobs = msgspec.to_builtins(policy)
    return {name: value for name, value in knobs.items() if value != {}}


def _refuse_unknown(knobs: Mapping[str, Any], kind: type[Struct], source: str) -> None:
    for name, value in knobs.items():
        if name not in kind.__struct_fields__:
            near = difflib.get_close_matches(name, kind.__struct_fields__, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadPolicy(f"{source}.{name}: no such knob{hint}")
        inner = _INNER.get(name)
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown(value, inner, f"{source}.{name}")

"""What a node measures of itself per window, and the names and units of its metrics.

What belongs here: the shape of vitals, the summary of samples, the table that says which side of a
metric speaks against the node that reports it, bytes. No judgement (`detector`).

Vitals are never events: each window overwrites the one before it, under a lease. Times of a node's
own clock are kept for people and for durations; nobody compares them between nodes.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import fsum, isfinite
from types import MappingProxyType
from typing import Annotated, Final

from msgspec import Meta, MsgspecError, Struct, field, json

from statemachine.errors import BadName, CodecError
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot, check_name

WORK_MS: Final = "work_ms"
"""Own work per step, without waiting for anybody."""

WAIT_MS: Final = "wait_ms"
"""Waiting for peers per step; ``wait_ms.<group>`` is the share of one group."""

STEP_MS: Final = "step_ms"
"""Wall time per step, from boundary to boundary."""

CPU_MS: Final = "cpu_ms"
"""Processor time that the training process used per step for its own work."""

DATA_MS: Final = "data_ms"
"""Waiting for the data loader per step; part of `WORK_MS`."""

LINK_MBPS: Final = "link_mbps"
"""What arrived per second while it was arriving; ``link_mbps.<peer>`` came from one peer."""

SM_CLOCK_MHZ: Final = "sm_clock_mhz"
"""Clock of the devices' cores, the mean of all devices of the node."""

GPU_TEMP_C: Final = "gpu_temp_c"
"""Temperature of the hottest device."""

GPU_POWER_W: Final = "gpu_power_w"
"""Power drawn, the mean of all devices."""

GPU_UTIL: Final = "gpu_util_share"
"""Share of time in which a kernel ran, the mean of all devices, 0 to 1."""

THROTTLED: Final = "throttled_share"
"""Share of readings in which a device, or the processors, ran slower than they could."""

CPU_PRESSURE: Final = "cpu_pressure_share"
"""Share of time in which something on the node waited for a processor, 0 to 1."""

CPU_STEAL: Final = "cpu_steal_share"
"""Share of processor time that the machine below a virtual one took, 0 to 1."""

NIC_MBPS: Final = "nic_mbps"
"""Rate that a network port has negotiated, the least of all ports."""

NIC_ERRORS: Final = "nic_errors_per_s"
"""Retransmissions, drops and link errors of all ports."""

GROUP_PREPARE_MS: Final = "group_prepare_ms"
"""Making a group's next members ready, in the background; ``group_prepare_ms.<mechanism>``."""

GROUP_SWITCH_MS: Final = "group_switch_ms"
"""Putting them in force, at a step boundary; ``group_switch_ms.<mechanism>``."""

GROUP_ABORT_MS: Final = "group_abort_ms"
"""Breaking a group off until every peer was told; ``group_abort_ms.<mechanism>``."""

TRAINING: Final = "training"
"""The phase whose windows are compared; a window that saw another phase too is not of it."""


class Accuses(StrEnum):
    """Which side of its peers a metric must be on to speak against the node that reports it."""

    HIGH = "high"
    LOW = "low"
    NEVER = "never"


ACCUSES: Final[Mapping[str, Accuses]] = MappingProxyType(
    {
        WORK_MS: Accuses.HIGH,
        WAIT_MS: Accuses.LOW,  # whoever is waited for does not wait
        STEP_MS: Accuses.NEVER,  # all ranks take as long as the slowest: blind to who it is
        CPU_MS: Accuses.HIGH,
        DATA_MS: Accuses.HIGH,
        LINK_MBPS: Accuses.LOW,
        SM_CLOCK_MHZ: Accuses.LOW,
        GPU_TEMP_C: Accuses.HIGH,
        GPU_POWER_W: Accuses.LOW,
        GPU_UTIL: Accuses.LOW,
        THROTTLED: Accuses.HIGH,
        CPU_PRESSURE: Accuses.HIGH,
        CPU_STEAL: Accuses.HIGH,
        NIC_MBPS: Accuses.LOW,
        NIC_ERRORS: Accuses.HIGH,
        GROUP_PREPARE_MS: Accuses.NEVER,  # what a change of members costs says nothing of health
        GROUP_SWITCH_MS: Accuses.NEVER,
        GROUP_ABORT_MS: Accuses.NEVER,
    }
)
"""The table of metrics. A name that is not in it, such as one of a newer version, never accuses."""


def accuses(metric: str) -> Accuses:
    """Return which side of a metric is the bad one; ``wait_ms.dp[0]`` follows ``wait_ms``."""
    return ACCUSES.get(metric.partition(".")[0], Accuses.NEVER)


Count = Annotated[int, Meta(ge=0)]


class Metric(Struct, frozen=True, kw_only=True):
    """Summary of one metric over one window, in the unit that its name ends with.

    With a `count` of 0 nothing was measured and the other fields mean nothing.
    """

    count: Count
    mean: float
    p50: float
    p95: float


class Vitals(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One window of one node.

    `window` counts densely from 0 within an incarnation; `steps` were finished in it, the last of
    them `last_step` (-1: none yet); `blind` names what could not be read; `loss` is that of the
    last step, or None where there is none or it is not finite.
    """

    node: NodeId
    incarnation: Incarnation
    job: JobId
    slot: Slot
    role: Role
    epoch: Epoch
    window: Count
    started_at_ms: int
    ended_at_ms: int
    phase: str = TRAINING
    steps: Count = 0
    last_step: int = -1
    metrics: dict[str, Metric] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    loss: float | None = None

    def measured(self, metric: str) -> Metric | None:
        """Return a metric that was really measured in this window, else None."""
        found = self.metrics.get(metric)
        return found if found is not None and found.count > 0 and metric not in self.blind else None


def summarise(samples: Sequence[float]) -> Metric:
    """Summarise samples; those that are not finite are left out, and none at all gives count 0."""
    ordered = sorted(samples)
    if not isfinite(sum(ordered)):  # one of them is not, or all of them together
        ordered = sorted(filter(isfinite, samples))
    if not ordered:
        return Metric(count=0, mean=0.0, p50=0.0, p95=0.0)
    return Metric(
        count=len(ordered),
        mean=fsum(ordered) / len(ordered),
        p50=quantile(ordered, 0.50),
        p95=quantile(ordered, 0.95),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of ascending, non-empty values lie.

    Between two values it interpolates linearly.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    if below + 1 == len(ordered):
        return float(ordered[below])
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Return the median of non-empty values in any order."""
    return quantile(sorted(values), 0.5)


_ENCODER: Final = json.Encoder()
_DECODER: Final = json.Decoder(Vitals)


def encode_vitals(vitals: Vitals) -> bytes:
    """Encode one window, its metrics in the order given."""
    return _ENCODER.encode(vitals)


def decode_vitals(raw: bytes) -> Vitals:
    """Decode one window; unknown fields of a newer version are skipped.

    Raises:
        CodecError: the bytes are no vitals, or hold a name that may not be one.
    """
    try:
        vitals = _DECODER.decode(raw)
        check_name("node", vitals.node)
        check_name("job", vitals.job)
    except (MsgspecError, BadName) as error:
        raise CodecError(f"no vitals: {error}: {raw[:80]!r}") from error
    if vitals.ended_at_ms < vitals.started_at_ms:
        raise CodecError(f"vitals of {vitals.node}: window {vitals.window} ends before it starts")
    return vitals

"""What each thing costs in seconds, by scale; every number with where it was published.

Rule: no number without a source. A `Curve` is read linearly in log2 of the number of GPUs and held
at its ends; a model is a set of curves by component. `calibrate` replaces components by measured
ones through `costs.overrides`; whatever it does not replace stays assumed, and says so.
"""

from collections.abc import Mapping
from math import log2
from typing import Final

from msgspec import Struct, field

COMPONENTS: Final = (
    "stop_s",
    "reschedule_s",
    "load_s",
    "connect_s",
    "warmup_s",
    "delta_s",
    "transfer_s",
    "first_step_s",
    "detect_s",
    "rehearse_s",
    "planned_s",
    "prepare_s",
)
"""stop and clean-up; choosing machines; checkpoint load; all communicators anew; cold warm-up;
the delta of one swap; the state of one slot; the rest of a switch; detection; one role's rehearsal;
the whole pause of a planned swap, which is else the sum of delta, state and rest; the time beside
the run in which a planned swap is prepared.
"""


class Curve(Struct, frozen=True):
    """Seconds at numbers of GPUs, ascending."""

    points: tuple[tuple[int, float], ...]

    def at(self, gpus: int) -> float:
        """Seconds at a scale: linear in log2 between points, constant beyond them."""
        first, last = self.points[0], self.points[-1]
        if gpus <= first[0]:
            return first[1]
        for (low, before), (high, after) in zip(self.points, self.points[1:], strict=False):
            if gpus <= high:
                share = (log2(gpus) - log2(low)) / (log2(high) - log2(low))
                return before + share * (after - before)
        return last[1]


def flat(seconds: float) -> Curve:
    """The same at every scale."""
    return Curve(((1, seconds),))


class Model(Struct, frozen=True, kw_only=True):
    """One coherent set of costs."""

    name: str
    source: str
    restart: Mapping[str, Curve]
    """Components of a restart: load_s, connect_s, warmup_s; their sum is its downtime."""
    planned: Curve
    unplanned: Curve
    """Pause of a swap with everything prepared, planned and after a loss."""
    no_standby: Curve
    """Downtime when a machine starts cold, its parts overlapping."""
    delta_share: float = 0.42
    """Share of a prepared swap's pause that is the delta of its links (7 of 16.6 s, Fig 15)."""
    rehearse_s: float = 150.0
    notes: str = ""
    lumps: Mapping[str, Curve] = field(default_factory=dict)

    def restart_s(self, gpus: int) -> float:
        """Downtime of a restart without stop and rescheduling."""
        return sum(curve.at(gpus) for curve in self.restart.values())


def split(total: Curve, shares: Mapping[str, float]) -> dict[str, Curve]:
    """Split a total into components by constant shares."""
    return {
        name: Curve(tuple((gpus, seconds * share) for gpus, seconds in total.points))
        for name, share in shares.items()
    }


_TABLE1: Final = {"load_s": 94 / 267, "connect_s": 65 / 267, "warmup_s": 108 / 267}
_FIG15: Final = {"load_s": 104 / 221, "connect_s": 51 / 221, "warmup_s": 66 / 221}
_EXPECTED: Final = Curve(((32, 11.5), (128, 14.5), (256, 15.5), (512, 14.2), (1024, 16.6)))
_UNEXPECTED: Final = Curve(((32, 19.6), (128, 20.2), (256, 20.4), (512, 20.4), (1024, 21.1)))
_MEGATRON: Final = Curve(((32, 80.0), (128, 190.0), (256, 230.0), (512, 260.0), (1024, 300.0)))

MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        Model(
            name="trainmover-fig8",
            source="TrainMover (arXiv 2412.12636v3) Fig 8; split by Table 1; no-standby from Fig 9",
            restart=split(_MEGATRON, _TABLE1),
            planned=_EXPECTED,
            unplanned=_UNEXPECTED,
            no_standby=flat(217.0),
            notes="held at the 1,024-GPU values beyond, as the paper's projection does",
            lumps={
                "oobleck_lose_s": flat(57.0),
                "oobleck_add_s": flat(100.0),
                "parcae_lose_s": flat(21.0),
                "parcae_add_s": flat(200.0),
            },
        ),
        Model(
            name="trainmover-table1",
            source="TrainMover Table 1: a production restart at 8,192 GPUs",
            restart=split(flat(267.0), _TABLE1),
            planned=_EXPECTED,
            unplanned=_UNEXPECTED,
            no_standby=flat(217.0),
        ),
        Model(
            name="trainmover-fig15",
            source="TrainMover Fig 15: breakdown of a restart of the 5.12T MoE at 1,024 GPUs",
            restart=split(flat(221.0), _FIG15),
            planned=flat(16.0),
            unplanned=flat(21.1),
            no_standby=flat(123.0),
            delta_share=7 / 16,
        ),
        Model(
            name="byterobust",
            source="ByteRobust: requeue 454/545/635/768 s at 2,048 to 16,384 GPUs; standby 10.9x",
            restart=split(
                Curve(((2048, 454.0), (4096, 545.0), (8192, 635.0), (16384, 768.0))), _TABLE1
            ),
            planned=Curve(((2048, 46.0), (4096, 51.0), (8192, 54.0), (16384, 65.0))),
            unplanned=Curve(((2048, 41.7), (4096, 50.0), (8192, 58.3), (16384, 70.5))),
            no_standby=Curve(((2048, 454.0), (4096, 545.0), (8192, 635.0), (16384, 768.0))),
            notes="requeue includes stop and rescheduling: set costs.infra = false",
        ),
        Model(
            name="ft-hsdp",
            source="FT-HSDP: cold start 200/300/600/900 s at 16K/22K/64K/98K GPUs",
            restart=split(
                Curve(((16384, 200.0), (22528, 300.0), (65536, 600.0), (100352, 900.0))), _TABLE1
            ),
            planned=_EXPECTED,
            unplanned=_UNEXPECTED,
            no_standby=flat(217.0),
        ),
        Model(
            name="airesim",
            source="AIReSim (arXiv 2603.07041): recovery 20 min, host selection 3 min",
            restart={"load_s": flat(1200.0), "connect_s": flat(0.0), "warmup_s": flat(0.0)},
            planned=_EXPECTED,
            unplanned=_UNEXPECTED,
            no_standby=flat(1200.0),
            notes="set costs.infra_s = 180 for host selection",
        ),
    )
}

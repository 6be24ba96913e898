"""What a demo is asked to do, checked before anything is started.

What belongs here: the knobs, and which of them contradict each other. How they are spelled on the
command line is `controlplane.cli.demo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from controlplane.demo.greys import GREYS
from controlplane.demo.shape import peers_of
from statemachine.detector import DetectorPolicy
from statemachine.errors import UsageError
from statemachine.ids import NodeId

NODES_MAX: Final = 64
STEPS_MIN: Final = 20
STEPS_MAX: Final = 1_000_000
TRAIN_S: Final = 34.0
"""Seconds that a run takes at least if nobody says how many steps it has: about what it takes until
a killed node came back, and a grey one was found, swept twice and taken back."""
TEXT_BYTES_MIN: Final = 1024
SPARE_SHARE: Final = 3
"""How many times more steps a run may take than it shall, if nobody says how many it has."""
TRAIN_S_MAX: Final = 86_400.0
TRAINING: Final = ("--batch", "4")
"""Arguments of the training scripts, before those that somebody asks for."""
GREY_KINDS: Final = tuple(GREYS)
"""What may be slow of a grey node: all its work, moving memory, its links, or its input."""


class BadDemo(UsageError):
    """Knobs that contradict each other, or an input that is not there."""


class Faults(StrEnum):
    """Which nodes the demo hurts."""

    NONE = "none"
    KILL = "kill"
    GREY = "grey"
    BOTH = "both"

    @property
    def kills(self) -> bool:
        """Whether an active node is killed."""
        return self in (Faults.KILL, Faults.BOTH)

    @property
    def greys(self) -> bool:
        """Whether an active node is made slow."""
        return self in (Faults.GREY, Faults.BOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One demo. `run_dir` is a folder that must not exist; None numbers one below `runs`.

    `steps` of 0 are as many as this machine takes in `train_s` seconds, by its own measurement.
    A run without a given number may take `steps_spare` more: it is stopped once all is over that
    was to be seen, which takes longer on a machine that is busy with other things.
    `layout` are the job's axes, of which `nodes` is the product; empty: as many replicas as nodes.
    `training` are further arguments of the training scripts, such as ``--layers 2``.
    """

    nodes: int = 4
    layout: tuple[tuple[str, int], ...] = ()
    standbys: int = 1
    steps: int = 0
    steps_spare: int = 0
    train_s: float = TRAIN_S
    faults: Faults = Faults.BOTH
    grey_kind: str = GREY_KINDS[0]
    grey_factor: float | None = None
    """How many times as long what is slow takes; None: as the kind has it."""
    data: Path | None = None
    seed: int = 0
    etcd: str = ""
    etcd_port: int = 0
    keep: bool = False
    baseline: bool = True
    training: tuple[str, ...] = ()
    run_dir: Path | None = None
    runs: Path = Path("runs")
    scenario: Path | None = None
    """A scenario of the simulator whose faults are injected instead of the demo's own two."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            BadDemo: says which knob, why, and what to ask for instead.
        """
        self._check_numbers()
        self._check_faults()
        if self.data is not None:
            check_data(self.data)
        if self.etcd and self.etcd_port:
            raise BadDemo(
                "--etcd and --etcd-port: the first names a server that runs already, the second "
                "the port of one to be started; give one of them"
            )

    def _check_numbers(self) -> None:
        for flag, value, least, most in (
            ("--nodes", self.nodes, 2, NODES_MAX),
            ("--standbys", self.standbys, 0, NODES_MAX),
            ("--steps", self.steps or STEPS_MIN, STEPS_MIN, STEPS_MAX),
        ):
            if not least <= value <= most:
                raise BadDemo(f"{flag} {value}: use {least} to {most}")
        if not 1 <= self.train_s <= TRAIN_S_MAX:
            raise BadDemo(f"--train-s {self.train_s:g}: use 1 to {TRAIN_S_MAX:g} seconds")

    def _check_faults(self) -> None:
        if self.faults is not Faults.NONE and self.standbys < 1:
            raise BadDemo(
                f"--faults {self.faults} with --standbys {self.standbys}: a node that leaves needs "
                "a standby to take its slot; use --standbys 1 or more, or --faults none"
            )
        if self.faults.kills and self.axes.get("dp", 1) < 2:
            raise BadDemo(
                f"--faults {self.faults} with --layout {self.layout_text}: what a killed node held "
                "comes from a replica; use dp=2 or more, or --faults none"
            )
        peers_min = DetectorPolicy().peers_min
        if self.faults.greys and self.layout and peers_of(self.axes) < peers_min:
            raise BadDemo(
                f"--faults {self.faults} with --layout {self.layout_text}: a grey node is found by "
                f"comparison with at least {peers_min} peers of its stage; use --faults kill"
            )
        if self.faults.greys and self.nodes <= peers_min:
            raise BadDemo(
                f"--faults {self.faults} with --nodes {self.nodes}: a grey node is found by "
                f"comparison with at least {peers_min} peers; use --nodes {peers_min + 1} or more, "
                "or --faults kill"
            )

    @property
    def axes(self) -> dict[str, int]:
        """The job's axes, outermost first."""
        return dict(self.layout) or {"dp": self.nodes}

    @property
    def layout_text(self) -> str:
        """The layout as on the command line."""
        return ",".join(f"{axis}={size}" for axis, size in self.axes.items())

    @property
    def steps_most(self) -> int:
        """How many steps a run can have."""
        return self.steps + self.steps_spare

    @property
    def active(self) -> tuple[NodeId, ...]:
        """Names of the nodes that hold the slots at the launch."""
        return tuple(NodeId(f"n{number}") for number in range(self.nodes))

    @property
    def everyone(self) -> tuple[NodeId, ...]:
        """Names of all nodes; the standbys come last."""
        return tuple(NodeId(f"n{number}") for number in range(self.nodes + self.standbys))


def faults_for(axes: dict[str, int]) -> Faults:
    """What is done to a run if nobody says: all that this shape allows."""
    if axes.get("dp", 1) < 2:
        return Faults.NONE
    return Faults.BOTH if peers_of(axes) >= DetectorPolicy().peers_min else Faults.KILL


def steps_for(train_s: float, step_ms: float) -> int:
    """How many steps of `step_ms` fill `train_s` seconds, rounded to tens."""
    return min(STEPS_MAX, max(STEPS_MIN, round(train_s * 100 / step_ms) * 10))


def check_data(path: Path) -> None:
    """Refuse a file or folder of text that cannot be trained on.

    Raises:
        BadDemo: it is missing, unreadable or empty.
    """
    try:
        if path.is_dir():
            sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
        else:
            sizes = [path.stat().st_size]
            path.open("rb").close()
    except FileNotFoundError:
        raise BadDemo(f"--data {path}: no such file or folder") from None
    except OSError as error:
        raise BadDemo(f"--data {path}: cannot be read ({error.strerror})") from error
    if sum(sizes) < TEXT_BYTES_MIN:
        raise BadDemo(
            f"--data {path}: {sum(sizes)} bytes are too little text to train on; name a file or "
            f"folder with at least {TEXT_BYTES_MIN}"
        )

"""What the installed torch and NCCL can do about a group whose members change.

What belongs here: looking, without a device and without making a group. What does not: deciding by
it (whoever makes backends), what a mechanism costs (`costs`, which measures it in the fleet).

Each capability is a name that torch has or has not, so a newer torch is told apart without a table
of versions; of NCCL only the version is known without a device, so its calls follow from the first
release whose header has them.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

_torch: Any = dist

SINCE: Final = {
    "abort": (2, 4, 0),
    "split": (2, 18, 0),
    "shrink": (2, 27, 3),
    "revoke": (2, 28, 7),
    "grow": (2, 29, 2),
    "suspend": (2, 29, 7),
}
"""First NCCL whose header has each call."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What is there. `nccl_calls` are those of NCCL itself, whether or not torch passes them on;
    the other fields are what torch offers.
    """

    torch_version: str
    gloo: bool
    nccl: bool
    nccl_version: tuple[int, ...]
    nccl_calls: tuple[str, ...]
    nccl_abort: bool
    shrink: bool
    grow: bool
    split: bool
    reconfigure: bool

    def __str__(self) -> str:
        """One line, for a log."""
        found = asdict(self)
        words = [name for name, value in found.items() if value is True]
        nccl = ".".join(str(part) for part in self.nccl_version) or "none"
        return f"torch {self.torch_version}, NCCL {nccl}: {', '.join(words)}"


def calls_of(version: tuple[int, ...]) -> tuple[str, ...]:
    """Calls about changing communicators that an NCCL of this version has."""
    return tuple(name for name, since in SINCE.items() if version and version >= since)


def probe() -> Installed:
    """Look at the installed torch; asks nothing of a device."""
    group, nccl = _torch.ProcessGroup, getattr(_torch, "ProcessGroupNCCL", None)
    version = _nccl_version()
    return Installed(
        torch_version=str(torch.__version__),
        gloo=bool(dist.is_gloo_available()),
        nccl=bool(dist.is_nccl_available()) and nccl is not None,
        nccl_version=version,
        nccl_calls=calls_of(version),
        nccl_abort=hasattr(nccl, "abort"),
        shrink=hasattr(dist, "shrink_group"),
        grow=hasattr(dist, "grow_group") or hasattr(group, "grow"),
        split=hasattr(group, "split_group"),
        reconfigure=hasattr(group, "reconfigure"),
    )


def _nccl_version() -> tuple[int, ...]:
    if not dist.is_nccl_available():
        return ()
    from torch.cuda import nccl

    found: Any = nccl.version()
    return tuple(int(part) for part in found[:3])

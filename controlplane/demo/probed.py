"""What links between two nodes of this machine carry while it is idle: a sweep is judged by it.

What belongs here: running a probe against its other half, as two agents would, and putting the
numbers where a policy ships what is usual. A demo's fleet has certified nobody yet when its first
node is swept; of computing and memory its partner tells what is usual, of a link nobody does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from controlplane.localfleet.children import Child
from controlplane.localfleet.fleet import FleetError

BUDGET_S: Final = 0.5
"""Seconds of measuring that each of the two probes gets."""

_START_S: Final = 30.0
_GRACE_S: Final = 1.0
_LOOK_S: Final = 0.02
_HARDWARE: Final = "cpu"
_PROBES: Final = [sys.executable, "-m", "worker.probes"]


async def link_baseline(folder: Path) -> dict[str, float]:
    """Measure a link of this machine.

    Raises:
        FleetError: a probe did not start, or measured nothing.
    """
    echo = Child.started("echo", [*_PROBES, "--probe", "echo"], folder / "echo.log")
    try:
        port = (await _printed(echo))["port"]
        command = [*_PROBES, "--probe", "link", "--probe", "collective", "--json"]
        command += ["--budget-s", f"{BUDGET_S:g}", "--port", f"{port:.0f}"]
        link = Child.started("link", command, folder / "link.log")
        try:
            return await _printed(link)
        finally:
            await link.stop(_GRACE_S)
    finally:
        with anyio.CancelScope(shield=True):
            await echo.stop(_GRACE_S)


async def _printed(child: Child) -> dict[str, float]:
    """The object of numbers that a probe prints."""
    with anyio.move_on_after(_START_S):
        while True:
            ended = child.exit_code is not None
            written = child.log_path.read_bytes().strip().rpartition(b"\n")[2]
            try:
                return msgspec.json.decode(written, type=dict[str, float])
            except msgspec.MsgspecError:
                if ended:
                    break
            await anyio.sleep(_LOOK_S)
    raise FleetError(f"the {child.name} probe measured nothing: {child.last_words()}")


def with_links(knobs: Mapping[str, Any], measured: Mapping[str, float]) -> dict[str, Any]:
    """A policy's knobs that ship what is usual of links, measured before anything else ran here: so
    only what is several times as slow is sure to be the node's.
    """
    shipped = {_HARDWARE: dict(measured)}
    return {**knobs, "sweep": {**knobs["sweep"], **_TOLERANT, "baselines": shipped}}


_TOLERANT: Final = {"link_tolerance": 4.0, "latency_tolerance": 4.0}

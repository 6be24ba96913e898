"""Slurm: `scontrol update` to drain and resume, `sinfo` for what it says of a node.

Rules. Only what was drained with our mark in its reason is ever resumed: a node that an
administrator drained stays as it is. A state that we do not know is unknown.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.provision.port import Condition, NotOffered, Standing, ToolRefused
from controlplane.provision.running import run_tool

MARK: Final = "changeover: "
"""How the reasons begin that are ours."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SERVING: Final = ("idle", "allocated", "mixed", "completing", "reserved", "planned", "blocked")
_CORDONED: Final = ("draining", "drained", "drain", "maint", "maintenance")
_DOWN: Final = ("down", "fail", "failing", "error", "not_responding", "powered_down", "power_down")


class SlurmProvisioner:
    """Speaks to Slurm through its own tools; `scontrol` and `sinfo` may be paths."""

    def __init__(self, scontrol: str = "scontrol", sinfo: str = "sinfo") -> None:
        self._scontrol = scontrol
        self._sinfo = sinfo

    async def cordon(self, machine: str, reason: str) -> None:
        """Drain a node with our reason, unless somebody else has drained it already."""
        before = await self.condition(machine)
        if before.standing is Standing.CORDONED:
            return
        if before.standing is Standing.UNKNOWN:
            raise ToolRefused(f"sinfo says of {machine} {before.words!r}: it is not drained")
        flat = " ".join(reason.split())[:200]
        await self._update(machine, "State=DRAIN", f"Reason={MARK}{flat}")

    async def uncordon(self, machine: str) -> None:
        """Resume a node, if it was drained by us."""
        before = await self.condition(machine)
        if before.standing is not Standing.CORDONED:
            return
        if MARK.strip() not in before.words:
            raise ToolRefused(f"{machine} was drained by somebody else: {before.words}")
        await self._update(machine, "State=RESUME")

    async def condition(self, machine: str) -> Condition:
        """What `sinfo` says of a node: its state, and the reason beside it."""
        name = _checked(machine)
        said = await run_tool([self._sinfo, "--noheader", "--Node", "--nodes", name, "-o", "%T|%E"])
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if not lines:
            raise ToolRefused(f"sinfo knows no node {machine}")
        state, _, reason = lines[0].partition("|")
        return Condition(standing=_standing(state), words=f"{state}: {reason}".strip(": "))

    async def request(self, count: int, reason: str) -> None:
        """Slurm gives machines to jobs, not to us."""
        raise NotOffered(
            f"Slurm is not asked for {count} machines: start agents in a job of theirs"
        )

    async def _update(self, machine: str, *settings: str) -> None:
        await run_tool([self._scontrol, "update", f"NodeName={_checked(machine)}", *settings])


def _checked(machine: str) -> str:
    """A name that `scontrol` cannot take for a range or an option."""
    if not _NAME.match(machine):
        raise ToolRefused(f"{machine!r} is no name of a Slurm node")
    return machine


def _standing(state: str) -> Standing:
    """From Slurm's word, whose marks (``*~#!%$@^-+``) say more about power than about service.

    A node that is drained stays somebody's, whether it answers or not.
    """
    word, *flags = state.lower().rstrip("*~#!%$@^-").split("+")
    words = (word, *flags)
    if any(each in _CORDONED for each in words):
        return Standing.CORDONED
    if any(each in _DOWN for each in words) or state.endswith("*"):
        return Standing.DOWN
    return Standing.IN_SERVICE if word in _SERVING else Standing.UNKNOWN

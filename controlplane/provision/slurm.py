"""Slurm: `scontrol update` to drain and resume, `sinfo` for what it says of a node.

Rules. Only a drain whose reason begins with our mark is ever taken back, and only the drain: a node
that somebody else drained, or set down, stays as it is. A state that we do not know is unknown.
"""

from __future__ import annotations

import os
import re
from typing import Final

from controlplane.provision.port import Condition, NotOffered, Standing, ToolRefused
from controlplane.provision.running import run_tool

CONFIGURED_BY: Final = "SLURM_CONF"
"""Where a site says that its slurm.conf is elsewhere; its tools find no controller without it."""

MARK: Final = "changeover: "
"""How the reasons begin that are ours."""

REASON_CHARS_MAX: Final = 200
NO_REASON: Final = "none"
"""What `sinfo` prints where no reason is."""
NOT_RESPONDING: Final = "Not responding"
"""The reason that Slurm itself gives to a node that does not answer."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_BEFORE: Final = " (before: "
"""What stands in our reason before the one that we found; it ends with a parenthesis."""
_SERVING: Final = ("idle", "allocated", "mixed", "completing", "reserved", "planned", "blocked")
_CORDONED: Final = ("draining", "drained", "drain", "maint", "maintenance")
_DOWN: Final = ("down", "fail", "failing", "error", "not_responding", "powered_down", "power_down")


class SlurmProvisioner:
    """Speaks to Slurm through its own tools; `scontrol` and `sinfo` may be paths."""

    def __init__(self, scontrol: str = "scontrol", sinfo: str = "sinfo") -> None:
        self._scontrol = scontrol
        self._sinfo = sinfo

    async def cordon(self, machine: str, reason: str) -> None:
        """Drain a node with our reason, unless somebody has drained it already.

        A reason that stood there, of a node that is down, stands in ours: Slurm keeps only one.
        """
        standing, state, before = await self._look(machine)
        if standing is Standing.CORDONED:
            return
        if standing is Standing.UNKNOWN:
            raise ToolRefused(f"sinfo says of {machine} {_words(state, before)!r}: not drained")
        ours = MARK + " ".join(reason.split()).replace(_BEFORE, " (")[:REASON_CHARS_MAX]
        if theirs := _theirs(before):
            ours += f"{_BEFORE}{theirs})"
        await self._update(machine, "State=DRAIN", f"Reason={ours}")

    async def uncordon(self, machine: str) -> None:
        """Take our drain back.

        RESUME would also bring back a node that somebody had set down: that one gets UNDRAIN and
        stays down, with the reason that they gave, word for word. A node that Slurm took for lost
        needs RESUME: without its own words as the reason it stays down even when it answers again.
        """
        standing, state, reason = await self._look(machine)
        if standing is Standing.UNKNOWN:
            raise ToolRefused(f"sinfo says of {machine} {_words(state, reason)!r}: not resumed")
        if standing is not Standing.CORDONED:
            return
        if not reason.startswith(MARK.strip()):
            raise ToolRefused(f"{machine} was drained by somebody else: {_words(state, reason)}")
        theirs = _theirs(reason)
        if theirs in ("", NOT_RESPONDING):
            await self._update(machine, "State=RESUME")
        else:
            await self._update(machine, "State=UNDRAIN", f"Reason={theirs}")

    async def condition(self, machine: str) -> Condition:
        """What `sinfo` says of a node: its state, and the reason beside it."""
        standing, state, reason = await self._look(machine)
        return Condition(standing=standing, words=_words(state, reason))

    async def request(self, count: int, reason: str) -> None:
        """Slurm gives machines to jobs, not to us."""
        raise NotOffered(
            f"Slurm is not asked for {count} machines: start agents in a job of theirs"
        )

    async def _look(self, machine: str) -> tuple[Standing, str, str]:
        """A node's standing, the state in Slurm's words, and the reason; empty if there is none.

        `--all` shows the nodes of hidden partitions; a node has a line for each partition.
        """
        name = _checked(machine)
        asked = ("--noheader", "--all", "--Node", "--nodes", name, "-o", "%N|%T|%E")
        for line in (await self._run(self._sinfo, *asked)).splitlines():
            node, _, rest = line.strip().partition("|")
            if node == name:
                state, _, reason = rest.partition("|")
                return _standing(state), state, "" if reason == NO_REASON else reason
        raise ToolRefused(f"sinfo knows no node {machine}")

    async def _update(self, machine: str, *settings: str) -> None:
        await self._run(self._scontrol, "update", f"NodeName={_checked(machine)}", *settings)

    async def _run(self, *arguments: str) -> str:
        configured = os.environ.get(CONFIGURED_BY)
        return await run_tool(arguments, more={CONFIGURED_BY: configured} if configured else {})


def _checked(machine: str) -> str:
    """A name that `scontrol` cannot take for a range, an option or the whole cluster."""
    if not _NAME.match(machine) or machine.upper() == "ALL":
        raise ToolRefused(f"{machine!r} is no name of a Slurm node")
    return machine


def _theirs(reason: str) -> str:
    """What somebody else gave as the reason, also where ours has kept it; empty if nobody did."""
    if not reason.startswith(MARK.strip()):
        return reason
    _, _, kept = reason.partition(_BEFORE)
    return kept.removesuffix(")")


def _words(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state


def _standing(state: str) -> Standing:
    """From Slurm's word, whose marks (``*~#!%$@^-+``) say more about power than about service.

    A node that is drained stays somebody's, whether it answers or not. ``*`` is one that does not
    answer: so is a node just given back, until it registers. ``inval`` hides whether it is drained.
    """
    word, *flags = state.lower().rstrip("*~#!%$@^-").split("+")
    words = (word, *flags)
    if any(each in _CORDONED for each in words):
        return Standing.CORDONED
    if any(each in _DOWN for each in words):
        return Standing.DOWN
    if word not in _SERVING:
        return Standing.UNKNOWN
    return Standing.DOWN if state.endswith("*") else Standing.IN_SERVICE

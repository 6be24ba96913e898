"""Any scheduler, by programs of one's own: one command line per verb.

A command line is a list of arguments in which ``{machine}``, ``{reason}`` and ``{count}`` stand for
what is asked; no shell is involved. `condition` prints ``in service``, ``cordoned`` or ``down``
first on its line; whatever else it prints is unknown, which is never acted upon.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from controlplane.provision.port import Condition, NotOffered, Standing
from controlplane.provision.running import run_tool


class CommandLines(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command line per verb; empty for what is not offered."""

    cordon: tuple[str, ...]
    uncordon: tuple[str, ...]
    condition: tuple[str, ...] = ()
    request: tuple[str, ...] = ()


class ExecProvisioner:
    """Speaks to a scheduler through programs."""

    def __init__(self, lines: CommandLines) -> None:
        self._lines = lines

    async def cordon(self, machine: str, reason: str) -> None:
        """Keep work away from a machine."""
        await self._run("cordon", self._lines.cordon, machine=machine, reason=reason)

    async def uncordon(self, machine: str) -> None:
        """Give a machine back."""
        await self._run("uncordon", self._lines.uncordon, machine=machine)

    async def condition(self, machine: str) -> Condition:
        """How the scheduler sees a machine."""
        said = await self._run("condition", self._lines.condition, machine=machine)
        words = " ".join(said.split())
        for standing in (Standing.IN_SERVICE, Standing.CORDONED, Standing.DOWN):
            if words.startswith(standing):
                return Condition(standing=standing, words=words)
        return Condition(standing=Standing.UNKNOWN, words=words[:200])

    async def request(self, count: int, reason: str) -> None:
        """Ask for more machines."""
        await self._run("request", self._lines.request, count=str(count), reason=reason)

    async def _run(self, verb: str, line: Sequence[str], **asked: str) -> str:
        if not line:
            raise NotOffered(f"no command is set for {verb!r}")
        return await run_tool([_filled(word, asked) for word in line])


def _filled(word: str, asked: dict[str, str]) -> str:
    for name, value in asked.items():
        word = word.replace(f"{{{name}}}", value)
    return word

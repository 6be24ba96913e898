"""Running a scheduler's tool: its words, or a clear error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from controlplane.hooks.delivering import NotDelivered, execute
from controlplane.provision.port import ToolMissing, ToolRefused

TIMEOUT_S: Final = 20.0


async def run_tool(
    arguments: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What a tool says on stdout; `more` is what it gets beside the environment of every program.

    Raises:
        ToolMissing: no such program.
        ToolRefused: it took too long, or did not exit with 0; with its words.
    """
    try:
        return await execute(arguments, b"", more, timeout_s)
    except NotDelivered as error:
        if "no such program" in str(error):
            raise ToolMissing(f"{error}: is the scheduler's client installed here?") from None
        raise ToolRefused(str(error)) from None

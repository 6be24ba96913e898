"""What a scheduler is asked: keep work away from a machine, give it back, how it is, one more.

ProvisionerError
 +-- ToolMissing     the scheduler's tool or client is not here: install it, or name another
 +-- ToolRefused     it answered, and not as it should: the message has its words
 +-- NotOffered      this adapter cannot do that
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from controlplane.errors import ControlError


class ProvisionerError(ControlError):
    """The scheduler could not be asked, or did not do it. Nothing else was changed."""


class ToolMissing(ProvisionerError):
    """The scheduler's tool or client is not on this machine."""


class ToolRefused(ProvisionerError):
    """The scheduler answered, and not as it should."""


class NotOffered(ProvisionerError):
    """This adapter cannot do that."""


class Standing(StrEnum):
    """How a scheduler sees a machine."""

    IN_SERVICE = "in service"
    CORDONED = "cordoned"
    """Work is kept away from it, by us or by somebody else."""
    DOWN = "down"
    UNKNOWN = "unknown"
    """It did not say, or nothing that we understand. Never a reason to act."""


class Condition(Struct, frozen=True, kw_only=True):
    """What a scheduler says of one machine."""

    standing: Standing
    words: str = ""


class Provisioner(Protocol):
    """One scheduler. Machines go by the scheduler's own names."""

    async def cordon(self, machine: str, reason: str) -> None:
        """Keep work away from a machine; what runs there goes on. Idempotent.

        Raises:
            ProvisionerError: it was not done.
        """
        ...

    async def uncordon(self, machine: str) -> None:
        """Give a machine back. Idempotent.

        Raises:
            ProvisionerError: it was not done.
        """
        ...

    async def condition(self, machine: str) -> Condition:
        """How the scheduler sees a machine.

        Raises:
            ProvisionerError: it could not be asked.
        """
        ...

    async def request(self, count: int, reason: str) -> None:
        """Ask for more machines; they join by themselves when they come.

        Raises:
            ProvisionerError: they will not come.
        """
        ...

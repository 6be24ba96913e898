"""Random numbers of a training step: a pure function of seed, step and slot.

Rules of this file: it seeds, saves and restores the generators that a step draws from (torch on the
CPU and on every CUDA device in use, numpy's global one if numpy was imported, Python's). Because
each step starts from its own seed, a step that is done again, a node that joined a moment ago and a
run that was never interrupted all draw the same numbers, and no generator state has to travel.
"""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def seed_step(seed: int, step: int, slot: int) -> None:
    """Seed every generator for one step of one slot."""
    digest = hashlib.blake2b(f"{seed}|{step}|{slot}".encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "little") >> 1  # manual_seed takes 63 bits without wrapping
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class ChanceState:
    """Where every generator stands."""

    host: Tensor
    devices: list[Tensor]
    python: Any
    numpy: Any

    @classmethod
    def capture(cls) -> ChanceState:
        """Read all generators."""
        numpy = sys.modules.get("numpy")
        return cls(
            torch.default_generator.get_state(),
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
            random.getstate(),
            None if numpy is None else numpy.random.get_state(),
        )

    def restore(self) -> None:
        """Set all generators back."""
        torch.default_generator.set_state(self.host)
        if self.devices:
            torch.cuda.set_rng_state_all(self.devices)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

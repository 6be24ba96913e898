"""The training that every contender runs: one small transformer, one batch per step, one note.

What belongs here: what must be the same for all, in plain torch and the standard library, since
each contender runs it under an interpreter of its own. What differs is in the scripts beside it.

A note is one JSON line in a file of this process: which step it has committed, and when.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NOTES_VARIABLE = "RIVALS_NOTES"
"""Environment variable: the folder of notes."""

CHECKPOINT_VARIABLE = "RIVALS_CHECKPOINT"
"""Environment variable: the file that those who restart begin from."""

CHECKPOINT_STEPS = 20
_TOKENS, _LENGTH, _WIDTH = 1000, 32, 128


class Notes:
    """This process's notes; nothing, if nobody asked for any."""

    def __init__(self, place: int) -> None:
        self._place = place
        folder = os.environ.get(NOTES_VARIABLE)
        path = Path(folder) / f"{os.getpid()}.jsonl" if folder else Path(os.devnull)
        self._file = path.open("a", buffering=1)

    def note(self, what: str, **more: int) -> None:
        """Note that something has happened just now."""
        line = {"at_s": time.time(), "pid": os.getpid(), "place": self._place, "what": what, **more}
        self._file.write(json.dumps(line) + "\n")


class Small(nn.Module):
    """A transformer of 0.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_TOKENS, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_LENGTH, _WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                _WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(_WIDTH, _TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each token at each place."""
        y = self.tokens(x) + self.places
        for layer in self.layers:
            y = layer(y)
        found: Tensor = self.head(y)
        return found


def built() -> tuple[Small, torch.optim.Optimizer]:
    """The model and its optimizer, the same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Small()
    return model, torch.optim.AdamW(model.parameters())


def loss_of(model: Any, step: int, place: int) -> Tensor:
    """The loss of one step's batch, which is a function of the step and the place alone."""
    chance = torch.Generator().manual_seed(step * 100 + place)
    x = torch.randint(0, _TOKENS, (4, _LENGTH), generator=chance)
    return nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())


def average(model: nn.Module, world: int, all_reduce: Callable[[Tensor], object]) -> None:
    """Average the gradients over `world` members, as one flat buffer."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    all_reduce(flat)
    flat /= world
    at = 0
    for one in gradients:
        one.copy_(flat[at : at + one.numel()].view_as(one))
        at += one.numel()


def restored(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one; the step to begin with."""
    path = Path(os.environ[CHECKPOINT_VARIABLE])
    if not path.exists():
        return 0
    found = torch.load(path, weights_only=True)  # noqa: TID251 - rivals do so; our own file
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return int(found["step"])


def checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint every so many steps."""
    if step % CHECKPOINT_STEPS:
        return
    path = Path(os.environ[CHECKPOINT_VARIABLE])
    part = path.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, part)
    part.rename(path)

"""The state of a training process: what it is made of, and how to give, take and undo it.

What belongs here: torch tensors and what surrounds them. Moving bytes is `worker.transfer`'s.

Reading order: tree (state that is not a tensor), memory (tensors as bytes), chance (random
numbers), registry (what the user registered), training (`TrainingState`, which is what others use).
"""

from worker.state.chance import seed_step
from worker.state.training import TrainingState
from worker.state.tree import StateRefused

__all__ = ["StateRefused", "TrainingState", "seed_step"]

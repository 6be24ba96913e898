"""What a training loop needs of Changeover.

    run = worker.join()                                  # this node's place; a standby runs it too
    run.register(model=model, optimizer=optimizer)       # what a joiner must receive
    for step in run.steps(total):                        # a discarded step is offered again
        ...backward...
        if step.vote():                                  # every rank has its gradients
            optimizer.step()

Names load lazily, so that an agent may import this package without importing torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.loop import Run as Run
    from worker.loop import Step as Step
    from worker.loop import join as join

__all__ = ["Run", "Step", "join"]


def __getattr__(name: str) -> Any:
    """Load the loop when one of its names is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from worker import loop

    return getattr(loop, name)

"""How long a training script waits for its data: what tells a late loader from a slow machine.

What belongs here: two wrappers, around whatever yields batches and whatever returns one, and the
sum of the time spent inside them. It is part of a node's own work, since no peer is to blame.

    batch = timed_call(corpus.batch)   # what looks a batch up by its number
    for batch in timed(loader): ...    # what yields one after the other

A loader that is iterated beside `run.steps()` gets ahead of it: a step that comes again needs its
own batch once more.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from worker.faults import LateInput

T = TypeVar("T")
P = ParamSpec("P")

_waited_s = 0.0
_late = LateInput.from_environment()


def waited_s() -> float:
    """Seconds that this process spent waiting for data so far."""
    return _waited_s


def timed(batches: Iterable[T]) -> Iterator[T]:
    """Yield what `batches` yields, and count how long each took to come."""
    source = iter(batches)
    while True:
        began_s = time.perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            return
        _count(began_s)
        yield batch


def timed_call(load: Callable[P, T]) -> Callable[P, T]:
    """Wrap what returns a batch, and count how long each call takes."""

    @wraps(load)
    def loaded(*args: P.args, **kwargs: P.kwargs) -> T:
        began_s = time.perf_counter()
        batch = load(*args, **kwargs)
        _count(began_s)
        return batch

    return loaded


def _count(began_s: float) -> None:
    global _waited_s  # noqa: PLW0603 - one process waits for one script's data
    _late.wait()
    _waited_s += time.perf_counter() - began_s

"""What a script does besides training steps, where it says so: evaluating, writing a checkpoint.

What belongs here: one word for it, which was said since the last window of vitals, and who is told
when one begins. A window in which a phase was is compared with nobody, so whoever evaluates alone
is not taken for slow; and how long a phase may last without progress is learned for it alone
(`statemachine.hangs`). So a window is closed when a phase begins: the fleet knows what is waited
for while it lasts.

    if step.index % 500 == 0:
        with phase("evaluation"):
            evaluate(model)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statemachine.ids import check_name
from statemachine.vitals import TRAINING

_seen = _now = TRAINING
_told: Callable[[], None] = lambda: None  # noqa: E731 - a place to put one


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say what this process does in the block; in blocks within each other the outer one counts.

    Raises:
        BadName: it is no plain word.
    """
    global _seen, _now  # noqa: PLW0603 - one process runs one script
    check_name("phase", name)
    if _now != TRAINING:
        yield
        return
    _seen = _now = name
    try:
        _told()
        yield
    finally:
        _seen, _now = name, TRAINING


def tell(began: Callable[[], None]) -> None:
    """Call `began` whenever a phase begins, on the thread that says so."""
    global _told  # noqa: PLW0603
    _told = began


def taken() -> str:
    """The phase that was said since this was asked last; `TRAINING` if none was."""
    global _seen
    seen, _seen = _seen, TRAINING
    return seen

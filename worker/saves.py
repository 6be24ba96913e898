"""How a run goes on from a checkpoint: what the script, or a store, says about those there are.

What belongs here: two questions about checkpoints, and what a question costs that cannot be
answered. Writing checkpoints, and what is in them, does not.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("worker.saves")


@dataclass(frozen=True)
class Saves:
    """`newest` is the last step in the newest whole checkpoint (-1: none); `load` puts one back."""

    newest: Callable[[], int]
    load: Callable[[int], None]

    def newest_or_none(self) -> int:
        """`newest`; where it raises, there is none, and the log says why.

        A launch waits for the answer: what cannot be read now is as good as absent.
        """
        try:
            return self.newest()
        except Exception:  # the script's own code: whatever it raises
            log.exception("no checkpoint can be found")
            return -1


NOTHING_SAVED = Saves(newest=lambda: -1, load=lambda _: None)
"""No checkpoints: a launch begins with initial weights."""

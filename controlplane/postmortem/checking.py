"""A log that decodes, and cannot be: a flipped letter that made another name, a number that grew.

What belongs here: holding a log against the invariants of the fold while it is read, for what no
line shows by itself. It costs about as much as the fold, so it is done for logs of up to
`CHECKED_BYTES`; longer ones are for `changeover log verify`, which does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from controlplane.postmortem.logfile import LogFile
from statemachine.events import Recorded
from statemachine.evolve import evolve
from statemachine.invariants import check_step
from statemachine.state import FleetState

CHECKED_BYTES: Final = 8 << 20


def checked(log: LogFile) -> Iterator[Recorded]:
    """The entries of a log that can be trusted: up to damage, or to the first that breaks a rule.

    Raises:
        UsageError: the file cannot be read, or holds no log at all.
    """
    small = log.path.is_file() and log.path.stat().st_size <= CHECKED_BYTES
    return _checked(log) if small and not log.reads_on else log.entries()


def _checked(log: LogFile) -> Iterator[Recorded]:
    state, entries = FleetState(), log.entries()
    for recorded in entries:
        if log.is_whole:  # without its beginning a log keeps no invariant
            after = evolve(state, recorded)
            for breach in check_step(state, recorded, after):
                log.hurt(f"position {recorded.position}", "impossible", str(breach))
                log.unread += 1 + sum(1 for _ in entries)
                return
            state = after
        yield recorded

"""How long deciding takes after one event, and whether that grows with the fleet.

Processor time of `decide` on a fleet that trains, right after an event that changes nothing, one
that accuses a standby, and an acknowledgement in the middle of a repair; 8 nodes against 8,192.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from fold_rate import JOB, ONE, STANDBYS, Story

from statemachine import events as e
from statemachine.decide import decide
from statemachine.ids import NodeId
from statemachine.state import FleetState

TRIES = 2000
SIZES = (8, 8192)


def median_us(state: FleetState, at_ms: int) -> float:
    """Median processor time of one decision, in microseconds."""
    took = []
    for _ in range(TRIES):
        began_ns = time.process_time_ns()
        decide(state, at_ms, state.policy)
        took.append(time.process_time_ns() - began_ns)
    return statistics.median(took) / 1000


def quiet(story: Story) -> None:
    """A fact for people."""
    story.tell(e.FaultInjected(node=NodeId("n00001"), kind="none"))


def standby_lost(story: Story) -> None:
    """Evidence against the last standby."""
    name = max(story.state.pool)
    story.tell(e.LeaseExpired(node=name, incarnation=ONE))


def acknowledged(story: Story) -> None:
    """A repair under way, with the acknowledgement of one member."""
    story.say(e.WorkerExited(node=NodeId("n00003"), incarnation=ONE, job=JOB, reason="signal 9"))
    pending = story.state.jobs[JOB].pending
    assert pending is not None
    name = pending.awaited()[0]
    story.tell(
        e.TransitionPrepared(
            job=JOB, transition=pending.plan.transition, node=name, incarnation=ONE
        )
    )


def main() -> None:
    """Print medians by kind of event and size."""
    kinds: tuple[Callable[[Story], None], ...] = (quiet, standby_lost, acknowledged)
    found: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
    for size in SIZES:
        story = Story(size + STANDBYS)
        for kind in kinds:
            kind(story)
            found[kind.__name__].append(median_us(story.state, story.at_ms))
            story.decide()
    for name, (small, large) in found.items():
        ratio = large / small
        print(
            f"{name:14} {small:7.1f} us at {SIZES[0]}, {large:7.1f} us at {SIZES[1]}: {ratio:.2f}x"
        )
    print("goal: under 100 us, within 2x")


if __name__ == "__main__":
    main()

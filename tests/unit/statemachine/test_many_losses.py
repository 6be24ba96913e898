"""What ends at once, as a rack does, costs what each of it costs."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from statemachine import events as e
from statemachine.decide import settle
from statemachine.evolve import fold
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState

ONE = Incarnation(1)


def expired(nodes: int) -> FleetState:
    """A fleet in which every lease ended before anybody decided."""
    names = [NodeId(f"n{number:04d}") for number in range(nodes)]
    events: list[e.AnyEvent] = [e.NodeJoined(node=n, incarnation=ONE, host="h") for n in names]
    events += [e.LeaseExpired(node=name, incarnation=ONE) for name in names]
    return fold(
        FleetState(),
        [
            e.Recorded(position=Position(at), at_ms=at, writer="w", event=event)
            for at, event in enumerate(events, 1)
        ],
    )


def work(nodes: int) -> int:
    """Number of Python instructions to declare them all lost: a measure without a clock."""
    state = expired(nodes)
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks when tracing begins, and never again
    sys.settrace(trace)
    try:
        settled = settle(state, 10_000, "core")
    finally:
        sys.settrace(before)
    assert {node.state for node in settled.state.nodes.values()} == {NodeState.LOST}
    return count


def test_twice_as_many_losses_cost_twice_as_much() -> None:
    """Declaring nodes lost takes time in proportion to their number, not to its square."""
    few, many = work(100), work(200)

    print(f"{few / 100:.0f} instructions a loss of 100, {many / 200:.0f} of 200")
    assert many < 2.3 * few

"""What is shown is sent once, and again only when it changes; a large fleet costs its changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from rpds import HashTrieMap

from controlplane.picture import Picture
from controlplane.web.board import Board
from statemachine.codec import decode_recorded
from statemachine.evolve import evolve
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Node, replace
from statemachine.vitals import STEP_MS, Metric, Vitals

DEMO = Path(__file__).parents[3] / "history" / "demo_kill_and_grey.events.jsonl"


def picture(state: FleetState, **vitals: Vitals) -> Picture:
    """A picture of a state."""
    seen = {NodeId(name): each for name, each in vitals.items()}
    return Picture(fleet="lab", state=state, leader=("c0", 1), vitals=seen)


def window(node: str, step: int) -> Vitals:
    """One window of one node."""
    return Vitals(
        node=NodeId(node),
        incarnation=Incarnation(1),
        job=JobId("demo"),
        slot=Slot(0),
        role=Role("only"),
        epoch=Epoch(1),
        window=step,
        started_at_ms=step * 100,
        ended_at_ms=step * 100 + 100,
        last_step=step,
        loss=1.0 / (step + 1),
        metrics={STEP_MS: Metric(count=1, mean=90.0, p50=90.0, p95=99.0)},
    )


def test_changes_add_up_to_everything() -> None:
    """Whoever applies each change to what it had sees what whoever comes new sees."""
    board, state, mine = Board(), FleetState(), dict[str, Any]()
    for raw in DEMO.read_bytes().splitlines():
        state = evolve(state, decode_recorded(raw))
        changed, gone = board.update(picture(state))
        mine |= changed
        for name in gone:
            del mine[name]

    fresh = Board()
    fresh.update(picture(state))

    assert mine == board.values == fresh.values
    assert mine["node/n1"]["state"] == "spare"
    assert msgspec.json.decode(msgspec.json.encode(mine)) == mine


def test_nothing_is_sent_twice() -> None:
    """The same picture again changes nothing."""
    board, state = Board(), FleetState()
    for raw in DEMO.read_bytes().splitlines()[:60]:
        state = evolve(state, decode_recorded(raw))
    board.update(picture(state, n0=window("n0", 1)))

    assert board.update(picture(state, n0=window("n0", 1))) == ({}, [])


def test_windows_are_points_of_the_jobs_curve_once() -> None:
    """Of several members that report a step the first counts."""
    board, state = Board(), FleetState()
    board.update(picture(state, n0=window("n0", 1), n1=window("n1", 1)))
    board.update(picture(state, n0=window("n0", 2), n1=window("n1", 1)))

    assert board.points() == {"demo": [(200, 90.0, 0.5), (300, 90.0, 1 / 3)]}
    assert len(board.new_points()["demo"]) == 2
    assert board.new_points() == {}


def test_one_change_among_8192_nodes_is_one_value() -> None:
    """What is sent is the node and the fleet; what it costs is milliseconds."""
    names = [NodeId(f"n{number:05d}") for number in range(8192)]
    nodes = HashTrieMap(
        {
            name: Node(
                node=name,
                incarnation=Incarnation(1),
                state=NodeState.STANDBY,
                host="h",
                since_at_ms=0,
                joined_at_ms=0,
            )
            for name in names
        }
    )
    state = FleetState(nodes=nodes)
    board = Board()
    board.update(picture(state))
    moved = replace(nodes[names[77]], state=NodeState.QUARANTINED)
    after = replace(state, nodes=nodes.insert(names[77], moved))

    began_s = time.process_time()
    changed, gone = board.update(picture(after))
    took_s = time.process_time() - began_s

    assert (set(changed), gone) == ({"fleet", "node/n00077"}, [])
    assert took_s < 0.2, f"{took_s * 1000:.0f} ms of processor time"

"""Which keys an event may change: a key that changes unannounced would never be written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controlplane.projection import touched_by
from statemachine.evolve import evolve
from statemachine.ids import JobId, NodeId, Position
from statemachine.state import FleetState
from statemachine.topology import Desired, Orders, desired_of, orders_of
from tests.properties.test_fold_laws import SEEDS, log_of


def keys_of(state: FleetState) -> dict[JobId | NodeId, Desired | Orders]:
    """What every projected key should say, whence it was computed left out."""
    zero = Position(0)
    keys: dict[JobId | NodeId, Desired | Orders] = {}
    for name, job in state.jobs.items():
        keys[name] = replace(desired_of(state, job), position=zero)
    for known, node in state.nodes.items():
        keys[known] = replace(orders_of(state, node), position=zero)
    return keys


@pytest.mark.parametrize("seed", SEEDS)
def test_no_key_changes_unannounced(seed: int) -> None:
    """Whatever is said in whatever order, a key changes only by an event that names its job or its
    node as touched.
    """
    state, before = FleetState(), keys_of(FleetState())
    for entry in log_of(seed).log:
        touched = touched_by(state, entry.event)
        state = evolve(state, entry)
        after = keys_of(state)
        changed = {name for name, value in after.items() if before.get(name) != value}
        assert changed <= touched.jobs | touched.nodes, f"seed {seed}: {entry}"
        before = after

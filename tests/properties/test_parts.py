"""Plans and commits in parts, on a fleet so small that no limit is ever met: the limits are lowered
until everything comes in parts, and everybody is implied.
"""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from statemachine import events as e
from statemachine import packing, parts, topology
from statemachine.evolve import fold
from statemachine.ids import JobId
from statemachine.state import FleetState, Transition
from statemachine.topology import decode_desired, desired_of, encode_projection
from tests.properties.fleet import ACTIONS, Fleet, begun
from tests.properties.test_interleavings import DRAIN, explore

SEEDS = range(10)
STEPS = 50


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits at which nothing fits."""
    monkeypatch.setattr(parts, "CHANGES_MAX", 0)
    monkeypatch.setattr(parts, "LISTED_MAX", 0)
    monkeypatch.setattr(parts, "HANDED_MAX", 1)
    monkeypatch.setattr(topology, "PACKED_FROM", 1)


def play(seed: int) -> Fleet:
    """A fleet to which a seed says everything, every invariant checked."""
    chance = random.Random(seed)
    fleet = begun(chance.choice)
    for _ in range(STEPS):
        chance.choice(ACTIONS)(fleet)
        desired = desired_of(fleet.state, fleet.job)
        assert decode_desired(encode_projection(desired)) == desired
    return fleet


def gist(state: FleetState) -> dict[JobId, object]:
    """What the jobs of a state are about, without positions and without how it was said."""

    def plain(pending: Transition | None) -> object:
        if pending is None:
            return None
        plan = replace(pending.plan, evidence=(), parts=0, implied=False)
        committed = pending.committed and replace(pending.committed, parts=0, evidence=())
        return plan, committed, sorted(pending.members), pending.gone, pending.phase

    return {
        name: (
            job.epoch,
            dict(job.holders),
            sorted(job.vacant),
            sorted(job.idle),
            sorted(job.unproven),
            plain(job.pending),
        )
        for name, job in state.jobs.items()
    }


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("seed", SEEDS)
def test_in_parts_it_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is said in whatever order, a fleet whose plans come in parts goes the way of one
    whose plans come whole, and every invariant holds.
    """
    cut = play(seed)
    monkeypatch.undo()
    whole = play(seed)

    kinds = {type(entry.event) for entry in cut.log}
    assert e.ChangesDrafted in kinds
    assert e.ChangesDrafted not in {type(entry.event) for entry in whole.log}
    assert gist(cut.state) == gist(whole.state)
    assert fold(FleetState(), cut.log) == cut.state


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("act", [None, DRAIN], ids=["losses", "drain"])
def test_in_parts_in_every_order(act: e.AnyEvent | None) -> None:
    """The enumeration of a small fleet holds as well where nothing fits into one event."""
    explore(2, 1, int(act is None), *([act] if act is not None else []))


def test_a_packed_key_is_read_forever() -> None:
    """What small keys look like does not depend on how large ones are written."""
    assert not packing.is_packed(b'{"job":"j"}')
    assert packing.is_packed(b"x\x9c")

"""What a fold must be like, whatever the log: associative, deterministic, blind to hash seeds."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from statemachine.codec import decode_recorded, encode_recorded
from statemachine.decide import settle
from statemachine.evolve import fold
from statemachine.notation import lines_of_state
from statemachine.state import FleetState
from tests.properties.fleet import ACTIONS, Fleet, begun

SEEDS = range(12)
STEPS = 50
DIGESTS_OF = "from tests.properties.test_fold_laws import digests; print(digests())"


def log_of(seed: int) -> Fleet:
    """A log of everything that a seed says."""
    chance = random.Random(seed)
    fleet = begun(chance.choice)
    for _ in range(STEPS):
        chance.choice(ACTIONS)(fleet)
    return fleet


def digests() -> str:
    """Digests of the logs and last states of all seeds."""
    found = hashlib.sha256()
    for seed in SEEDS:
        fleet = log_of(seed)
        for recorded in fleet.log:
            found.update(encode_recorded(recorded))
        found.update("\n".join(lines_of_state(fleet.state)).encode())
    return found.hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prefix_and_then_the_rest_is_the_whole(seed: int) -> None:
    """Folding a log in two parts, cut anywhere, gives the state of folding it at once."""
    log = log_of(seed).log
    whole = fold(FleetState(), log)
    state = FleetState()
    for cut, recorded in enumerate(log):
        state = fold(state, [recorded])
        if cut % 17 == 0:
            assert fold(state, log[cut + 1 :]) == whole, f"cut after {cut + 1} of {len(log)}"

    assert state == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_reads_back_as_it_was_written(seed: int) -> None:
    """Each entry of a log is the same after a round trip, and equal entries are equal bytes."""
    for recorded in log_of(seed).log:
        raw = encode_recorded(recorded)

        assert decode_recorded(raw) == recorded
        assert encode_recorded(decode_recorded(raw)) == raw


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_follows_from_a_state_at_rest(seed: int) -> None:
    """Deciding again without any news decides nothing, after any prefix that was settled."""
    fleet = log_of(seed)

    assert settle(fleet.state, fleet.now_ms, "core").recorded == ()


def test_every_hash_seed_gives_the_same_bytes(root: Path) -> None:
    """Two processes with two hash seeds decide the same, byte for byte, and end in one state."""
    said = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS_OF],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "4242")
    ]

    assert said[0] == said[1] == digests()

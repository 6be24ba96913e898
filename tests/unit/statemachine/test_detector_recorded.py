"""The detector on recorded vitals: real noise, and a truth that the injector knew.

``grey_node_on_two_cores``: four nodes trained on two cores that ten other processes wanted too, in
windows of about 1 s. 32.8 s after the first window n2 began to burn 1.4x the time of its own work.
Nobody was hurt before.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from statemachine.events import VerdictIssued
from statemachine.vitals import CPU_MS, Vitals, decode_vitals
from tests.unit.statemachine.grey_fleet import Watch, without

HISTORY = Path(__file__).parents[2] / "history"
ONSET_MS = 32_758


@pytest.fixture(scope="module")
def recorded() -> list[Vitals]:
    """All windows in the order of their arrival."""
    path = HISTORY / "grey_node_on_two_cores.vitals.jsonl"
    return [decode_vitals(line) for line in path.read_bytes().splitlines()]


def fed(windows: list[Vitals]) -> list[tuple[int, VerdictIssued]]:
    """Verdicts on windows that arrive one by one, each with the time of its last window."""
    watch = Watch()
    for vitals in windows:
        watch.see([vitals], pass_ms=vitals.ended_at_ms - watch.now_ms)
        assert not watch.withdrawn
    ends = [vitals.ended_at_ms for vitals in windows]
    return [(ends[r], said) for r, said in watch.said if isinstance(said, VerdictIssued)]


def test_the_grey_node_is_found_in_four_seconds_and_nobody_else(recorded: list[Vitals]) -> None:
    """Real noise accuses nobody for half a minute; the burn is judged by its third full window."""
    verdicts = fed(recorded)

    assert [(v.node, v.verdict) for _, v in verdicts] == [("n2", "faulty")]
    assert 0 < verdicts[0][0] - ONSET_MS < 4_000


def test_without_processor_time_real_noise_accuses_nobody(recorded: list[Vitals]) -> None:
    """Where wall time alone is measured more is asked, and clean nodes stay clean."""
    blind = [without(vitals, CPU_MS) for vitals in recorded]

    assert {verdict.node for _, verdict in fed(blind)} <= {"n2"}


def test_the_same_run_as_another_node_is_judged_alike(recorded: list[Vitals]) -> None:
    """Names carry no meaning: with names exchanged, the other one is found at the same window."""
    names = {"n0": "n2", "n2": "n0"}
    renamed = [replace(v, node=names.get(v.node, v.node)) for v in recorded]

    assert [(at_ms, v.node) for at_ms, v in fed(renamed)] == [
        (at_ms, names[v.node]) for at_ms, v in fed(recorded)
    ]


def test_a_judgement_is_the_same_under_every_hash_seed() -> None:
    """Two processes that iterate their sets differently state the same events, byte for byte."""
    program = (
        "from dataclasses import replace\n"
        "from msgspec import json\n"
        "from tests.unit.statemachine.grey_fleet import NOISY, QUIET, Watch\n"
        "fleets = replace(NOISY, slow={2: 1.4}), replace(QUIET, slow={1: 1.2, 7: 1.1})\n"
        "for fleet in fleets:\n"
        "    watch = Watch().watch(fleet, 20)\n"
        "    print(json.encode([said for _, said in watch.said]), watch.notes)\n"
    )
    root = Path(__file__).parents[3]
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert said[0] == said[1]
    assert '"n7"' in said[0], said[0]

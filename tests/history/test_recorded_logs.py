"""Recorded logs, replayed for ever: every later version folds them to the same topologies.

Beside each `*.events.jsonl` lies what its fold says, in notation: each topology that the log goes
through, with the position at which it appears, and a digest of every state on the way. A log is
never edited. `pytest tests/history --record` writes what is missing beside a new one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from statemachine.codec import decode_recorded
from statemachine.invariants import CheckedFold
from statemachine.notation import lines_of_job, lines_of_state

FOLDER = Path(__file__).parent
LOGS = sorted(FOLDER.glob("*.events.jsonl"))
TOLD = "import sys; from tests.history.test_recorded_logs import *; print(told(Path(sys.argv[1])))"


def told(log: Path) -> str:
    """The topologies that a log goes through, and the digest of its states."""
    fold = CheckedFold()
    lines: list[str] = []
    last: list[str] = []
    digest = hashlib.sha256()
    for raw in log.read_bytes().splitlines():
        state = fold.take(decode_recorded(raw))
        jobs = [line for name in sorted(state.jobs) for line in lines_of_job(state.jobs[name])]
        if jobs != last:
            lines += [f"{state.position}: {line}" for line in jobs]
            last = jobs
        digest.update("\n".join(lines_of_state(state)).encode())
    return "\n".join((*lines, f"digest {digest.hexdigest()}"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name.partition(".")[0])
def test_a_recorded_log_folds_as_ever(log: Path, request: pytest.FixtureRequest) -> None:
    """A log of an earlier version goes through the same topologies, and holds every invariant."""
    beside = log.with_name(log.name.replace(".events.jsonl", ".topologies.txt"))
    if request.config.getoption("--record", default=False) and not beside.exists():
        beside.write_text(told(log) + "\n", encoding="utf-8")

    assert told(log) + "\n" == beside.read_text(encoding="utf-8")


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name.partition(".")[0])
def test_the_hash_seed_does_not_matter(log: Path) -> None:
    """Two processes with two hash seeds tell the same of a log."""
    root = FOLDER.parents[1]
    said = [
        subprocess.run(
            [sys.executable, "-c", TOLD, str(log)],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "4242")
    ]

    assert said[0] == said[1]


def test_there_are_recorded_logs() -> None:
    """Nobody removed the logs."""
    assert len(LOGS) >= 4

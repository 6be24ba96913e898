"""The toy scheduler: its rule on virtual time, and all of it as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.testkit import FleetHarness, check_determinism
from statemachine import events as e

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def test_its_rule_lets_the_tired_rest() -> None:
    """Whoever was promoted twice is kept out, swept, and serves again."""
    from embed_scheduler import rest_the_tired

    fleet = FleetHarness({"dp": 2}, standbys=1, own=rest_the_tired)
    for _ in range(6):
        holder = fleet.holder(0)
        assert holder is not None
        fleet.say(e.SwitchoverRequested(node=fleet.node(holder).node, by="test"))
        fleet.run(120)

    rested = fleet.said(e.NodeQuarantined)
    assert rested
    assert "was promoted 2 times: let it rest" in str(rested[0])
    check_determinism("embed_scheduler:rest_the_tired", fleet.log)


def test_it_runs_as_documented() -> None:
    """It says what was decided, and ends by itself."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "embed_scheduler.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "trains on m3, m1, m2" in lines
    assert lines[-1] == "trains on m3, m4, m2"
    assert any("m3 takes slot 0 of m0" in line for line in lines)

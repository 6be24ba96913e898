"""`changeover demo --scenario`: a scenario of the simulator, played on processes of a machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run one of the two commands as a process."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scenario", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("--scenario", "scenarios/llm_8k.toml"), "fleet.gpus_per_node = 8"),
        (("--scenario", "scenarios/live.toml", "--nodes", "3"), "--scenario says the layout"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    """A scenario that is missing, too large, or contradicted ends with exit code 2."""
    ran = run("controlplane", "demo", *arguments)

    assert ran.returncode == 2, ran
    assert ran.stderr.count("\n") == 1
    assert words in ran.stderr


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_scenario_is_played_and_simulated_again(tmp_path: Path) -> None:
    """A grey node, a kill and a drain of one file happen for real, cost no step, and come out of
    the simulation with the same number of swaps and downtimes of the same order.
    """
    folder = tmp_path / "run"
    scenario = str(ROOT / "scenarios" / "live.toml")
    arguments = ("--scenario", scenario, "--run-dir", str(folder), "--no-baseline", "--json")
    played = run("controlplane", "demo", *arguments, timeout_s=440)
    assert played.returncode == 0, played.stderr[-2000:]
    assert json.loads(played.stdout)["ok"]
    told = run("simulator", "validate", str(folder), "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)

    assert [pair["kind"] for pair in found["pairs"]] == ["grey", "kill", "drain"]
    assert found["measured_swaps"] == found["simulated_swaps"] == 3
    assert all(abs(pair["error"]) < 1 for pair in found["pairs"]), found["pairs"]
    assert abs(found["simulated_ettr"] / found["measured_ettr"] - 1) < 0.2

"""`simctl` as a process: the same bytes everywhere, errors in one line, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import VERBS

ROOT = Path(__file__).parents[3]
SMALL = """
name = "small"
days = 0.5
replications = 3
[job]
axes = { pp = 2, dp = 4, tp = 8 }
[faults]
per_1000_node_days = 3000
[grey]
per_1000_node_days = 300
[fleet]
standbys = 2
"""


def simctl(*arguments: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with a given hash seed."""
    command = [sys.executable, "-c", "from simulator.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small scenario as a file."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL, "utf-8")
    return path


@pytest.mark.parametrize("strategy", ["standby-swap-guard", "checkpoint-restart"])
def test_two_hash_seeds_give_the_same_bytes(small: Path, strategy: str) -> None:
    """Two processes with different hash seeds print the same, digest included."""
    first = simctl("run", str(small), "--strategy", strategy, "--json", seed="1")
    second = simctl("run", str(small), "--strategy", strategy, "--json", seed="4242")

    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    other = simctl("run", str(small), "--strategy", strategy, "--json", "--seed", "9")
    assert other.stdout != first.stdout


def test_logs_are_the_same_bytes(small: Path, tmp_path: Path) -> None:
    """The event log of a run is equal byte by byte, and can be replayed and calibrated."""
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, path in enumerate(logs):
        ran = simctl("run", str(small), "--log", str(path), "--json", seed=str(number))
        assert ran.returncode == 0, ran.stderr
    assert logs[0].read_bytes() == logs[1].read_bytes()
    told = json.loads(simctl("replay", str(logs[0]), "--json").stdout)
    assert told["entries"] == len(logs[0].read_bytes().splitlines())
    assert "[costs.overrides]" in simctl("calibrate", str(logs[0])).stdout


def test_comparing_gives_json_and_a_report(small: Path, tmp_path: Path) -> None:
    """`compare --json` has a row per strategy, and the report is written."""
    page = tmp_path / "report.html"
    ran = simctl("compare", str(small), "--json", "--html", str(page), "--workers", "2")

    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["rows"]) >= 6
    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"import"}))
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    """`simctl VERB --help` shows an example and --json."""
    ran = simctl(verb, "--help")

    assert ran.returncode == 0
    assert f"Example: simctl {verb}" in ran.stdout
    assert "--json" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nowhere.toml"), "cannot be read"),
        (("run",), "see 'simctl run --help'"),
        (("replay", "nowhere.jsonl"), "cannot be read"),
        (("import", "stepfun", "nowhere.json"), "cannot be read"),
        (("import", "csv", "f.csv", "--map", "x"), "--map 'x'"),
        (("whatif", "nowhere.jsonl", "--policy", "p.toml"), "cannot be read"),
        (("plan", "nowhere.toml", "--target-ettr", "nan"), "nan is not a finite number"),
        (("grid", "f.toml", "--results", "r", "--relative", "inf"), "inf is not a finite number"),
        (("import", "stepfun", "f.json", "--days", "-1"), "'--days': -1.0 is not in the range"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(arguments: tuple[str, ...], words: str) -> None:
    """What cannot be done is said in one line on stderr."""
    ran = simctl(*arguments)

    assert ran.returncode == 2, ran
    assert ran.stderr.count("\n") == 1
    assert words in ran.stderr


def test_an_unknown_strategy_names_the_nearest(small: Path) -> None:
    """A strategy that does not exist is refused with the one that was meant."""
    ran = simctl("run", str(small), "--strategy", "standby-swp")

    assert ran.returncode == 2
    assert "did you mean standby-swap" in ran.stderr


def test_a_target_out_of_reach_is_exit_code_one(small: Path) -> None:
    """A plan that finds nothing prints its curve and exits with 1."""
    ran = simctl("plan", str(small), "--target-ettr", "1.0", "--json", "--replications", "2")

    assert ran.returncode == 1
    assert json.loads(ran.stdout)["standbys"] is None

"""How well a sweep's probes repeat on this machine, and which slowdown they therefore find.

Rounds of a node alone, well and hurt in turns, each in a child as an agent starts it. Of each
metric: the quantiles over the well rounds, the tolerance that follows from them, and beside it the
policy's own; which share of the hurt rounds fails by either, and which share of the well ones, each
judged beside all others. `--record FILE` keeps the rounds for the tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine.baselines import allowed, learned
from statemachine.events import SweepOutcome, SweepRoundFinished
from statemachine.ids import Incarnation, NodeId, SweepId
from statemachine.sweep import SOLO, SweepPolicy, judge_round, usual
from worker.faults import FAULT_FILE_VARIABLE, SlowKind, clear_fault, set_fault
from worker.sweeper import NICENESS

ROOT = Path(__file__).parents[1]
POLICY = SweepPolicy(tolerance=1.25, judge_medians=False)
"""The policy of a demo, whose nodes share a machine."""

Rounds = list[dict[str, float]]


def one_round(budget_s: float, fault: Path) -> dict[str, float]:
    """Measure compute and memory once."""
    command = [sys.executable, "-m", "worker.probes", "--probe", "compute", "--probe", "memory"]
    command += ["--budget-s", str(budget_s), "--json", "--nice", str(NICENESS)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {FAULT_FILE_VARIABLE: str(fault)},
        capture_output=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def recorded(rounds: int, budget_s: float, factors: Sequence[float]) -> dict[str, Rounds]:
    """Rounds in turns, so that what the machine does meanwhile is shared by all."""
    hurts = [(kind, by) for by in factors for kind in (SlowKind.MEMORY, SlowKind.COMPUTE)]
    found: dict[str, Rounds] = {"well": [], **{f"{kind} {by:g}": [] for kind, by in hurts}}
    with tempfile.TemporaryDirectory() as folder:
        fault = Path(folder) / "fault"
        for number in range(rounds * len(hurts)):
            clear_fault(fault)
            found["well"].append(one_round(budget_s, fault))
            kind, by = hurts[number % len(hurts)]
            set_fault(fault, by, kind)
            found[f"{kind} {by:g}"].append(one_round(budget_s, fault))
    return found


def fails(measurements: Mapping[str, float], history: Sequence[Mapping[str, float]]) -> bool:
    """Whether a round fails beside a history."""
    done = SweepRoundFinished(
        sweep=SweepId(1),
        node=NodeId("n1"),
        incarnation=Incarnation(1),
        round=SOLO,
        measurements=dict(measurements),
    )
    known = usual("", history, (), POLICY)
    return judge_round(done, known, {}, POLICY).outcome is SweepOutcome.FAILED


def summary(rounds: dict[str, Rounds]) -> dict[str, Any]:
    """Shares that fail, and why so many."""
    well = rounds["well"]
    metrics = {
        name: {
            **{f"p{n}": getattr(found, f"p{n}") for n in (10, 50, 90)},
            "allowed": allowed(name, found, POLICY.tolerance_of(name)),
            "allowed_by_policy": POLICY.tolerance_of(name),
        }
        for name, found in learned(well).items()
        if name.endswith("_best")
    }
    few = well[:2]  # too few to know their spread: the policy alone
    return {
        "rounds": {name: len(found) for name, found in rounds.items()},
        "metrics": metrics,
        "well_that_fail": _share([fails(m, well[:n] + well[n + 1 :]) for n, m in enumerate(well)]),
        "found": {k: _share([fails(m, well) for m in v]) for k, v in rounds.items() if k != "well"},
        "found_by_policy_alone": {
            k: _share([fails(m, few) for m in v]) for k, v in rounds.items() if k != "well"
        },
        "cores": os.cpu_count(),
    }


def _share(said: Sequence[bool]) -> float:
    return sum(said) / len(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="of each kind that is hurt")
    parser.add_argument("--budget-s", type=float, default=0.5, help="of each probe")
    parser.add_argument(
        "--factor", type=float, nargs="+", default=[1.2], help="how slow hurt nodes are"
    )
    parser.add_argument("--record", type=Path, help="write the rounds there")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rounds = recorded(asked.rounds, asked.budget_s, asked.factor)
    if asked.record is not None:
        asked.record.write_text(json.dumps(rounds) + "\n")
    found = summary(rounds)
    if asked.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        if not isinstance(values, dict):
            print(f"{name:24} {values}")
            continue
        print(name)
        for row, value in values.items():
            print(f"  {row:24} {value}")


if __name__ == "__main__":
    main()

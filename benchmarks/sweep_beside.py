"""What a sweep costs a run on the same machine: step times beside a probe, and without one.

Two ranks train on two cores, as `record_step_times` has them; every few seconds a probe of compute
and memory runs beside them, as an agent starts it, then none. The mean step of both, paired, as a
ratio; goal: below 1.05. In a fleet the swept node is out of the run and only its partner shares.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from worker.sweeper import NICENESS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def one_rank(seconds: float, out: Path) -> None:
    """Train for `seconds`; note when each step ended and how long it took."""
    sys.path.insert(0, str(EXAMPLES))
    import recipe
    from model import loss_of

    parsed = recipe.arguments("a rank").parse_args(["--layers", "2", "--batch", "4"])
    parts = recipe.recipe(parsed, seed=os.getpid())
    ends_at = time.time() + seconds
    lines: list[tuple[float, float]] = []
    while time.time() < ends_at:
        began_s = time.perf_counter()
        inputs, targets = parts.corpus.batch(len(lines), 0, 1)
        loss_of(parts.model(inputs), targets).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        lines.append((time.time(), time.perf_counter() - began_s))
    out.write_text(json.dumps(lines))


def run(rounds: int, span_s: float, niceness: int) -> dict[str, float]:
    """Alternate spans with and without a probe."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"rank{number}" for number in range(2)]
        lasts_s = 2 * rounds * span_s + 8
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(lasts_s), str(out)])
            for out in outs
        ]
        time.sleep(6)  # torch is imported, and the first steps are over
        spans = []
        for number in range(2 * rounds):
            began_s = time.time()
            if number % 2:
                command = ["-m", "worker.probes", "--probe", "compute", "--probe", "memory"]
                command += ["--budget-s", str(span_s / 2), "--nice", str(niceness)]
                subprocess.run(
                    [sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True
                )
            else:
                time.sleep(span_s)
            spans.append((began_s, time.time(), bool(number % 2)))
        for rank in ranks:
            rank.wait()
        steps = [tuple(line) for out in outs for line in json.loads(out.read_text())]
    means: dict[bool, list[float]] = {False: [], True: []}
    for began_s, ended_s, probed in spans:
        taken = [took for at, took in steps if began_s < at <= ended_s]
        if taken:
            means[probed].append(sum(taken) / len(taken))
    ratios = [b / a for a, b in zip(means[False], means[True], strict=False)]
    return {
        "niceness": niceness,
        "step_ms_alone": 1000 * sorted(means[False])[len(means[False]) // 2],
        "step_ms_beside": 1000 * sorted(means[True])[len(means[True]) // 2],
        "ratio_p50": sorted(ratios)[len(ratios) // 2],
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": len(ratios),
    }


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        one_rank(float(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--span-s", type=float, default=3.0)
    parser.add_argument("--niceness", type=int, default=NICENESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = run(asked.rounds, asked.span_s, asked.niceness)
    if asked.json:
        print(json.dumps(found | {"cores": os.cpu_count()}))
        return
    for name, value in found.items():
        print(f"{name:16} {value:10.3f}")


if __name__ == "__main__":
    main()

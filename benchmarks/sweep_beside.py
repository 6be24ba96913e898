"""What a sweep costs a run on the same machine: step times beside a probe, and without one.

Two ranks train on two cores, as `record_step_times` has them; every few seconds a probe of compute
and memory runs beside them, as an agent starts it on a partner in duty, then none. The mean step of
the rank that suffers more, paired, as a ratio; goal: below 1.05. In a fleet the swept node is out
of the run, and its partner alone measures beside it. `--share 1` is how it would be without rests.
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

from worker.sweeper import NICENESS, SHARE_BESIDE

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
STRIDE_STEPS = 20
"""Steps that a rank takes before it is measured."""


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
        if len(lines) == STRIDE_STEPS:
            print("in stride", flush=True)
            ends_at = time.time() + seconds
        began_s = time.perf_counter()
        inputs, targets = parts.corpus.batch(len(lines), 0, 1)
        loss_of(parts.model(inputs), targets).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        lines.append((time.time(), time.perf_counter() - began_s))
    out.write_text(json.dumps(lines))


def run(rounds: int, span_s: float, niceness: int, share: float) -> dict[str, float]:
    """Alternate spans with and without a probe."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"rank{number}" for number in range(2)]
        lasts_s = rounds * (2 * span_s + 2)  # to start a probe takes a while as well
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(lasts_s), str(out)], stdout=subprocess.PIPE
            )
            for out in outs
        ]
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        spans = []
        for number in range(2 * rounds):
            began_s = time.time()
            if number % 2:
                command = ["-m", "worker.probes", "--probe", "compute", "--probe", "memory"]
                command += ["--budget-s", str(span_s / 2), "--nice", str(niceness)]
                command += ["--share", str(share)]
                subprocess.run(
                    [sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True
                )
            else:
                time.sleep(span_s)
            spans.append((began_s, time.time(), bool(number % 2)))
        for rank in ranks:
            rank.wait()
        steps = [[tuple(line) for line in json.loads(out.read_text())] for out in outs]
    means = {
        probed: [_means(steps, began_s, ended_s) for began_s, ended_s, p in spans if p is probed]
        for probed in (False, True)
    }
    pairs = [pair for pair in zip(means[False], means[True], strict=True) if all(map(all, pair))]
    worse = [max(b / a for a, b in zip(*pair, strict=True)) for pair in pairs]
    both = [sum(pair[1]) / sum(pair[0]) for pair in pairs]
    alone = sorted(each for span in means[False] for each in span)
    beside = sorted(each for span in means[True] for each in span)
    return {
        "niceness": niceness,
        "share": share,
        "step_ms_alone": 1000 * alone[len(alone) // 2],
        "step_ms_beside": 1000 * beside[len(beside) // 2],
        "ratio_p50": sorted(both)[len(both) // 2],
        "ratio_of_the_worse_rank_p50": sorted(worse)[len(worse) // 2],
        "ratio_min": min(both),
        "ratio_max": max(both),
        "rounds": len(both),
    }


def _means(steps: list[list[tuple[float, float]]], began_s: float, ended_s: float) -> list[float]:
    """The mean step of each rank between two instants."""
    taken = [[took for at, took in rank if began_s < at <= ended_s] for rank in steps]
    return [sum(each) / max(1, len(each)) for each in taken]


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        one_rank(float(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--span-s", type=float, default=3.0)
    parser.add_argument("--niceness", type=int, default=NICENESS)
    parser.add_argument("--share", type=float, default=SHARE_BESIDE)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = run(asked.rounds, asked.span_s, asked.niceness, asked.share)
    if asked.json:
        print(json.dumps(found | {"cores": os.cpu_count()}))
        return
    for name, value in found.items():
        print(f"{name:16} {value:10.3f}")


if __name__ == "__main__":
    main()

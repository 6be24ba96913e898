"""What a sweep costs a run on the same machine: step times beside a partner's round, and without.

Two ranks train on two cores, as `record_step_times` has them. Beside them a reference round is
measured exactly as an agent measures it on a partner in duty (`worker.sweeper`): started, paced and
judged by the same code, from its first process to its last. Before and after each round are spans
as long without one. Per round and rank: the mean step beside it, as a ratio to the mean of both
neighbours; of the ranks the worse one. The same of spans without a probe is what a machine's noise
makes of such a ratio (`null`): the larger of two is above 1 by itself. Goal: below 1.05. What does
not follow the noise is the processor time that the round's processes took, as a share of the round.

In a fleet the swept node is out of the run and its partner alone measures beside it. `--pair` adds
the second round, a partner's half of a link probe; its other half runs here as well then, which it
does not in a fleet. `--share 1` is how it would be without rests.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from statemachine.events import AnyEvent, SweepRequested, SweepRoundFinished
from statemachine.ids import Incarnation, NodeId, SweepId
from statemachine.sweep import PAIR, REFERENCE
from worker.sweeper import NICENESS, SHARE_BESIDE, SHARE_VARIABLE, ProbePort, Sweeper

EXAMPLES = Path(__file__).parents[1] / "examples"
STRIDE_STEPS = 20
"""Steps that a rank takes before it is measured."""

Span = tuple[float, float]
Steps = list[tuple[float, float]]


def one_rank(out: Path) -> None:
    """Train until the input ends; note when each step ended and how long it took."""
    sys.path.insert(0, str(EXAMPLES))
    import recipe
    from model import loss_of

    parsed = recipe.arguments("a rank").parse_args(["--layers", "2", "--batch", "4"])
    parts = recipe.recipe(parsed, seed=os.getpid())
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    lines: Steps = []
    while not over.is_set():
        if len(lines) == STRIDE_STEPS:
            print("in stride", flush=True)
        began_s = time.perf_counter()
        inputs, targets = parts.corpus.batch(len(lines), 0, 1)
        loss_of(parts.model(inputs), targets).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        lines.append((time.time(), time.perf_counter() - began_s))
    out.write_text(json.dumps(lines))


async def measured(folder: Path, *, pair: bool) -> dict[str, float]:
    """One sweep's rounds as the partner has them, in duty; the numbers that it states."""
    stated: list[AnyEvent] = []
    secret = folder / "secret"
    secret.write_bytes(b"of this benchmark")
    sweeper = Sweeper(stated.append, secret, lambda: True)
    async with ProbePort.open("127.0.0.1", secret, lambda: True) as port:
        sweep = SweepRequested(
            sweep=SweepId(1),
            node=NodeId("n1"),
            incarnation=Incarnation(1),
            rounds=(REFERENCE, PAIR),
            partner=NodeId("n0"),
            partner_host="127.0.0.1",
            partner_port=port.port,
            reason="a benchmark",
        )
        for name in (REFERENCE, PAIR)[: 1 + pair]:
            await sweeper.run(sweep, name)
    found: dict[str, float] = {}
    for finished in stated:
        assert isinstance(finished, SweepRoundFinished)
        assert not finished.failure, finished.failure
        found |= finished.measurements
    return found


def run(for_s: float, *, pair: bool) -> dict[str, object]:
    """Spans without a probe and rounds of one in turns, for so long; the first is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"rank{number}" for number in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(out)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for out in outs
        ]
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        probed: list[Span] = []
        alone: list[Span] = []
        numbers: list[dict[str, float]] = []
        shares: list[float] = []
        ends_s, lasts_s = time.time() + for_s, 0.0
        while not probed or time.time() + 2 * lasts_s < ends_s:
            began_s, used_s = time.time(), _children_s()
            found = anyio.run(lambda: measured(Path(folder), pair=pair))
            lasts_s = time.time() - began_s
            if alone:  # the first round is there to know how long one takes
                probed.append((began_s, began_s + lasts_s))
                numbers.append(found)
                shares.append((_children_s() - used_s) / lasts_s)
            alone.append((time.time(), time.time() + lasts_s))
            time.sleep(lasts_s)
        for rank in ranks:
            rank.communicate()
        steps = [[tuple(line) for line in json.loads(out.read_text())] for out in outs]
    return summary(steps, probed, alone, numbers) | {"cpu_share_p50": statistics.median(shares)}


def _children_s() -> float:
    """Processor time of children that have ended, the ranks not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(
    steps: Sequence[Steps],
    probed: Sequence[Span],
    alone: Sequence[Span],
    numbers: Sequence[dict[str, float]],
) -> dict[str, object]:
    """Ratios of the worse rank, and how far what was measured spreads."""
    beside = [_worse(steps, span, alone[n], alone[n + 1]) for n, span in enumerate(probed)]
    null = [
        _worse(steps, alone[n], alone[n - 1], alone[n + 1]) for n in range(1, len(alone) - 1)
    ] or [1.0]
    both = [_both(steps, span, alone[n], alone[n + 1]) for n, span in enumerate(probed)]
    return {
        "share": float(os.environ[SHARE_VARIABLE]),
        "niceness": NICENESS,
        "rounds": len(probed),
        "round_s_p50": statistics.median(until - since for since, until in probed),
        "step_ms_alone": 1000 * statistics.fmean(_mean(rank, s) for rank in steps for s in alone),
        "ratio_of_both_p50": statistics.median(both),
        "ratio_of_the_worse_rank_p50": statistics.median(beside),
        "ratio_of_the_worse_rank_range": [min(beside), max(beside)],
        "null_of_the_worse_rank_p50": statistics.median(null),
        "null_of_the_worse_rank_range": [min(null), max(null)],
        "measured_beside": {
            name: [min(found), statistics.median(found), max(found)]
            for name in sorted(numbers[0])
            if name.endswith("_best")
            for found in [[each[name] for each in numbers]]
        },
    }


def _mean(rank: Steps, span: Span) -> float:
    """The mean step of a rank between two instants, in seconds."""
    return statistics.fmean(took for at, took in rank if span[0] < at <= span[1])


def _worse(steps: Sequence[Steps], span: Span, before: Span, after: Span) -> float:
    return max(2 * _mean(r, span) / (_mean(r, before) + _mean(r, after)) for r in steps)


def _both(steps: Sequence[Steps], span: Span, before: Span, after: Span) -> float:
    beside = sum(_mean(rank, span) for rank in steps)
    return 2 * beside / sum(_mean(rank, before) + _mean(rank, after) for rank in steps)


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        one_rank(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--for-s", type=float, default=200.0, help="of rounds and of none")
    parser.add_argument("--share", type=float, default=SHARE_BESIDE)
    parser.add_argument("--pair", action="store_true", help="the round with a partner as well")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ[SHARE_VARIABLE] = f"{asked.share:g}"
    found = run(asked.for_s, pair=asked.pair) | {"cores": os.cpu_count()}
    if asked.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        rows = value.items() if isinstance(value, dict) else [(name, value)]
        for row, shown in rows:
            words = shown if isinstance(shown, list) else [shown]
            print(f"{row:30}", " ".join(f"{word:10.3f}" for word in words))


if __name__ == "__main__":
    main()

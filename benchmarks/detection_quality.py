"""How often the detector is wrong, and how soon it is right, on fleets of which the truth is known.

The suite, the faults and the noise are `simulator.grey`'s, which knows nothing of the detector:
step times are resampled from recordings of real training. Per healthy node-day: how many nodes were
acted upon. Of faults of 10 % and more: how many were not acted upon within an hour, and after how
many windows of 30 s the others were. Beside it, on the same windows: the scoring rule of NVRx at
its own threshold and at its best, a z-score, and what Guard published of itself.

With `--json` one object; `--share 0.05` is a quick look. All of it is three million windows of one
node, ten minutes of a core; `--keep FILE` notes each fleet as it is done, and a run that was ended
goes on from there.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from msgspec import convert, to_builtins

from simulator.grey.rivals import RIVALS
from simulator.grey.scoring import (
    Outcome,
    Rates,
    by_severity,
    causes,
    rates,
    rival_rates,
    run,
    scaled,
    table,
)
from simulator.grey.suite import WINDOW_S, Episode, demo_fleets, suite
from statemachine.detector import VERSION
from statemachine.detector_policy import DetectorPolicy

GUARD: Final = {"fpr": 0.124, "fnr": 0.078, "of": "1,000 healthy and 1,000 unhealthy samples"}
"""arXiv 2605.17879, table 3. Per evaluated node; what a sample is, is not published."""

ROC: Final = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""How the policy's thresholds are scaled along the ROC."""

ROC_SHARE: Final = 0.1
ROC_NODES_MAX: Final = 16
"""The ROC walks over a part of the suite: its small fleets, which are the hard ones."""


class Kept:
    """Outcomes of fleets that were played already, in a file of lines; without a path nowhere.

    A file of another seed, detector or policy is refused: its outcomes are not these.
    """

    def __init__(self, path: Path | None, seed: int, share: float) -> None:
        self._path = path
        self._known: dict[str, list[Outcome]] = {}
        head = f"seed {seed}, share {share:g}, {VERSION}, {DetectorPolicy()}"
        if path is None:
            return
        if not path.exists():
            self._write({"head": head})
        first, *lines = path.read_bytes().splitlines()
        if json.loads(first)["head"] != head:
            raise SystemExit(f"--keep {path}: another run's: {first.decode()[:80]}")
        for line in lines:
            found = json.loads(line)
            self._known[found["key"]] = convert(found["outcomes"], list[Outcome])

    def get(self, key: str) -> list[Outcome] | None:
        """What became of a fleet, if that is known."""
        return self._known.get(key)

    def put(self, key: str, outcomes: list[Outcome]) -> None:
        """Note it."""
        if self._path is not None:
            self._write({"key": key, "outcomes": to_builtins(outcomes)})

    def _write(self, line: dict[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _play(
    numbered: tuple[int, Episode], policy: DetectorPolicy, *, rivals: bool
) -> tuple[int, list[Outcome]]:
    return numbered[0], run(numbered[1], policy, rivals=rivals)


def outcomes_of(
    name: str,
    episodes: Sequence[Episode],
    policy: DetectorPolicy,
    processes: int,
    kept: Kept,
    *,
    rivals: bool = True,
) -> list[Outcome]:
    """Play episodes, the largest first, on so many processes; those that are kept are not."""
    found = {n: known for n in range(len(episodes)) if (known := kept.get(f"{name} {n}"))}
    open_ones = [(n, each) for n, each in enumerate(episodes) if n not in found]
    open_ones.sort(key=lambda each: -each[1].spec.nodes * each[1].windows)
    play = partial(_play, policy=policy, rivals=rivals)
    with ExitStack() as stack:
        played: Iterable[tuple[int, list[Outcome]]] = map(play, open_ones)
        if processes > 1:
            pool = multiprocessing.get_context("spawn").Pool(processes)
            played = stack.enter_context(pool).imap_unordered(play, open_ones)
        for number, outcomes in played:
            found[number] = outcomes
            kept.put(f"{name} {number}", outcomes)
            told = f"{name}: {len(found)} of {len(episodes)} fleets"
            print(told, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    return [outcome for number in sorted(found) for outcome in found[number]]


def measured(
    seed: int, share: float, processes: int, kept: Kept, *, with_roc: bool
) -> dict[str, Any]:
    """Everything that is printed."""
    policy = DetectorPolicy()
    began_s = time.perf_counter()
    found = outcomes_of("suite", list(suite(seed, share)), policy, processes, kept)
    demos = list(demo_fleets(seed, share))
    demo = outcomes_of("demo", demos, policy, processes, kept, rivals=False)
    main = rates(found, WINDOW_S)
    roc = roc_of(seed + 1, share * ROC_SHARE, processes, kept) if with_roc else []
    return {
        "fpr_per_node_day": main.fpr_per_node_day,
        "fpr_per_node_day_at_most": main.fpr_at_most,
        "fnr_at_10pct": main.fnr_at_10pct,
        "windows_to_detect_p50": main.windows_to_detect_p50,
        "windows_to_detect_p90": main.windows_to_detect_p90,
        "suite": {
            "seed": seed,
            "share": share,
            "window_s": WINDOW_S,
            "healthy_node_hours": main.healthy_node_hours,
            "faulty_node_hours": main.faulty_node_hours,
            "fleet_sizes": sorted({o.nodes for o in found}),
        },
        "confusion": _confusion(main),
        "by_severity": {name: to_builtins(row) for name, row in by_severity(found).items()},
        "by_size": table(found, "size"),
        "by_kind": table(found, "kind"),
        "missed": _missed(found),
        "cause_named_rightly": causes(found),
        "roc": roc,
        "rivals": {name: _rival(found, name) for name in RIVALS},
        "guard_published": GUARD,
        "demo_noise": {**_pair(rates(demo, 1.0)), "by_size": table(demo, "size")},
        "machine": {"cores": os.cpu_count(), "seconds": time.perf_counter() - began_s},
    }


def roc_of(seed: int, share: float, processes: int, kept: Kept) -> list[dict[str, Any]]:
    """Both errors as the thresholds of the policy are scaled, on small fleets."""
    few = [each for each in suite(seed, share) if each.spec.nodes <= ROC_NODES_MAX]
    points = []
    for by in ROC:
        policy = scaled(DetectorPolicy(), by)
        played = outcomes_of(f"roc {by:g}", few, policy, processes, kept, rivals=False)
        points.append({"scale": by, **_pair(rates(played, WINDOW_S))})
    return points


def _pair(found: Rates) -> dict[str, float | None]:
    return {
        "fpr_per_node_day": found.fpr_per_node_day,
        "fnr_at_10pct": found.fnr_at_10pct,
        "windows_to_detect_p50": found.windows_to_detect_p50,
    }


def _confusion(found: Rates) -> dict[str, int]:
    kept = ("true_positives", "false_negatives", "false_positives", "true_negatives")
    return {name: getattr(found, name) for name in kept}


def _missed(found: Sequence[Outcome]) -> dict[str, str]:
    """What was not found, by kind and size: missed of all."""
    rows: dict[str, list[bool]] = {}
    for outcome in found:
        if outcome.faulty_windows and outcome.size >= 1.1:
            row = rows.setdefault(f"{outcome.kind} {outcome.size:.2f}x", [])
            row.append(outcome.acted_after is None)
    return {name: f"{sum(m)} of {len(m)}" for name, m in sorted(rows.items()) if any(m)}


def _rival(found: Sequence[Outcome], name: str) -> dict[str, Any]:
    """A rival at its own threshold, along its ROC, and where both of its errors are least."""
    own = rival_rates(found, name, RIVALS[name].threshold, WINDOW_S)
    scores = sorted({score for o in found if name in o.rivals for score in o.rivals[name]})
    steps = [scores[len(scores) * k // 60] for k in range(60)]
    roc = [{"threshold": at, **_pair(rival_rates(found, name, at, WINDOW_S))} for at in steps]
    best = min(roc, key=lambda p: max(p["fpr_per_node_day"] or 0, p["fnr_at_10pct"] or 0))
    return {
        "threshold": RIVALS[name].threshold,
        **_pair(own),
        "confusion": _confusion(own),
        "best": best,
        "roc": roc[::6],
    }


def show(found: dict[str, Any]) -> None:
    """Print it for people."""
    hours = found["suite"]
    print(f"suite {hours['seed']}: {hours['healthy_node_hours']:,.0f} healthy node-hours,")
    print(f"{hours['faulty_node_hours']:,.0f} faulty ones; fleets of {hours['fleet_sizes']} nodes")
    print(f"{'':34} {'FPR per node-day':>17} {'FNR at 10 %':>12} {'windows p50':>12}")
    _row("this detector", found)
    for name, rival in found["rivals"].items():
        _row(f"{name} at its own {rival['threshold']:g}", rival)
        _row(f"{name} at its best {rival['best']['threshold']:.3g}", rival["best"])
    at_most = found["fpr_per_node_day_at_most"]
    print(f"{'':34} {f'(at most {at_most:.2%})':>17}")
    print(f"{'Guard, published, per sample':34} {GUARD['fpr']:17.2%} {GUARD['fnr']:12.2%}")
    _row("this detector, demo noise, 4 nodes", found["demo_noise"])
    print(
        f"\n{'faults of':26} {'number':>7} {'seen':>6} {'acted':>6}  windows p50/p90: seen, acted"
    )
    for name, row in found["by_severity"].items():
        after = [
            f"{row[f'windows_to_{what}_p50'] or 0:.0f}/{row[f'windows_to_{what}_p90'] or 0:.0f}"
            for what in ("see", "act")
        ]
        shares = f"{row['seen']:6.0%} {row['acted']:6.0%}"
        print(f"{name:26} {row['faults']:7} {shares}  {', '.join(after)}")
    for title in ("by_size", "by_kind"):
        print(f"\n{title.replace('_', ' ')}:")
        for row, counts in found[title].items():
            print(f"  {row:12} " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print(f"\nmissed: {found['missed'] or 'nothing'}")
    named = ", ".join(f"{kind} {share:.0%}" for kind, share in found["cause_named_rightly"].items())
    print(f"cause named rightly: {named}")
    print("\nROC, thresholds scaled by:")
    for point in found["roc"]:
        _row(f"  {point['scale']:g}", point)
    print(f"\n{found['machine']['seconds']:.0f} s on {found['machine']['cores']} cores")


def _row(name: str, found: dict[str, Any]) -> None:
    fpr, fnr, windows = (
        found.get(key) for key in ("fpr_per_node_day", "fnr_at_10pct", "windows_to_detect_p50")
    )
    said = f"{windows:12.0f}" if windows is not None else f"{'-':>12}"
    print(f"{name:34} {fpr or 0:17.3%} {fnr or 0:12.2%} {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the suite")
    parser.add_argument("--share", type=float, default=1.0, help="of the suite, for a quick look")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="note what is done there, and go on from there")
    parser.add_argument("--no-roc", action="store_true", help="leave the detector's ROC out")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.share <= 0 or asked.processes < 1:
        parser.error("--share must be above 0, --processes at least 1")
    kept = Kept(asked.keep, asked.seed, asked.share)
    found = measured(asked.seed, asked.share, asked.processes, kept, with_roc=not asked.no_roc)
    if asked.json:
        print(json.dumps(to_builtins(found)))
    else:
        show(found)


if __name__ == "__main__":
    main()

"""From a SIGKILL to the first step that a full world committed: Changeover beside its rivals.

Every contender trains the same small transformer on as many ranks; one of them is killed, at any
instant of a step, and a replacement is warm where the contender can use one:

- Changeover, whole: agents, a controller and etcd, as installed. Once the training process is
  killed (the machine lives), once the whole node, which only its peers can notice;
- torchrun, which restarts all from a checkpoint (every 20 steps), with its work-around on;
- torchft (pinned nightly), its lighthouse at a 0.3 s heartbeat, a warm replacement held for it;
- NVRx in-process restart (pinned), one rank in reserve, with an abort for gloo that it has not.

Medians and ranges; the time beyond an ordinary step; steps taken again; where Changeover's time
goes, and how far each phase is from its floor (`rivals/floors.py`). With `--alarms` nobody is
killed: a member is stopped for half a second, again and again, and then the machine is overloaded;
every loss that is declared is a false alarm.

The rivals run in environments of their own below `--rivals` (made if missing, pinned).
"""

import argparse
import contextlib
import functools
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from rivals import changeover, contenders
from rivals.course import Course
from rivals.environments import interpreter

Row = dict[str, float]
PHASES = ("detect", "decide", "prepare", "quiesce", "commit", "transfer", "switch", "first_step")
ALL = ("changeover", "changeover-node", "torchrun", "torchft", "nvrx")
SEED = 11
STALLS, STALL_S, LOAD_S, LOADS = 8, 0.5, 10.0, 6


def measure(name: str, folder: Path, asked: argparse.Namespace) -> list[Row]:
    """One row per kill of a contender."""
    chance = random.Random(SEED)
    rows: list[Row] = []

    common = (folder, asked.ranks, asked.kills, chance)
    if name.startswith("changeover"):
        whole_node = name.endswith("node")
        anyio.run(functools.partial(changeover.kills, *common, rows.append, whole_node=whole_node))
        return rows
    for row in _rival(name, common, asked):
        rows.append(row)
        print(f"  {name}: {row['whole_s']:.3f} s", file=sys.stderr, flush=True)
    return rows


def _rival(name: str, common: Any, asked: argparse.Namespace) -> Iterator[Row]:
    if name == "torchrun":
        return contenders.torchrun(*common)
    python = interpreter(asked.rivals, name)
    if name == "torchft":
        return contenders.torchft(*common, python=python, heartbeat_ms=asked.heartbeat_ms)
    return contenders.nvrx(*common, python=python)


# --- false alarms ---------------------------------------------------------------------------------


@contextmanager
def overloaded(course: Course) -> Iterator[None]:
    """Busy loops beside the run, several for each core."""
    loops = [
        course.start(f"load-{number}", [sys.executable, "-c", "while True: pass"])
        for number in range(LOADS)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def disturb(course: Course, pids: Callable[[], list[int]]) -> None:
    """Stop one member after the other for a moment, then overload the machine."""
    for number in range(STALLS):
        pid = pids()[1 + number % (len(pids()) - 1)]
        _signal(pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        _signal(pid, signal.SIGCONT)
        time.sleep(1.0)
    with overloaded(course):
        time.sleep(LOAD_S)


def _signal(pid: int, number: signal.Signals) -> None:
    import psutil

    psutil.Process(pid).send_signal(number)


async def our_alarms(folder: Path, ranks: int) -> int:
    """Losses that Changeover declares though nobody died."""
    async with changeover.running(folder, ranks) as ours:
        await ours.ready()
        members = [ours.pid_of(ours.holder(slot)) for slot in range(ranks)]
        await anyio.to_thread.run_sync(disturb, ours.course, lambda: members)
        await anyio.sleep(1.0)
        return ours.losses()


def torchft_alarms(folder: Path, asked: argparse.Namespace) -> int:
    """Times that torchft went on without a member though nobody died."""
    python = interpreter(asked.rivals, "torchft")
    with Course(folder) as course:
        groups = contenders.Torchft(course, python, asked.ranks, asked.heartbeat_ms)
        course.until_stride(groups.pids)
        began_s = time.time()
        disturb(course, groups.pids)
        time.sleep(1.0)
        worlds: dict[int, int] = {}
        for one in course.notes():
            if one["at_s"] > began_s:
                worlds[one["step"]] = min(one["world"], worlds.get(one["step"], asked.ranks))
    in_order = [worlds[step] for step in sorted(worlds)]
    return sum(b < a for a, b in itertools.pairwise(in_order))


# --- telling --------------------------------------------------------------------------------------


def middle(rows: list[Row], name: str) -> tuple[float, float, float]:
    """Median, least and most of a column, in milliseconds."""
    took = [row[name] * 1000 for row in rows if name in row]
    return statistics.median(took), min(took), max(took)


def show(found: dict[str, list[Row]], asked: argparse.Namespace) -> None:
    """Print the comparison, and where our own time goes."""
    print(f"{asked.ranks} ranks, {asked.kills} kills each, kill to full world; ms")
    ours = middle(found["changeover"], "whole_s")[0] if "changeover" in found else None
    for name, rows in found.items():
        whole, least, most = middle(rows, "whole_s")
        times = f"  {whole / ours:6.1f} x ours" if ours else ""
        print(
            f"{name:16} {whole:8.0f} [{least:.0f}..{most:.0f}]"
            f"  step {middle(rows, 'step_s')[0]:5.0f}"
            f"  beyond a step {middle(rows, 'beyond_s')[0]:8.0f}"
            f"  steps redone {statistics.median(row['redone'] for row in rows):3.0f}{times}"
        )
    for name in ("changeover", "changeover-node"):
        for phase in PHASES if name in found else ():
            if any(phase in row for row in found[name]):
                took, least, most = middle(found[name], phase)
                floor_ms = middle(found[name], f"floor {phase}")[0] if _has_floor(phase) else 0.0
                line = f"  {name}: {phase:10} {took:7.1f} [{least:.1f}..{most:.1f}]"
                print(f"{line:56} floor {floor_ms:6.1f}")
        if name in found:
            hop_ms = middle(found[name], "floor one hop")[0]
            print(f"  {name}: to the commit and to the end of it, another hop: floor {hop_ms:.1f}")


def _has_floor(phase: str) -> bool:
    """Whether a phase could not be instant: nothing has to be waited for to park or to switch."""
    return phase in {"detect", "prepare", "transfer", "first_step"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", type=Path, help="folder of the rivals' environments")
    parser.add_argument("--only", action="append", choices=ALL, help="these contenders alone")
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--heartbeat-ms", type=int, default=300, help="of torchft's lighthouse")
    parser.add_argument("--folder", type=Path, help="keep what was written here")
    parser.add_argument("--alarms", action="store_true", help="count false alarms instead")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = asked.only or (ALL if asked.rivals else ("changeover", "changeover-node", "torchrun"))
    if asked.rivals is None and {"torchft", "nvrx"} & set(names):
        parser.error("--rivals FOLDER is where the rivals' environments are, or will be made")
    with contextlib.ExitStack() as stack:
        folder = asked.folder or stack.enter_context(tempfile.TemporaryDirectory())
        if asked.alarms:
            alarms = {"changeover": anyio.run(our_alarms, Path(folder) / "ours", asked.ranks)}
            if asked.rivals is not None:
                alarms["torchft"] = torchft_alarms(Path(folder) / "torchft", asked)
            print(json.dumps(alarms) if asked.json else f"false alarms: {alarms}")
            return
        found = {name: measure(name, Path(folder) / name, asked) for name in names}
    if asked.json:
        print(json.dumps(found))
    else:
        show(found, asked)


if __name__ == "__main__":
    main()

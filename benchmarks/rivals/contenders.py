"""How each contender is started, hurt and timed.

Every function yields one row per kill: seconds from the kill to the first step that a full world
committed, an ordinary step before it, and how many steps were taken again.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rivals.course import (
    BENCHMARKS,
    Course,
    Note,
    full_world_at_s,
    kill,
    ordinary_step_s,
    redone,
)

from controlplane.etcd_server import free_port

Row = dict[str, float]
JOBS = BENCHMARKS / "rivals"


def _row(notes: list[Note], killed_at_s: float, full_at_s: float) -> Row:
    step_s = ordinary_step_s(notes, killed_at_s)
    whole_s = full_at_s - killed_at_s
    return {
        "whole_s": whole_s,
        "step_s": step_s,
        "beyond_s": whole_s - step_s,
        "redone": redone(notes, killed_at_s),
    }


def _await_full(
    course: Course, killed_at_s: float, victim: int, ranks: int, within_s: float
) -> Row:
    full_at_s = course.until(
        "a full world has committed a step",
        lambda: full_world_at_s(course, killed_at_s, victim, ranks),
        within_s,
    )
    return _row(course.notes(), killed_at_s, full_at_s)


def torchrun(folder: Path, ranks: int, kills: int, chance: random.Random) -> Iterator[Row]:
    """Torchrun on this interpreter, with the work-around without which 2.13 never comes back."""
    with Course(folder) as course:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
        command += ["--nproc-per-node", str(ranks), "--max-restarts", str(kills + 1)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        course.start("torchrun", [*command, str(JOBS / "torchrun_job.py")], environment)
        members = _members(course, ranks)
        for _ in range(kills):
            course.until_stride(members)
            victim = course.latest(ranks - 1)
            killed_at_s = kill(victim, chance)
            yield _await_full(course, killed_at_s, victim, ranks, 120.0)


def _members(course: Course, ranks: int) -> Callable[[], list[int]]:
    """Who holds the places now; waits until all are held."""

    def all_there() -> bool:
        return len({one["place"] for one in course.notes()}) >= ranks

    course.until("all places are held", all_there, 120.0)
    return lambda: [course.latest(place) for place in range(ranks)]


class Torchft:
    """A lighthouse, replica groups of one process each, and one held warm beside them."""

    def __init__(self, course: Course, python: str, ranks: int, heartbeat_ms: int) -> None:
        self.course, self.python, self.ranks = course, python, ranks
        self.places: list[int] = []
        port = free_port()
        lighthouse = str(Path(python).with_name("torchft_lighthouse"))
        waits = ["--heartbeat_timeout_ms", str(heartbeat_ms), "--join_timeout_ms"]
        waits += [str(heartbeat_ms), "--quorum_tick_ms", "20"]
        bind = ["--min_replicas", "2", "--bind", f"127.0.0.1:{port}"]
        course.start("lighthouse", [lighthouse, *bind, *waits])
        course.environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
        time.sleep(0.5)
        for place in range(ranks):
            self._start(place)
        course.until(
            "all groups train",
            lambda: len({one["pid"] for one in course.notes() if one["world"] == ranks}) >= ranks,
            120.0,
        )

    def _start(self, place: int, held: str = "") -> None:
        environment = {"REPLICA_GROUP_ID": str(place), "RIVALS_HELD": held}
        job = str(JOBS / "torchft_job.py")
        self.course.start(f"group-{place}", [self.python, job], environment)
        self.places.append(place)

    def pids(self) -> list[int]:
        """The members' processes."""
        return [self.course.latest(place) for place in self.places[: self.ranks]]

    def lose_one(self, number: int, chance: random.Random) -> Row:
        """Kill the newest member, and let the held one go at the same instant."""
        place = self.ranks + number
        gate = self.course.folder / f"go-{place}"
        self._start(place, str(gate))
        self.course.until(
            "the held one is warm",
            lambda: any(one["place"] == place for one in self.course.notes("warm")),
            60.0,
        )
        self.course.until_stride(self.pids)
        newest = self.places.pop(self.ranks - 1)  # never the first, whose store the quorum uses
        victim = self.course.latest(newest)
        killed_at_s = kill(victim, chance)
        gate.touch()
        return _await_full(self.course, killed_at_s, victim, self.ranks, 60.0)


def torchft(
    folder: Path,
    ranks: int,
    kills: int,
    chance: random.Random,
    *,
    python: str,
    heartbeat_ms: int,
) -> Iterator[Row]:
    """torchft, its lighthouse as impatient as it bears, with a warm replacement held by us."""
    with Course(folder) as course:
        groups = Torchft(course, python, ranks, heartbeat_ms)
        course.until_stride(groups.pids)
        for number in range(kills):
            yield groups.lose_one(number, chance)
            course.until_stride(groups.pids)


def nvrx(
    folder: Path, ranks: int, kills: int, chance: random.Random, *, python: str
) -> Iterator[Row]:
    """NVRx in-process restart with one rank in reserve: a launch of its own for each kill."""
    for number in range(kills):
        with Course(folder / str(number)) as course:
            course.environment["RIVALS_ACTIVE"] = str(ranks)
            port = free_port()  # and the next one, for the wrapper's own store
            for rank in range(ranks + 1):
                environment = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks + 1),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
                job = str(JOBS / "nvrx_job.py")
                course.start(f"rank-{rank}", [python, job], environment)
            members = _members(course, ranks)
            course.until_stride(members)
            victim = course.latest(ranks - 1)
            killed_at_s = kill(victim, chance)
            yield _await_full(course, killed_at_s, victim, ranks, 60.0)

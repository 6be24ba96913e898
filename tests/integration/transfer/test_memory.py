"""No transfer doubles the model: what both ends take while one takes place, by every way.

Each end is a process of its own; this one looks at them a thousand times a second. What counts is
memory that is theirs alone. Copies that a buddy keeps lie in a folder in memory, once each.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from worker.copies import COPIES, MEMORY, NUMBER_BASE

HERE = Path(__file__).parent
NBYTES = 64 << 20
"""The state; of eight layers, the largest tensor is a sixteenth of it."""

ROOM = 12 << 20
"""What a transfer may take beside: chunks, threads, a header."""

TOLD = {"secret": bytes(range(32)).hex(), "job": "job", "transition": 7, "nbytes": NBYTES}


class End:
    """One end of a transfer."""

    def __init__(self, script: str, told: dict[str, Any]) -> None:
        self.child = subprocess.Popen(
            [sys.executable, str(HERE / script), json.dumps({**TOLD, **told})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"},
        )

    def said(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, f"it ended with {self.child.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def until_ready(self) -> dict[str, Any]:
        """Wait until it has all that it will receive into; what it said before."""
        before: dict[str, Any] = {}
        while not (line := self.said()).get("ready"):
            before |= line
        return before

    def own_bytes(self) -> int:
        """Memory that is resident and its alone."""
        text = Path(f"/proc/{self.child.pid}/status").read_text(encoding="ascii")
        return int(text.partition("RssAnon:")[2].split()[0]) << 10

    def end(self) -> None:
        """Kill it and collect it."""
        self.child.kill()
        self.child.communicate()


def peaks(taker: End, *givers: End) -> tuple[dict[str, Any], list[int]]:
    """Let it take; what it said, and by how much each end grew at its peak."""
    ends = [taker, *givers]
    before = [end.own_bytes() for end in ends]
    most = list(before)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            most[:] = map(max, most, [end.own_bytes() for end in ends])
            time.sleep(0.001)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert taker.child.stdin is not None
        taker.child.stdin.write("go\n")
        taker.child.stdin.flush()
        said = taker.said()
    finally:
        over.set()
        looking.join()
    return said, [now - then for now, then in zip(most, before, strict=True)]


@contextmanager
def ends() -> Iterator[Any]:
    """Start ends; they end with the block."""
    running: list[End] = []

    def start(script: str, **told: Any) -> End:
        running.append(End(script, told))
        return running[-1]

    try:
        yield start
    finally:
        for end in running:
            end.end()


@pytest.mark.parametrize(
    ("count", "locally"),
    [
        pytest.param(1, False, id="leaver, by the network"),
        pytest.param(2, True, id="replicas, on one machine"),
        pytest.param(1, True, id="leaver, on one machine", marks=pytest.mark.soak),
        pytest.param(2, False, id="replicas, by the network", marks=pytest.mark.soak),
    ],
)
def test_a_transfer_takes_no_second_copy_at_either_end(count: int, locally: bool) -> None:
    """Giver and taker of a state grow by little beside the tensors that they have."""
    with ends() as start:
        nodes = [f"n{number}" for number in range(count)]
        givers = [
            start("source_process.py", me=[node, 1], joiners=[["n9", 3]], seed=1) for node in nodes
        ]
        said = [giver.said() for giver in givers]
        ports = list(zip(nodes, [one["port"] for one in said], strict=True))
        taker = start("receiver_process.py", way="sources", sources=ports, locally=locally)
        taker.until_ready()
        got, grown = peaks(taker, *givers)

    assert got["digest"] == said[0]["digest"]
    assert max(grown) < ROOM, grown


def test_a_buddys_copy_is_in_memory_once_at_each_end() -> None:
    """On its way from the holder to its buddy, and back into a model, a copy takes the place where
    it is kept and no more.
    """
    folder = MEMORY / f"changeover-test-{time.time_ns()}"
    try:
        with ends() as start:
            holder = start("receiver_process.py", way="lender", folder=str(folder / "n0"))
            said = holder.until_ready()
            buddy = start(
                "receiver_process.py", way="to buddy", folder=str(folder / "n1"), port=said["port"]
            )
            buddy.until_ready()
            got, there = peaks(buddy, holder)
            number = NUMBER_BASE + 1 % COPIES
            told = {"folder": str(folder / "n2"), "port": said["port"], "number": number}
            joiner = start("receiver_process.py", way="from buddy", **told)
            joiner.until_ready()
            back, again = peaks(joiner, holder)
        kept = [path.stat().st_size for path in (folder / "n1").iterdir()]
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)

    assert got["digest"] == back["digest"] == said["digest"]
    assert max(*there, *again) < ROOM, (there, again)
    assert len(kept) == 1
    assert NBYTES <= kept[0] < NBYTES + ROOM


def test_a_checkpoint_is_read_into_the_model_tensor_by_tensor(tmp_path: Path) -> None:
    """Going on from the disk takes one tensor's memory beside the model, not the model's."""
    with ends() as start:
        said = start("receiver_process.py", way="writer", folder=str(tmp_path)).until_ready()
        taker = start("receiver_process.py", way="disk", folder=str(tmp_path))
        taker.until_ready()
        got, grown = peaks(taker)

    assert got["digest"] == said["digest"]
    assert grown[0] < NBYTES // 2, grown

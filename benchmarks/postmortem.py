"""How long a log of a million events takes to read after the fact, and how much memory.

The log is what a controller would have written about one loss after another on a fleet of so many
nodes, decided by the core itself; it is written to a file, and each verb is run on that file as a
process of its own. Peers: `at` with an index against `at` by folding, and each against reading the
file and decoding it, which nobody can do without.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from fold_rate import STANDBYS, Story, ready

from controlplane.postmortem.index import index_path
from statemachine import events as e
from statemachine.checksums import with_checksum
from statemachine.codec import decode_recorded, encode_recorded
from statemachine.ids import Incarnation, NodeId
from statemachine.lifecycle import NodeState

VERBS = {
    "replay": ("replay", "LOG", "--json"),
    "timeline": ("timeline", "LOG", "--json"),
    "at, first time": ("at", "LOG", "MIDDLE", "--json"),
    "at, indexed": ("at", "LOG", "LATE", "--json"),
    "diff, indexed": ("diff", "LOG", "MIDDLE", "LATE", "--json"),
    "trace": ("trace", "LOG", "TRACE", "--force"),
}


class Lives(Story):
    """A log in which nodes come again: each answers for the life that it has."""

    def tell(self, event: e.AnyEvent) -> None:
        """Enter a fact for the present life of whoever states it."""
        node = self.state.nodes.get(getattr(event, "node", NodeId("")))
        if node is not None and not isinstance(event, e.NodeJoined):
            event = msgspec.structs.replace(event, incarnation=node.incarnation)
        super().tell(event)

    def come_again(self, name: NodeId) -> None:
        """A lost node joins anew, and rehearses."""
        life = Incarnation(self.state.nodes[name].incarnation + 1)
        self.tell(e.NodeJoined(node=name, incarnation=life, host="10.0.0.1", ranks=8))
        self.say(ready(name))
        self.rehearse()


def told(nodes: int, events: int) -> Iterator[bytes]:
    """A log of at least so many events: nodes are lost one by one, and join anew."""
    story = Lives(nodes)
    names = [NodeId(f"n{number:05d}") for number in range(nodes)]
    for name in itertools.cycle(names):
        yield from map(encode_recorded, story.log)
        story.log.clear()
        if story.state.position >= events:
            return
        story.at_ms += 5_000
        if story.state.nodes[name].state is NodeState.ACTIVE:
            story.lose(name)
            story.come_again(name)


def timed(arguments: list[str]) -> tuple[float, float, float]:
    """Run a verb; its wall and CPU time in seconds, and its peak of memory in MiB."""
    began_s = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "controlplane", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    took_s = time.perf_counter() - began_s
    child.returncode = os.waitstatus_to_exitcode(status)
    assert not child.returncode, f"{arguments} ended with {child.returncode}"
    return took_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print times, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64 + STANDBYS)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--log", type=Path, help="keep the log here, or use the one that is there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = given.log or Path(folder) / "log.jsonl"
        if not log.is_file():
            with log.open("wb") as file:
                file.writelines(
                    with_checksum(raw) + b"\n" for raw in told(given.nodes, given.events)
                )
        found = measured(log, Path(folder))
    if given.json:
        print(json.dumps(found))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}; {found['events']:,} events")
    for name, (took_s, cpu_s, mib) in found["verbs"].items():
        ratio = f"{cpu_s / found['decode_s']:6.2f}x reading and decoding"
        print(f"  {name:<16}{took_s:8.2f} s  {cpu_s:8.2f} s CPU  {ratio}  {mib:7.0f} MiB")


def measured(log: Path, folder: Path) -> dict[str, Any]:
    """Every verb on one log."""
    index_path(log).unlink(missing_ok=True)
    began_s = time.process_time()
    with log.open("rb") as file:
        count = sum(map(bool, map(decode_recorded, file)))
    decode_s = time.process_time() - began_s
    places = {
        "LOG": str(log),
        "TRACE": str(folder / "trace.json"),
        "MIDDLE": str(count // 2),
        "LATE": str(count - 7),
    }
    verbs = {
        name: timed([places.get(word, word) for word in words]) for name, words in VERBS.items()
    }
    index_path(log).unlink(missing_ok=True)
    return {"events": count, "decode_s": decode_s, "verbs": verbs}


if __name__ == "__main__":
    main()

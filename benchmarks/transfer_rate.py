"""State transfer against the raw socket: what sealing, chunking and proving cost.

Processes on loopback, each way in turn, many rounds, medians and ratios from the same run:

raw       `sendall` of the whole buffer in 1 MiB spans, `recv_into` memory that exists already (TCP)
network   `TransferServer.offer` and `fetch` over TCP into memory that exists already (set-up
          included), as between machines; network2 from two sources at once
ours      the same as it goes between processes of one machine; striped from two sources
torchft   its HTTP transport, in one piece and in eight (with --rivals, where its environment is)

The sending side is a process of its own for each source. On a machine with other work the median
says how busy it was; `best` is the fastest round, and `cpu` is processor time per GiB, sending and
receiving side, which does not depend on who else runs.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rivals.environments import interpreter

from worker.transfer import (
    Party,
    Source,
    StateImage,
    TensorSpec,
    TensorView,
    TransferServer,
    fetch,
)

SECRET = bytes(range(32))
JOINER = Party("joiner", 1)
SPAN = 1 << 20
ALL_RIVALS_MIB = 512
"""Above, one of torchft's variants runs: each holds three copies of the state."""


def image_of(nbytes: int) -> StateImage:
    """Eight tensors of random bytes; the same in every process."""
    block = memoryview(bytearray(torch.randint(0, 256, (nbytes // 8,), dtype=torch.uint8).numpy()))
    return StateImage(
        tuple(
            TensorView(TensorSpec(f"t{at}", "U8", (len(block),)), memoryview(bytearray(block)))
            for at in range(8)
        )
    )


def source(nbytes: int, node: str) -> None:
    """The sending process: obeys one line of JSON after the other."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    image = image_of(nbytes)
    server = TransferServer(secret=SECRET, job="bench", me=Party(node, 1))
    raw = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": server.address[1], "raw": raw.getsockname()[1]}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        cpu_before_s = time.process_time()
        if told["way"] == "raw":
            with raw.accept()[0] as sock:
                sock.recv(1)
                for view in image.tensors:
                    for at in range(0, len(view.memory), SPAN):
                        sock.sendall(view.memory[at : at + SPAN])
        else:
            with server.offer(told["round"], JOINER, image) as offer:
                print(json.dumps({"offered": told["round"]}), flush=True)
                offer.wait(60)
        print(json.dumps({"cpu_s": time.process_time() - cpu_before_s}), flush=True)
    server.close()


class Peer:
    """A sending process as seen from the receiving one."""

    def __init__(self, nbytes: int, node: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--source", node, "--bytes", str(nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self.child.stdout is not None
        told = json.loads(self.child.stdout.readline())
        self.raw_port = told["raw"]
        self.source = Source("127.0.0.1", told["port"], Party(node, 1))

    def tell(self, way: str, number: int) -> None:
        """Make it send, in one way."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps({"way": way, "round": number}) + "\n")
        self.child.stdin.flush()
        if way != "raw":
            self.child.stdout.readline()

    def cpu_s(self) -> float:
        """Processor time that it took for what it was told last; waits until it is done."""
        assert self.child.stdout is not None
        return float(json.loads(self.child.stdout.readline())["cpu_s"])

    def end(self) -> None:
        """Let it go."""
        self.child.communicate()


def raw_s(peer: Peer, into: StateImage, number: int) -> float:
    """Seconds for the plain socket."""
    peer.tell("raw", number)
    with socket.create_connection(("127.0.0.1", peer.raw_port)) as sock:
        started = time.perf_counter()
        sock.send(b"x")
        for view in into.tensors:
            got, total = 0, len(view.memory)
            while got < total:
                got += sock.recv_into(view.memory[got : got + SPAN], 0, socket.MSG_WAITALL)
        return time.perf_counter() - started


def ours_s(peers: list[Peer], into: StateImage, number: int, *, locally: bool) -> float:
    """Seconds for a sealed transfer from one or several sources."""
    for peer in peers:
        peer.tell("ours", number)
    report = fetch(
        [replace(peer.source, locally=locally) for peer in peers],
        secret=SECRET,
        job="bench",
        transition=number,
        joiner=JOINER,
        into=replace(into),
    )
    return report.seconds


class Torchft:
    """torchft's receiving process, which has its sending process beside it."""

    def __init__(self, python: str, nbytes: int, chunks: int) -> None:
        script = Path(__file__).parent / "parts" / "torchft_transfer.py"
        self.child = subprocess.Popen(
            [python, str(script), "--bytes", str(nbytes), "--chunks", str(chunks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a line per request
            text=True,
        )
        assert self.child.stdout is not None
        if not self.child.stdout.readline():
            sys.exit(f"transfer_rate.py: torchft does not start under {python}")

    def round(self) -> "Round":
        """One transfer."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("go\n")
        self.child.stdin.flush()
        told = json.loads(self.child.stdout.readline())
        assert told["whole"], "torchft's state did not arrive whole"
        return Round(told["seconds"], told["sender_cpu_s"], told["own_cpu_s"])

    def end(self) -> None:
        """Let it go."""
        self.child.communicate()


def sealed(peers: list[Peer], into: StateImage, place: int, locally: bool, number: int) -> float:
    """One of our ways; each has transfers of its own numbers."""
    return ours_s(peers, into, 4 * number + place, locally=locally)


def main() -> None:
    parser = argparse.ArgumentParser(description="State transfer against the raw socket.")
    parser.add_argument("--rivals", type=Path, help="folder of the rivals' environments")
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.source:
        source(args.bytes, args.source)
        return
    torch.set_num_threads(1)
    for mib in args.mib:
        python = interpreter(args.rivals, "torchft") if args.rivals else None
        measure(mib, args.rounds, python, as_json=args.json)


def measure(mib: int, rounds: int, python: str | None, *, as_json: bool) -> None:
    nbytes = mib << 20
    torch.manual_seed(0)
    into = image_of(nbytes)
    expected = into.digest()
    for view in into.tensors:
        view.memory[:] = bytes(len(view.memory))
    peers = [Peer(nbytes, "one"), Peer(nbytes, "two")]
    ways: dict[str, tuple[list[Peer], Callable[[int], float]]] = {
        "raw": (peers[:1], lambda number: raw_s(peers[0], into, number)),
    }
    for place, (name, used, locally) in enumerate(
        [
            ("network", peers[:1], False),
            ("network2", peers, False),
            ("ours", peers[:1], True),
            ("striped", peers, True),
        ]
    ):
        ways[name] = (used, partial(sealed, used, into, place, locally))
    chunks = (0, 8) if mib <= ALL_RIVALS_MIB else (0,)
    rivals = {f"torchft{n or ''}": Torchft(python, nbytes, n) for n in chunks if python}
    print(f"{mib} MiB: {', '.join([*ways, *rivals])}", file=sys.stderr)
    found: dict[str, list[Round]] = {way: [] for way in (*ways, *rivals)}
    for number in range(rounds):
        for way, (used, go) in ways.items():
            cpu_before_s = time.process_time()
            seconds = go(number)
            own_cpu_s = time.process_time() - cpu_before_s
            found[way].append(Round(seconds, sum(peer.cpu_s() for peer in used), own_cpu_s))
        for name, rival in rivals.items():
            found[name].append(rival.round())
    for peer in peers:
        peer.end()
    for rival in rivals.values():
        rival.end()
    tell(mib, found, whole=into.digest() == expected, as_json=as_json)


@dataclass(frozen=True)
class Round:
    """Seconds of one round: by the clock, and of processor on the sending and receiving side."""

    seconds: float
    sender_cpu_s: float
    receiver_cpu_s: float


def tell(mib: int, found: dict[str, list[Round]], *, whole: bool, as_json: bool) -> None:
    gb, gib = (mib << 20) / 1e9, mib / 1024
    told: dict[str, dict[str, float]] = {}
    for way, each in found.items():
        told[way] = {
            "median_gb_per_s": gb / statistics.median(one.seconds for one in each),
            "best_gb_per_s": gb / min(one.seconds for one in each),
            "sender_cpu_s_per_gib": statistics.median(one.sender_cpu_s for one in each) / gib,
            "receiver_cpu_s_per_gib": statistics.median(one.receiver_cpu_s for one in each) / gib,
        }
    if as_json:
        print(json.dumps({"mib": mib, "whole": whole, **told}))
        return
    for way, row in told.items():
        median, best = row["median_gb_per_s"], row["best_gb_per_s"]
        print(
            f"{mib:5} MiB  {way:9} median {median:5.2f} GB/s"
            f" ({median / told['raw']['median_gb_per_s']:4.0%} of raw)"
            f"  best {best:5.2f} ({best / told['raw']['best_gb_per_s']:4.0%})"
            f"  cpu {row['sender_cpu_s_per_gib']:.2f} + {row['receiver_cpu_s_per_gib']:.2f} s/GiB"
        )
    print(f"{'':11}the last image is whole: {whole}")


if __name__ == "__main__":
    main()

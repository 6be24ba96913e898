"""State transfer against the raw socket: what sealing, chunking and proving cost.

Two processes on loopback, three ways in turn, many rounds, medians and ratios from the same run:

raw      `sendall` of the whole buffer in 1 MiB spans, `recv_into` memory that exists already
ours     `TransferServer.offer` and `fetch` into memory that exists already (set-up included)
striped  `fetch` from two sources at once

The sending side is a process of its own for each source. Both ends share the machine's processors,
so on two cores the cost of sealing shows in full; with a core to spare per side it does not.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import torch

from worker.transfer import (
    Party,
    Source,
    StateImage,
    TensorSpec,
    TensorView,
    TransferServer,
    fetch,
    seal,
)

SECRET = bytes(range(32))
JOINER = Party("joiner", 1)
SPAN = 1 << 20


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


def ours_s(peers: list[Peer], into: StateImage, number: int) -> float:
    """Seconds for a sealed transfer from one or several sources."""
    for peer in peers:
        peer.tell("ours", number)
    report = fetch(
        [peer.source for peer in peers],
        secret=SECRET,
        job="bench",
        transition=number,
        joiner=JOINER,
        into=replace(into),
    )
    return report.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="State transfer against the raw socket.")
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
        measure(mib, args.rounds, as_json=args.json)


def measure(mib: int, rounds: int, *, as_json: bool) -> None:
    nbytes = mib << 20
    torch.manual_seed(0)
    into = image_of(nbytes)
    expected = into.digest()
    for view in into.tensors:
        view.memory[:] = bytes(len(view.memory))
    peers = [Peer(nbytes, "one"), Peer(nbytes, "two")]
    taken: dict[str, list[float]] = {"raw": [], "ours": [], "striped": []}
    for number in range(rounds):
        taken["raw"].append(raw_s(peers[0], into, number))
        taken["ours"].append(ours_s(peers[:1], into, 2 * number))
        taken["striped"].append(ours_s(peers, into, 2 * number + 1))
    for peer in peers:
        peer.end()
    rates = {way: [nbytes / each / 1e9 for each in times] for way, times in taken.items()}
    medians = {way: statistics.median(each) for way, each in rates.items()}
    ratio = medians["ours"] / medians["raw"]
    if as_json:
        told = {"mib": mib, "gb_per_s": rates, "ratio": ratio, "seal": seal.algorithms()[0]}
        print(json.dumps(told))
        return
    for way, each in rates.items():
        spread = f"{min(each):.2f}..{max(each):.2f}"
        print(f"{mib:5} MiB  {way:8} {medians[way]:5.2f} GB/s [{spread}]", end="")
        print(f"  {medians[way] / medians['raw']:4.0%} of raw")
    print(f"{'':10} seal {seal.algorithms()[0]}; last image whole: {into.digest() == expected}")


if __name__ == "__main__":
    main()

"""The pipeline of the examples, with what tests do to it: slow steps, and rehearsals that fail.

A fault is named by a file in the run's folder, so that a test chooses node and moment: it takes
place in the middle of a rehearsed step, after the answers of the other stages have come in.
"""

import argparse
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from corpus import Corpus
from model import Shape
from train_pipeline import Parts, Pipeline

import worker
from worker.roles import PRIMING_STEPS

SHAPE = Shape(context=16, layers=3, heads=2, width=32, tied=False)


def fault_file(folder: Path, node: str, when: str = "rehearsal") -> Path:
    """Where a fault of a node's rehearsals is named, or of its priming."""
    return folder / f"{node}.{when}-fault"


class Faulty:
    """Does to a rehearsed step what a test asks for."""

    def __init__(self, run: worker.Run, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.hoard: list[Any] = []
        self.primed = 0

    def meet(self, parts: Parts) -> None:
        """Meet the fault that is named, if one is, for before or after it said that it is ready."""
        self.primed += 1
        when = "priming" if self.primed <= PRIMING_STEPS else "rehearsal"
        path = fault_file(self.folder, self.run.node, when)
        kind = path.read_text() if path.exists() else ""
        match kind:
            case "nan":
                next(parts.stage.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
            case "assert":
                assert parts.stage is None, "activations out of range"
            case "raise":
                raise RuntimeError("device-side failure")
            case "hang":
                signal.pause()
            case "memory":
                while True:  # until somebody stops it
                    self.hoard.append(torch.ones(1 << 22))
                    time.sleep(0.01)
            case "socket":  # a leak, to see that the tests would see one
                there = socket.create_server(("127.0.0.1", 0))
                here = socket.create_connection(there.getsockname())
                here.sendall(b"x")
                self.hoard += [there, here]
            case "datagram":
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.sendto(b"x", ("127.0.0.1", 9))
            case "file":
                (self.folder / f"{self.run.node}.leak").write_text("x")
            case _:
                pass


class Traffic:
    """Counts what all TCP connections of this process have carried, and which files it wrote to;
    where it is `alone` in its network, whatever was sent there by anybody, too.
    """

    def __init__(self, folder: Path, node: str, *, alone: bool) -> None:
        self.path, self.alone = folder / f"{node}.traffic", alone
        self.written: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, told: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(told[2], int) and told[2] & 3  # WRONLY or RDWR
        if writes and str(told[0]) != str(self.path):
            self.written.append(str(told[0]))

    def note(self, *, rehearsal: bool, **state: Any) -> None:
        """Append what was carried and written so far."""
        written = len(self.written)
        line = {"rehearsal": rehearsal, "sockets": tcp_bytes(), "written": written, **state}
        if self.alone:
            line["packets"] = packets_sent()
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def tcp_bytes() -> dict[str, int]:
    """Bytes sent and received by each TCP connection of this process, by its two ends."""
    found: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not entry.readlink().name.startswith("socket:"):
                continue
            sock = socket.socket(fileno=socket.dup(int(entry.name)))
        except OSError:
            continue
        with sock:
            if sock.family != socket.AF_INET or sock.type != socket.SOCK_STREAM:
                continue
            try:
                ends = f"{sock.getsockname()}-{sock.getpeername()}"
            except OSError:
                continue  # it listens
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            acked = int.from_bytes(info[120:128], "little")
            received = int.from_bytes(info[128:136], "little")
            sent = int.from_bytes(info[200:208], "little") if len(info) >= 208 else acked
            found[ends] = sent + received
    return found


def packets_sent() -> dict[str, int]:
    """Segments with data, connections begun and datagrams sent in this network namespace ever."""
    found = {}
    for name in ("snmp", "snmp6", "netstat"):
        before: list[str] = []
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines():
            words = line.split()
            if name == "snmp6":
                found[words[0]] = int(words[1])
                continue
            if before and before[0] == words[0]:
                pairs = zip(before[1:], words[1:], strict=True)
                found |= {words[0] + key: int(value) for key, value in pairs}
            before = words
    told = ("TcpExt:TCPOrigDataSent", "Tcp:ActiveOpens", "Udp:OutDatagrams", "Udp6OutDatagrams")
    return {name: found[name] for name in told}


def main() -> None:
    """Train a pipeline."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cache", type=Path, help="of compiled code; else gone with the fleet")
    parser.add_argument("--width", type=int, default=SHAPE.width)
    parser.add_argument("--traffic", action="store_true")
    parser.add_argument("--checkpoint", type=int, default=0, metavar="STEPS")
    parser.add_argument("--copy", type=int, default=0, metavar="STEPS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.compile:  # one cache for the fleet, gone with its folder
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(args.cache or args.out / "inductor"))
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    run = worker.join()
    corpus = Corpus(bytes(range(256)) * 64, batch=4, context=SHAPE.context, seed=run.seed)
    pipeline = Pipeline(run, replace(SHAPE, width=args.width), corpus, 2)
    parts = run.per_role(lambda: pipeline.build(1e-2, compiled=args.compile))
    if args.checkpoint:
        copies = args.out / "memory" / run.node if args.copy else None
        run.checkpoint(
            args.out / "checkpoints", every=args.checkpoint, copy_every=args.copy, memory=copies
        )
    alone = (args.out / f"{run.node}.alone").exists()
    faulty, traffic = Faulty(run, args.out), Traffic(args.out, run.node, alone=alone)
    save = run.outside(lambda step: (args.out / f"{run.node}.checkpoint").write_text(str(step)))
    hurry = args.out / "hurry"
    for step in run.steps(args.steps):
        now = parts()
        if args.traffic:
            traffic.note(rehearsal=step.rehearsal, at="begin", role=now.stage.cut.stage)
        loss = pipeline.step(step.index, now)
        if step.rehearsal:
            faulty.meet(now)
        elif args.slow_ms and not hurry.exists():
            time.sleep(args.slow_ms / 1000)
        if step.vote():
            now.optimizer.step()
            save(step.index)
        now.gradients.zero_()
        if loss is not None:
            step.record(loss=loss)
        if args.traffic:
            traffic.note(rehearsal=step.rehearsal, at="end", role=now.stage.cut.stage)


if __name__ == "__main__":
    main()

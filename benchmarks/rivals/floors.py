"""What each phase costs at least on this machine, measured beside the phases themselves.

What belongs here: the cheapest thing that could do what a phase does, on an idle machine: a wake-up
for a death, a write and its watch for a hop through the store, a bare copy for a transfer. What a
phase really took is the log's to say.
"""

import os
import signal
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import anyio

from controlplane.eventlog import Store
from controlplane.eventlog.store import Put
from worker.groups.links import LinkEndpoint
from worker.groups.port import Channel, GroupPlan, Member
from worker.supervise import TrainingProcess

TRIES = 9
_HOLDS = """
from statemachine import messages as m
from worker.channel import WorkerChannel
import threading
channel = WorkerChannel.from_environment()
channel.send(m.Parked(transition=1))
threading.Event().wait()
"""


async def floors(store: Store, folder: Path, nbytes: int, step_s: float) -> dict[str, float]:
    """The floor of each phase in seconds; `nbytes` of state, and an ordinary step."""
    hop_s = await _hop_s(store)
    link_s = await anyio.to_thread.run_sync(_link_s)
    return {
        "detect": await _death_s(folder) + hop_s,
        "prepare": 2 * hop_s + link_s,
        "transfer": await anyio.to_thread.run_sync(_copy_s, nbytes),
        "first_step": step_s,
        "one hop": hop_s,
    }


async def _hop_s(store: Store) -> float:
    """A write, until another client's watch of it has been told."""
    key, took = b"floors", []
    first = await store.txn((), (Put(key, b""),))
    async with store.watch(key, b"", first.revision + 1) as batches:
        for number in range(5 * TRIES):
            began_s = time.perf_counter()
            await store.txn((), (Put(key, b"%d" % number),))
            await anext(batches)
            took.append(time.perf_counter() - began_s)
    return statistics.median(took)


async def _death_s(folder: Path) -> float:
    """From a SIGKILL until the agent's end knows."""
    took = []
    path = os.pathsep.join(map(str, (Path(__file__).parents[2],)))
    for _ in range(TRIES):
        process = await TrainingProcess.start(
            [sys.executable, "-c", _HOLDS],
            log_path=folder / "floors.log",
            environment={"PYTHONPATH": path},
        )
        await process.channel.receive()
        process.arm()
        began_s = time.perf_counter()
        os.kill(process.child.pid, signal.SIGKILL)
        await process.ending()
        took.append(time.perf_counter() - began_s)
        await process.child.wait()
        process.channel.close()
    return statistics.median(took)


def _link_s() -> float:
    """An authenticated link, both of its connections."""
    secret = b"0" * 16
    ends = [LinkEndpoint("j", f"n{number}", 1, secret) for number in range(2)]
    members = tuple(Member(n, n, f"n{n}", 1, *end.address) for n, end in enumerate(ends))
    took = []
    try:
        for number in range(TRIES):
            plan = GroupPlan(f"g{number}", "j", 1, 1, 0, members)
            began_s = time.perf_counter()
            ends[0].ensure(plan, [1], Channel.COLLECTIVE, 5.0)
            took.append(time.perf_counter() - began_s)
    finally:
        for end in ends:
            end.close()
    return statistics.median(took)


def _copy_s(nbytes: int) -> float:
    """So many bytes through a local socket, from one thread to another, and nothing else."""
    payload, into = bytes(nbytes), bytearray(nbytes)
    took = []
    for _ in range(TRIES):
        here, there = socket.socketpair()
        with here, there:
            began_s = time.perf_counter()
            sender = threading.Thread(target=here.sendall, args=(payload,))
            sender.start()
            got, view = 0, memoryview(into)
            while got < nbytes:
                got += there.recv_into(view[got:])
            took.append(time.perf_counter() - began_s)
            sender.join()
    return statistics.median(took)

"""NVRx's part: in-process restart with one rank in reserve.

Its own abort asks for NCCL and leaves a rank blocked in gloo until the group's timeout, a minute;
the abort here half-closes gloo's connections instead, and every interval is as short as it bears:
the rival as it could be, not as it is shipped.
"""

import contextlib
import os
import socket
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as torch_distributed
from nvidia_resiliency_ext import inprocess
from rivals.job import Notes, average, built, checkpoint, loss_of, restored

dist: Any = torch_distributed  # whose stubs leave out what every program uses
ACTIVE = int(os.environ["RIVALS_ACTIVE"])
PORT = int(os.environ["MASTER_PORT"])
notes = Notes(int(os.environ["RANK"]))


def _end_connections() -> None:
    """Half-close every connection that is not one of a store."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                ends = (one.getpeername(), one.getsockname())
                if all(isinstance(end, tuple) and end[1] not in {PORT, PORT + 1} for end in ends):
                    one.shutdown(socket.SHUT_RDWR)


class EndConnections(inprocess.abort.Abort):  # type: ignore[misc]
    """Get every rank out of gloo."""

    def __call__(self, state: Any) -> Any:
        """Do it, and drop the group."""
        _end_connections()
        if dist.is_initialized():
            dist.destroy_process_group()
        return state


def train(call_wrapper: inprocess.CallWrapper | None = None) -> None:
    """Train from the last checkpoint; called anew after each fault, with what its type asks for."""
    assert call_wrapper is not None
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = call_wrapper.iteration
    with call_wrapper.atomic():
        store = dist.TCPStore(
            "127.0.0.1",
            PORT,
            None,
            rank == 0 and attempt == 0,
            timeout=timedelta(seconds=60),
            wait_for_workers=False,
            multi_tenant=True,
        )
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(str(attempt), store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
    model, optimizer = built()
    step = restored(model, optimizer)
    while True:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        average(model, world, dist.all_reduce)
        optimizer.step()
        notes.note("step", step=step, attempt=attempt)
        step += 1
        if rank == 0:
            with call_wrapper.atomic():
                checkpoint(model, optimizer, step)


def main() -> None:
    short = timedelta(milliseconds=100)
    logs = Path(os.environ["RIVALS_CHECKPOINT"]).parent / "monitor-{rank}.log"
    inprocess.Wrapper(
        store_kwargs={"timeout": timedelta(seconds=60), "port": PORT + 1},
        abort=EndConnections(),
        health_check=None,
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(ACTIVE),
            inprocess.rank_assignment.ShiftRanks(),
        ),
        monitor_thread_interval=short,
        monitor_process_interval=short,
        heartbeat_interval=2 * short,
        heartbeat_timeout=timedelta(seconds=5),
        progress_watchdog_interval=2 * short,
        soft_timeout=timedelta(seconds=8),
        hard_timeout=timedelta(seconds=12),
        barrier_timeout=timedelta(seconds=20),
        completion_timeout=timedelta(seconds=20),
        last_call_wait=short,
        termination_grace_time=5 * short,
        monitor_process_logfile=str(logs),
    )(train)()  # the wrapper puts itself where a parameter has its type


if __name__ == "__main__":
    main()

"""The same model and data under plain torchrun: gloo, checkpoints, and a restart when a rank dies.

What Changeover is measured against: steady step time, and what a lost worker costs. Run it with

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1 --nproc-per-node 4 --max-restarts 3 \
        --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 \
        examples/train_plain.py --checkpoint /tmp/plain.pt --events /tmp/plain.jsonl

and SIGKILL one of the pids in the events file. (Without that variable the restarted ranks of torch
2.13 meet stale addresses in the agent's store and never come together.)

Each rank appends one line of JSON per event to `--events`, times in seconds since 1970:
`started` (pid, restart), `resumed` (step), then per step `step` (index, step_ms, loss).
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import loss_of
from recipe import Recipe, arguments, parsed, recipe
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for `--steps` steps, from the last checkpoint if there is one."""
    parser = arguments("Train under plain torchrun, with checkpoints.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to keep the last in")
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--events", type=Path, required=True, help="file to append JSON lines to")
    parser.add_argument(
        "--micro", type=int, help="taken from train_pipeline.py; means nothing here"
    )
    parser.add_argument("--compile", action="store_true", help="likewise")
    args = parsed(parser)
    rank, events = int(os.environ["RANK"]), Events(args.events)
    events.note("started", restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    parts = recipe(args, args.seed)
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(parts.model)
    first = resume(parts, args.checkpoint)
    events.note("resumed", step=first)
    for step in range(first, args.steps):
        began = time.perf_counter()
        x, y = parts.corpus.batch(step, rank, dist.get_world_size())
        loss = loss_of(ddp(x), y)
        loss.backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        events.note(
            "step", index=step, step_ms=(time.perf_counter() - began) * 1e3, loss=loss.item()
        )
        if rank == 0 and (step + 1) % args.every == 0:
            save(parts, args.checkpoint, step + 1)
    dist.destroy_process_group()


class Events:
    """A file of JSON lines that several ranks append to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._who = {"rank": int(os.environ["RANK"]), "pid": os.getpid()}

    def note(self, event: str, **told: Any) -> None:
        """Append one line, whole, at once."""
        line = {"event": event, "at_s": time.time(), **self._who, **told}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def save(parts: Recipe, path: Path, step: int) -> None:
    """Write a checkpoint; the one before stays until this one is whole."""
    fresh = path.with_suffix(".new")
    state = {"step": step, "model": parts.model.state_dict(), "adam": parts.optimizer.state_dict()}
    torch.save(state, fresh)
    fresh.replace(path)


def resume(parts: Recipe, path: Path) -> int:
    """Load the last checkpoint, if there is one; the step to go on with."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)  # noqa: TID251  the baseline does what its users do
    parts.model.load_state_dict(state["model"])
    parts.optimizer.load_state_dict(state["adam"])
    return int(state["step"])


if __name__ == "__main__":
    main()

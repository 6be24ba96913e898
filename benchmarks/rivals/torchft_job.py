"""torchft's part: one replica group per process; a held one waits, warm, for a file to appear."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as torch_distributed
from rivals.job import Notes, built, loss_of
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

dist: Any = torch_distributed  # whose stubs leave out what every program uses
GROUP_TIMEOUT_S = 5.0
"""Of a gloo collective: shorter fails on a busy machine, longer does not matter here."""


def main() -> None:
    place = int(os.environ["REPLICA_GROUP_ID"])
    notes = Notes(place)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1"
    )
    model, inner = built()
    loss_of(model, 0, place).backward()  # what a standby can warm up without peers
    inner.zero_grad()
    held = os.environ.get("RIVALS_HELD")
    if held:
        notes.note("warm")
        while not Path(held).exists():
            time.sleep(0.002)
    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=2,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        load_state_dict=lambda found: (
            model.load_state_dict(found["model"]),
            inner.load_state_dict(found["optimizer"]),
        ),
        replica_id=f"g{place}",
        timeout=timeout,
        hostname="127.0.0.1",
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        loss_of(ddp, before, place).backward()
        optimizer.step()
        after = manager.current_step()  # of a newcomer far beyond `before`: it was healed meanwhile
        if after != before:
            notes.note("step", step=after - 1, world=manager.num_participants())
        else:
            notes.note("lost", step=before)


if __name__ == "__main__":
    main()

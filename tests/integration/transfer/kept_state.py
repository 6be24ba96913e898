"""Ways of a state by memory that is kept, or by the disk, for `receiver_process.py`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statemachine.ids import Incarnation, NodeId, Slot
from statemachine.layout import Layout
from statemachine.topology import Holder
from worker.copies import Copies, read
from worker.handover import Handover
from worker.state import TrainingState
from worker.state.checkpoints import Checkpoints
from worker.transfer import StateImage

LAYOUT = Layout.of({"pp": 2, "dp": 1})
EVERYBODY = {Slot(0): None, Slot(1): None}
LAYERS = 8
torch.set_num_threads(1)


def model_of(nbytes: int) -> tuple[nn.Module, TrainingState]:
    """A registered model of so many bytes."""
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(1, nbytes // LAYERS // 8) for _ in range(LAYERS)))
    state = TrainingState()
    state.register(model=model)
    return model, state


def copies_of(folder: Path, slot: int, state: TrainingState, ours: Handover) -> Copies:
    """The copies of one process of a pipeline of two; it lends what it has."""

    def borrow(holders: Any, number: int, into: Any) -> StateImage:
        return ours.borrow(holders, number, into)

    copies = Copies(folder, LAYOUT, 1, lambda: Slot(slot), lambda: state, lambda: (), borrow)
    ours.lend(copies.lend)
    return copies


def member(slot: int, port: int) -> Holder:
    """Who holds a slot."""
    node, incarnation = NodeId(f"n{slot}"), Incarnation(1)
    return Holder(
        slot=Slot(slot),
        node=node,
        incarnation=incarnation,
        host="127.0.0.1",
        port=0,
        transfer_port=port,
    )


def handover(told: dict[str, Any], slot: int) -> Handover:
    """What gives and takes in this process."""
    secret = bytes.fromhex(told["secret"])
    return Handover(secret, told["job"], NodeId(f"n{slot}"), Incarnation(1), "127.0.0.1")


def lender(told: dict[str, Any]) -> Callable[[], str]:
    """Has a copy of its shard in memory, and lends it."""
    ours = handover(told, 0)
    _, state = model_of(told["nbytes"])
    copies = copies_of(Path(told["folder"]), 0, state, ours)
    copies.after_step(0, [member(0, ours.port), member(1, 0)])
    copies._writing.join()  # type: ignore[union-attr]
    print(json.dumps({"port": ours.port, "digest": state.digest()}), flush=True)
    return state.digest


def to_buddy(told: dict[str, Any]) -> Callable[[], str]:
    """A partner's copy, into the folder in memory where it is kept."""
    ours = handover(told, 1)
    copies = copies_of(Path(told["folder"]), 1, TrainingState(), ours)

    def go() -> str:
        copies._fetch(member(0, told["port"]), 0)
        kept = read(copies._path(Slot(0), copies._turn(0)))
        return kept.digest()

    return go


def from_buddy(told: dict[str, Any]) -> Callable[[], str]:
    """A copy that somebody keeps, into the model."""
    ours = handover(told, 0)
    model, state = model_of(told["nbytes"])
    copies = copies_of(Path(told["folder"]), 0, state, ours)
    copies.members = lambda: (member(0, told["port"]),)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    copies._found = {0: ([member(0, told["port"])], told["number"])}

    def go() -> str:
        copies.load(0)
        return state.digest()

    return go


def checkpoints(told: dict[str, Any], state: TrainingState) -> Checkpoints:
    """The checkpoints of the first stage."""
    return Checkpoints(
        Path(told["folder"]),
        LAYOUT,
        every=1,
        keep=2,
        slot=lambda: Slot(0),
        state=lambda: state,
        told=lambda _: None,
    )


def writer(told: dict[str, Any]) -> Callable[[], str]:
    """Has written a checkpoint."""
    _, state = model_of(told["nbytes"])
    kept = checkpoints(told, state)
    kept.after_step(0, EVERYBODY)
    kept.finish()
    print(json.dumps({"digest": state.digest()}), flush=True)
    return state.digest


def from_disk(told: dict[str, Any]) -> Callable[[], str]:
    """A checkpoint that another process wrote, into the model."""
    model, state = model_of(told["nbytes"])
    kept = checkpoints(told, state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    def go() -> str:
        kept.load(0)
        return state.digest()

    return go


WAYS = {
    "lender": lender,
    "to buddy": to_buddy,
    "from buddy": from_buddy,
    "writer": writer,
    "disk": from_disk,
}

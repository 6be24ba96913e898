"""Steps that are thrown away leave no trace, and random numbers follow the step."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from worker.state import TrainingState, seed_step


class Shuffle:
    """A data position that moves on with every batch."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"at": 0, "order": torch.arange(4)}

    def next(self) -> Tensor:
        self.state["at"] += 1
        self.state["order"] = torch.roll(self.state["order"], 1)
        return torch.randn(6, 3)


def made(
    optimizer_type: type[Optimizer] = AdamW,
) -> tuple[TrainingState, nn.Module, Optimizer, Shuffle]:
    """A small model with batch norm and dropout, registered with its data."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = optimizer_type(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    data, state = Shuffle(), TrainingState()
    state.register(model=model, optimizer=optimizer, data=data)
    return state, model, optimizer, data


def forward(model: nn.Module, data: Shuffle) -> Tensor:
    """A forward and backward pass on the next batch."""
    loss: Tensor = model(data.next()).square().mean()
    loss.backward()
    return loss


def drawn() -> list[float]:
    """One number from each generator."""
    return [torch.rand(1).item(), random.random(), float(np.random.rand())]  # noqa: NPY002  the generator that users still draw from


def test_numbers_are_a_function_of_seed_step_and_slot() -> None:
    """The same seed, step and slot draw the same numbers; changing any one draws others."""
    seen = {}
    for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (12, 3, 0), (1, 23, 0)]:
        seed_step(*key)
        seen[key] = tuple(drawn())
        drawn()
        seed_step(*key)
        assert tuple(drawn()) == seen[key]

    assert len({numbers[0] for numbers in seen.values()}) == len(seen)
    assert len({numbers[1] for numbers in seen.values()}) == len(seen)
    assert len({numbers[2] for numbers in seen.values()}) == len(seen)


def test_a_discarded_forward_leaves_no_trace() -> None:
    """After a rewind buffers, data position and generators are as before, however often."""
    state, model, optimizer, data = made()
    forward(model, data)
    optimizer.zero_grad()
    before = state.digest()
    state.snapshot_volatile()
    first = forward(model, data).item()

    for _ in range(2):
        assert state.digest() != before
        state.rewind_volatile()
        assert state.digest() == before
        assert data.state["at"] == 1
        optimizer.zero_grad()
        assert forward(model, data).item() == first


def test_a_snapshot_is_not_moved_by_what_follows() -> None:
    """A later snapshot replaces the earlier one; weights are not part of either."""
    state, model, optimizer, data = made()
    state.snapshot_volatile()
    forward(model, data)
    state.snapshot_volatile()
    after = state.digest()
    forward(model, data)
    state.rewind_volatile()
    assert state.digest() == after

    optimizer.step()
    weights = model[0].weight.detach().clone()  # type: ignore[index]
    state.rewind_volatile()

    assert torch.equal(model[0].weight, weights)  # type: ignore[index]


def test_rewinding_without_a_snapshot_says_so() -> None:
    """A rewind that has nothing to go back to is an error, not a silence."""
    state, *_ = made()

    with pytest.raises(RuntimeError, match="no snapshot"):
        state.rewind_volatile()


@pytest.mark.parametrize("optimizer_type", [AdamW, SGD])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_rehearsal_leaves_no_trace(optimizer_type: type[Optimizer], steps_before: int) -> None:
    """Steps in the sandbox change nothing, and the run goes on as if they had not happened."""
    state, model, optimizer, data = made(optimizer_type)
    twin, its_model, its_optimizer, its_data = made(optimizer_type)
    for each, its_data_now in ((model, data), (its_model, its_data)):
        torch.manual_seed(0)
        for parameter in each.parameters():
            nn.init.normal_(parameter)
        chosen = optimizer if each is model else its_optimizer
        for _ in range(steps_before):
            forward(each, its_data_now)
            chosen.step()
    assert state.digest() == twin.digest()
    chance = torch.get_rng_state()

    with state.sandboxed():
        model.eval()
        for _ in range(3):
            optimizer.zero_grad()
            forward(model, data)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 7.0
        assert state.digest() != twin.digest()

    assert state.digest() == twin.digest()
    assert model.training
    assert torch.equal(torch.get_rng_state(), chance)
    results = []
    for each, chosen, its in ((model, optimizer, data), (its_model, its_optimizer, its_data)):
        torch.manual_seed(3)
        results.append(forward(each, its).item())
        chosen.step()
    assert results[0] == results[1]
    assert state.digest() == twin.digest()


def test_a_rehearsal_that_fails_leaves_no_trace_either() -> None:
    """An error inside the sandbox comes out of it, after everything was put back."""
    state, model, optimizer, data = made()
    before = state.digest()

    def rehearse() -> None:
        with state.sandboxed():
            forward(model, data)
            optimizer.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rehearse()

    assert state.digest() == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_a_rehearsal_allocated_is_used_to_receive() -> None:
    """A standby that rehearsed receives optimizer state into memory that is already there."""
    source, its_model, its_optimizer, its_data = made()
    forward(its_model, its_data)
    its_optimizer.step()
    state, model, optimizer, data = made()
    addresses = set()
    with state.sandboxed():
        forward(model, data)
        optimizer.step()
        addresses = {each["exp_avg"].data_ptr() for each in optimizer.state.values()}
    assert not optimizer.state

    image = source.export()
    into = state.receiver(image.header)
    for view, sent in zip(into.tensors, image.tensors, strict=True):
        view.memory[:] = sent.memory
    state.import_(into)

    assert {each["exp_avg"].data_ptr() for each in optimizer.state.values()} == addresses
    assert state.digest() == source.digest()


def test_a_state_is_exported_as_it_was_before_the_step_that_changes_it() -> None:
    """In the middle of a step the image is that of the boundary before it, buffers and all."""
    state, model, optimizer, data = made()
    forward(model, data)
    optimizer.step()
    optimizer.zero_grad()
    state.snapshot_volatile()
    expected = state.export(step=1)
    digest, header = expected.digest(), expected.header.encoded()
    forward(model, data)
    changed = state.export(step=1)
    early = state.export_before_step(step=1)

    assert changed.digest() != digest, "a step changes buffers, or this test shows nothing"
    assert early.digest() == digest
    assert early.header.encoded() == header


def test_nothing_is_exported_early_before_anything_was_remembered() -> None:
    """A process that has begun no step has nothing to go back to."""
    state, *_ = made()

    with pytest.raises(RuntimeError, match="no snapshot"):
        state.export_before_step(step=0)

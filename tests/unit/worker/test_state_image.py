"""Registered state as an image: exact, in place, refused by name where it cannot be exact."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from worker.state import StateRefused, TrainingState
from worker.transfer import ImageHeader, ImageRefused, StateImage

MakeOptimizer = Callable[[nn.Module], Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda model: AdamW(model.parameters(), lr=1e-3),
    "adamw-tensor-lr": lambda model: AdamW(model.parameters(), lr=torch.tensor(1e-3)),
    "amsgrad": lambda model: AdamW(model.parameters(), amsgrad=True),
    "momentum": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1),
    "plain": lambda model: SGD(model.parameters(), lr=0.1),
    "adagrad": lambda model: Adagrad(model.parameters()),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=2),
    "two-groups": lambda model: AdamW(
        [
            {"params": list(model.parameters())[:1], "lr": 0.1},
            {"params": list(model.parameters())[1:], "weight_decay": 0.3},
        ]
    ),
}


class Net(nn.Module):
    """Parameters and buffers of several types, a tied weight, and a batch norm."""

    def __init__(self, conv: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 6, bias=False)
        self.tied = self.first
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=conv)  # type: ignore[call-overload]
        self.register_buffer("short", torch.randn(3, dtype=torch.float32).to(torch.bfloat16))
        self.register_buffer("empty", torch.empty(0, 5))
        self.register_buffer("flags", torch.tensor([True, False]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.norm(self.first(x)))
        shift: Tensor = self.conv(torch.ones(1, 2, 2, 2)).sum()
        return y + shift


class Position:
    """A data position with a state of every kind that is carried."""

    def __init__(self) -> None:
        self.position: dict[str, Any] = {
            "sample": 3,
            "big": 1 << 90,
            "nan": math.nan,
            "tiny": 5e-324,
            "names": ["a", ("b", 2.5, None, True)],
            "by_number": {0: "zero", (1, 2): b"\x00\xff"},
            "$": "not one of ours",
            "order": torch.arange(5),
            "generator": np.arange(4, dtype=np.uint32),
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = dict(state)


def step_once(model: nn.Module, optimizer: Optimizer) -> None:
    """One ordinary training step."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.randn(8, 6)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


def trained(make: MakeOptimizer, steps: int) -> tuple[TrainingState, Net, Optimizer, Position]:
    """A model of new random weights after `steps`, registered."""
    flat = make is OPTIMIZERS["lbfgs"]  # it wants parameters that can be viewed flat
    model, position = Net(torch.contiguous_format if flat else torch.channels_last), Position()
    optimizer = make(model)
    for _ in range(steps):
        step_once(model, optimizer)
    state = TrainingState()
    state.register(model=model, optimizer=optimizer, data=position)
    return state, model, optimizer, position


def carried(image: StateImage) -> StateImage:
    """The image as it is after a journey: header through bytes, memory elsewhere."""
    header = ImageHeader.decoded(image.header.encoded())
    copy = StateImage.allocate(header)
    for ours, theirs in zip(copy.tensors, image.tensors, strict=True):
        ours.memory[:] = theirs.memory
    return copy


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("joiner_steps", [0, 2])
def test_a_joiner_goes_on_exactly_as_the_source_would(name: str, joiner_steps: int) -> None:
    """After an import the next steps of joiner and source give the same bits."""
    source, model, optimizer, _ = trained(OPTIMIZERS[name], steps=3)
    joiner, its_model, its_optimizer, _ = trained(OPTIMIZERS[name], steps=joiner_steps)
    assert source.weights_digest() != joiner.weights_digest()

    joiner.import_(carried(source.export()))

    assert joiner.digest() == source.digest()
    assert joiner.weights_digest() == source.weights_digest()
    assert joiner.export().header.encoded() == source.export().header.encoded()
    for steps_of in (model, optimizer), (its_model, its_optimizer):
        torch.manual_seed(7)
        step_once(*steps_of)
        step_once(*steps_of)
    assert joiner.digest() == source.digest()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_receiving_into_the_live_tensors_needs_no_further_copy(name: str) -> None:
    """Bytes written where `receiver` says become the state, and parameters keep their memory."""
    source, *_ = trained(OPTIMIZERS[name], steps=2)
    joiner, its_model, *_ = trained(OPTIMIZERS[name], steps=0)
    at_before = [parameter.data_ptr() for parameter in its_model.parameters()]
    image = source.export(step=41)

    into = joiner.receiver(ImageHeader.decoded(image.header.encoded()))
    for view, sent in zip(into.tensors, image.tensors, strict=True):
        view.memory[:] = sent.memory
    joiner.import_(into)

    assert joiner.digest() == source.digest()
    assert [parameter.data_ptr() for parameter in its_model.parameters()] == at_before
    assert into.meta["stamp"] == {"step": 41}


def test_export_copies_nothing() -> None:
    """The image's bytes are the live parameters themselves: a later change shows in them."""
    state, model, *_ = trained(OPTIMIZERS["plain"], steps=0)
    image = state.export()
    before = image.digest()

    with torch.no_grad():
        model.last.weight[0, 0] += 1

    assert image.digest() != before


def test_state_that_is_no_tensor_arrives_exactly() -> None:
    """Numbers of any size, text, bytes, tuples, odd keys, tensors and arrays survive."""
    source, _, _, position = trained(OPTIMIZERS["plain"], steps=0)
    joiner, _, _, its_position = trained(OPTIMIZERS["plain"], steps=0)
    expected = Position().position
    its_position.position = {}

    joiner.import_(carried(source.export()))

    got = its_position.position
    assert got.keys() == expected.keys()
    assert math.isnan(got.pop("nan"))
    assert torch.equal(got.pop("order"), expected["order"])
    assert np.array_equal(got["generator"], expected["generator"])
    assert got.pop("generator").dtype == np.uint32
    assert got == {key: value for key, value in expected.items() if key in got}
    assert position.position["sample"] == 3


def test_schedulers_and_plain_state_attributes_are_carried() -> None:
    """A scheduler's progress and an object's `state` attribute arrive at the joiner."""

    class Counter:
        def __init__(self) -> None:
            self.state = {"seen": 0}

    def made() -> tuple[TrainingState, Any, Counter]:
        model = Net()
        optimizer = AdamW(model.parameters())
        scheduler, counter, state = OneCycleLR(optimizer, 0.1, total_steps=9), Counter(), None
        state = TrainingState()
        state.register(model=model, optimizer=optimizer, scheduler=scheduler, counter=counter)
        return state, scheduler, counter

    source, scheduler, counter = made()
    scheduler.optimizer.step()
    scheduler.step()
    counter.state["seen"] = 12
    joiner, its_scheduler, its_counter = made()

    joiner.import_(carried(source.export()))

    assert its_scheduler.last_epoch == 1
    assert its_scheduler.get_last_lr() == scheduler.get_last_lr()
    assert its_scheduler.optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
    assert its_counter.state == {"seen": 12}


def test_several_models_and_optimizers_keep_their_names() -> None:
    """Models registered by name give tensors named after them, and come back to the right one."""
    models = {"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 2)}
    optimizers = {name: SGD(model.parameters(), momentum=0.5) for name, model in models.items()}
    state = TrainingState()
    state.register(model=models, optimizer=optimizers)

    names = [view.spec.name for view in state.export().tensors]

    assert names == [
        f"model.{name}.{part}" for name in ("generator", "critic") for part in ("weight", "bias")
    ]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (lambda: None, "data.inner.0: a function"),
        (np.int64(3), "data.inner.0: a int64"),
        ({1.5: 2}, "data.inner.0: key 1.5"),
        (np.array([None]), "data.inner.0: can't convert"),
        (random.Random(1), "data.inner.0: a Random"),
    ],
)
def test_what_only_pickle_could_carry_is_refused_by_name(bad: object, named: str) -> None:
    """Registering state that JSON cannot hold fails at once and names the key."""
    position = Position()
    position.position = {"inner": [bad]}

    with pytest.raises(StateRefused) as refused:
        TrainingState().register(data=position)

    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"model": SGD(nn.Linear(1, 1).parameters())}, "model: a SGD is not a Module"),
        ({"optimizer": {"a": nn.Linear(1, 1)}}, "optimizer.a: a Linear is not a Optimizer"),
        ({"sampler": object()}, "sampler: a object has neither"),
    ],
)
def test_registering_something_else_is_refused_by_name(parts: dict[str, Any], named: str) -> None:
    """A part of the wrong kind is named together with what it is."""
    with pytest.raises(StateRefused, match=named):
        TrainingState().register(**parts)


def test_registering_twice_is_refused() -> None:
    """Two models of one name would be two states of one name."""
    state = TrainingState()
    state.register(model=nn.Linear(1, 1))

    with pytest.raises(StateRefused, match="model is registered twice"):
        state.register(model=nn.Linear(1, 1))


def test_a_tensor_with_holes_is_refused_by_name() -> None:
    """A strided view has no bytes of its own, so it cannot be carried in place."""
    module = nn.Module()
    module.register_buffer("holes", torch.zeros(4, 4)[:, ::2])
    state = TrainingState()
    state.register(model=module)

    with pytest.raises(StateRefused, match=r"model\.holes"):
        state.export()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (nn.Linear(3, 2), r"model\.weight: the image has F32\[2, 3\], the model here F32\[2, 2\]"),
        (nn.Linear(2, 2).double(), r"model\.weight: the image has F64"),
        (nn.Linear(2, 2, bias=False), r"no model\.bias"),
    ],
)
def test_an_image_of_another_model_is_refused_by_name(theirs: nn.Module, named: str) -> None:
    """The receiver names the first tensor that does not fit, before anything is written."""
    source, joiner = TrainingState(), TrainingState()
    source.register(model=theirs)
    joiner.register(model=nn.Linear(2, 2))
    before = joiner.digest()

    with pytest.raises(ImageRefused, match=named):
        joiner.receiver(source.export().header)

    assert joiner.digest() == before


def test_a_transposed_weight_is_not_taken_for_a_plain_one() -> None:
    """Equal shapes in memory with different axes are a misfit, not a silent transposition."""
    plain, turned = nn.Linear(3, 3), nn.Linear(3, 3)
    turned.weight = nn.Parameter(turned.weight.detach().clone().t())
    source, joiner = TrainingState(), TrainingState()
    source.register(model=turned)
    joiner.register(model=plain)

    with pytest.raises(ImageRefused, match=r"model\.weight"):
        joiner.receiver(source.export().header)


def test_another_grouping_of_parameters_is_refused() -> None:
    """An optimizer with other groups cannot take the state, and says both sizes."""
    source, *_ = trained(OPTIMIZERS["two-groups"], steps=1)
    joiner, *_ = trained(OPTIMIZERS["adamw"], steps=0)

    with pytest.raises(ImageRefused, match="parameter groups of sizes"):
        joiner.import_(carried(source.export()))


def test_a_digest_depends_on_every_bit_and_on_names() -> None:
    """One flipped bit, or the same numbers under another name, give another digest."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.load_state_dict(one.state_dict())
    states = [TrainingState() for _ in range(3)]
    states[0].register(model=one)
    states[1].register(model=other)
    states[2].register(model={"b": one})
    assert states[0].digest() == states[1].digest() != states[2].digest()

    with torch.no_grad():
        other.bias.view(torch.int32)[0] ^= 1

    assert states[0].digest() != states[1].digest()

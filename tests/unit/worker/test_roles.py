"""The parts of roles: built once each, resident or parked, never taken for what they are not."""

from typing import Any

import torch
from torch import nn

from statemachine.ids import Slot
from statemachine.layout import FIRST, LAST, MIDDLE, ONLY, Layout
from worker.roles import PerRole, Roles
from worker.state.parking import Parking
from worker.state.registry import Registry

LAYOUT = Layout.of({"pp": 4, "dp": 2})
WIDTH = {FIRST: 8, MIDDLE: 4, LAST: 6}


class Script:
    """A script whose stages differ in size."""

    def __init__(self) -> None:
        self.roles = Roles(LAYOUT)
        self.built: list[int] = []
        self.now: PerRole[nn.Linear] = PerRole(self.roles)
        self.roles.begin(self.build)

    def build(self) -> nn.Linear:
        """Build and register the parts of the slot in force."""
        slot = self.roles.slot
        self.built.append(slot)
        model = nn.Linear(WIDTH[LAYOUT.role_of(slot)], 2)
        self.roles.state.register(model=model, optimizer=torch.optim.AdamW(model.parameters()))
        return model


def test_a_general_standby_begins_in_the_middle() -> None:
    """The resident role is the middle one, or the only one where stages are alike."""
    script = Script()
    assert LAYOUT.role_of(script.roles.slot) == MIDDLE == script.roles.resident
    assert script.built == [2]
    assert Roles(Layout.of({"dp": 3})).resident == ONLY
    assert Roles(Layout.of({"pp": 2, "dp": 1})).resident == FIRST


def test_each_role_is_built_once_and_keeps_its_objects() -> None:
    """A role that was rehearsed is there with its own modules when its slot is taken."""
    script = Script()
    middle = script.now()
    script.roles.take(Slot(0), with_weights=True)
    first = script.now()
    script.roles.rest()
    assert script.now() is middle
    taken = script.roles.take(Slot(1))
    assert script.now() is first
    assert not taken.built
    assert script.built == [2, 0]
    assert taken.allocated_bytes == first.weight.nbytes + first.bias.nbytes
    assert middle.weight.untyped_storage().nbytes() == 0, "the other role's memory is given back"


def test_what_holds_no_weights_is_built_anew_for_a_rehearsal() -> None:
    """Parked parts, and parts that wait for a transfer, cannot be rehearsed with."""
    script = Script()
    script.roles.take(Slot(0), with_weights=True)
    script.roles.rest()
    script.roles.take(Slot(0), with_weights=True)
    assert script.built == [2, 0, 0], "it had been parked"
    script.roles.rest()
    script.roles.take(Slot(0))
    assert script.roles.now.hollow
    script.roles.take(Slot(0), with_weights=True)
    assert script.built == [2, 0, 0, 0], "its transfer never came"


def test_a_launch_builds_the_very_slot() -> None:
    """First weights belong to a shard: two middle stages are not the same at the launch."""
    script = Script()
    assert not script.roles.needs(Slot(2), launch=True)
    assert not script.roles.needs(Slot(3), launch=True), "its replica has the same shard"
    assert script.roles.needs(Slot(4), launch=True)
    assert not script.roles.needs(Slot(4), launch=False), "its state is about to come"
    assert script.roles.take(Slot(4), launch=True).built
    assert script.built == [2, 4]


def test_a_script_without_a_builder_has_one_state_for_all() -> None:
    """Nothing is built, parked or taken where stages are alike."""
    roles = Roles(LAYOUT)
    state = roles.state
    assert not roles.needs(Slot(0), launch=True)
    assert not roles.take(Slot(0)).built
    assert roles.rest() == 0
    assert roles.state is state


def test_parking_keeps_every_view_and_every_object() -> None:
    """Tensors, views into one flat gradient, and their storages are the same objects afterwards."""
    model = nn.Linear(3, 2)
    flat = torch.zeros(8)
    model.weight.grad, model.bias.grad = flat[:6].view(2, 3), flat[6:]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    registry = Registry()
    registry.add_models(model)
    registry.add_optimizers(optimizer)
    parking: Any = Parking()
    held = sum(one.nbytes for one in model.parameters()) + flat.nbytes
    moments = sum(state["momentum_buffer"].nbytes for state in optimizer.state.values())

    assert parking.park(registry) == held + moments
    assert parking.unpark() == held
    assert flat.tolist() == [0.0] * 8
    model.weight.grad.fill_(2.0)
    assert flat.tolist() == [2.0] * 6 + [0.0] * 2, "gradients are still parts of the flat one"
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    assert model(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]

"""What the user registered, and how each part is taken apart and put back.

Rules of this file: it knows models, optimizers and objects with a state of their own. It copies
into live tensors in place: autograd, `DistributedDataParallel` and compiled code hold on to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worker.state.tree import StateRefused, Tree, put_together, take_apart
from worker.transfer import ImageRefused

Part = TypeVar("Part")


@dataclass(slots=True)
class Registry:
    """Everything registered, by name, in order of registration."""

    models: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    def add_models(self, model: nn.Module | Mapping[str, nn.Module]) -> None:
        """Add one model (named ``model``) or several by name."""
        _add(self.models, "model", model, nn.Module)

    def add_optimizers(self, optimizer: Optimizer | Mapping[str, Optimizer]) -> None:
        """Add one optimizer (named ``optimizer``) or several by name."""
        _add(self.optimizers, "optimizer", optimizer, Optimizer)

    def add_other(self, name: str, value: Any) -> None:
        """Add an object with `state_dict` and `load_state_dict`, or with an attribute `state`."""
        if name in self.others:
            raise StateRefused(f"{name} is registered twice")
        read, _ = _access(name, value)
        take_apart(name, read(), {})  # refuse now what could not be carried later
        self.others[name] = value

    def model_tensors(self) -> dict[str, Tensor]:
        """Parameters, then buffers, of every model; a tensor with two names appears once."""
        named: dict[str, Tensor] = {}
        for name, model in self.models.items():
            named |= {f"{name}.{key}": value for key, value in model.named_parameters()}
            named |= {f"{name}.{key}": value for key, value in model.named_buffers()}
        return named

    def buffers(self) -> dict[str, Tensor]:
        """What a forward pass may change: the buffers of every model."""
        return {
            f"{name}.{key}": value
            for name, model in self.models.items()
            for key, value in model.named_buffers()
        }

    def take_apart(self, tensors: dict[str, Tensor]) -> dict[str, Tree]:
        """Optimizers and others as JSON; their tensors are added to `tensors`, live where lived."""
        trees = self.optimizers_apart(tensors)
        return trees | self.others_apart(tensors)

    def optimizers_apart(self, tensors: dict[str, Tensor]) -> dict[str, Tree]:
        """The optimizers alone."""
        names = self._parameter_names()
        return {
            name: _optimizer_apart(name, optimizer, names, tensors)
            for name, optimizer in self.optimizers.items()
        }

    def others_apart(self, tensors: dict[str, Tensor]) -> dict[str, Tree]:
        """The others alone."""
        return {
            name: take_apart(name, _access(name, value)[0](), tensors)
            for name, value in self.others.items()
        }

    def put_together(self, trees: Mapping[str, Tree], tensors: Mapping[str, Tensor]) -> None:
        """Set optimizers and others to what was taken apart elsewhere, or earlier here."""
        for name, optimizer in self.optimizers.items():
            _optimizer_together(name, optimizer, _named(trees, name), tensors)
        self.others_together(trees, tensors)

    def others_together(self, trees: Mapping[str, Tree], tensors: Mapping[str, Tensor]) -> None:
        """Set the others alone."""
        for name, value in self.others.items():
            _access(name, value)[1](put_together(_named(trees, name), tensors))

    def _parameter_names(self) -> dict[int, str]:
        return {
            id(value): key if len(self.models) == 1 else f"{name}.{key}"
            for name, model in self.models.items()
            for key, value in model.named_parameters()
        }


def _add(to: dict[str, Part], kind: str, what: object, of: type[Part]) -> None:
    named = (
        {f"{kind}.{key}": item for key, item in what.items()}
        if isinstance(what, Mapping)
        else {kind: what}
    )
    for name, item in named.items():
        if not isinstance(item, of):
            raise StateRefused(f"{name}: a {type(item).__name__} is not a {of.__name__}")
        if name in to:
            raise StateRefused(f"{name} is registered twice")
        to[name] = item


def _named(trees: Mapping[str, Tree], name: str) -> Tree:
    try:
        return trees[name]
    except KeyError:
        raise ImageRefused(f"the image has nothing for {name}") from None


def _access(name: str, value: Any) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """How to read and how to set the state of a registered object."""
    if callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    ):
        return value.state_dict, value.load_state_dict
    if hasattr(value, "state"):
        return (lambda: value.state), (lambda state: setattr(value, "state", state))
    raise StateRefused(
        f"{name}: a {type(value).__name__} has neither state_dict() and load_state_dict() "
        "nor an attribute `state`"
    )


def _optimizer_apart(
    name: str, optimizer: Optimizer, names: Mapping[int, str], tensors: dict[str, Tensor]
) -> Tree:
    groups, states = [], []
    for at, group in enumerate(optimizer.param_groups):
        where = f"{name}.group{at}"
        settings = {key: value for key, value in group.items() if key != "params"}
        groups.append(
            {"size": len(group["params"]), "settings": take_apart(where, settings, tensors)}
        )
        for index, parameter in enumerate(group["params"]):
            own = f"{name}.{names.get(id(parameter), f'group{at}.{index}')}"
            states.append(take_apart(own, dict(optimizer.state.get(parameter, {})), tensors))
    return {"groups": groups, "states": states}


def _optimizer_together(
    name: str, optimizer: Optimizer, tree: Tree, tensors: Mapping[str, Tensor]
) -> None:
    groups, states = tree["groups"], iter(tree["states"])
    mine = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [group["size"] for group in groups]
    if mine != theirs:
        raise ImageRefused(f"{name} has parameter groups of sizes {mine}, the image {theirs}")
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        settings = put_together(saved["settings"], tensors)
        group.update({key: _into(group.get(key), value) for key, value in settings.items()})
        for parameter in group["params"]:
            state = put_together(next(states), tensors)
            if state:
                live = optimizer.state[parameter]
                placed = {
                    key: _into(live.get(key), value, like=parameter) for key, value in state.items()
                }
                live.clear()
                live.update(placed)
            else:
                optimizer.state.pop(parameter, None)


def _into(live: object, value: object, like: Tensor | None = None) -> object:
    """`value`, inside the memory of the `live` tensor in its place wherever that fits."""
    if not isinstance(value, Tensor):
        return value
    if value is live:
        return live
    if isinstance(live, Tensor) and live.shape == value.shape and live.dtype == value.dtype:
        with torch.no_grad():
            live.copy_(value)
        return live
    # Optimizers keep step counters on the host and moments beside the parameter.
    return value if like is None or not value.ndim else value.to(like.device)

"""`TrainingState`: everything a joining node must have to go on as if it had been there all along.

Rules of this file: the registered parts together as one image, and what must be undone when a step
is thrown away. It does not move bytes between processes (`worker.transfer`) and does not decide
when (`worker.loop`).

An image has, in this order: parameters and buffers of each model, the tensors of each optimizer,
the tensors of everything else; the metadata has what is no tensor. All replicas of a state give
equal images, so several can serve one joiner; what is registered as data position must therefore be
the position of the run, not of one rank. Generators of random numbers are not in it: `seed_step`
makes them a function of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worker.state.chance import ChanceState
from worker.state.memory import axis_order, empty_for, spec_of, tensor_of, view_of
from worker.state.parking import Parking
from worker.state.registry import Registry
from worker.state.tree import Tree
from worker.transfer import ImageHeader, ImageRefused, StateImage, TensorSpec, TensorView


class TrainingState:
    """The registered state of one training process."""

    def __init__(self) -> None:
        self._registry = Registry()
        self._spare: dict[TensorSpec, Tensor] = {}
        self._volatile: tuple[dict[str, Tree], dict[str, Tensor], ChanceState] | None = None
        self._parking = Parking()

    def register(
        self,
        *,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        data: Any = None,
        **extra: Any,
    ) -> None:
        """Add to what a joiner must receive; may be called again, in the same order everywhere.

        `data` and each of `extra` (a scheduler, a scaler, counters) needs `state_dict()` and
        `load_state_dict()`, or an attribute `state`, whose values are numbers, text, bytes, tensors
        and lists, tuples or dicts of them.

        Raises StateRefused, naming the key, on anything else.
        """
        if model is not None:
            self._registry.add_models(model)
        if optimizer is not None:
            self._registry.add_optimizers(optimizer)
        if data is not None:
            self._registry.add_other("data", data)
        for name, value in extra.items():
            self._registry.add_other(name, value)

    # -- as an image -------------------------------------------------------------------------------

    def export(self, **stamp: int | str) -> StateImage:
        """The state as an image whose bytes are the live tensors themselves (no copy on the CPU).

        Only buffers are copied, since a forward pass may change them while the image is being sent;
        everything else changes in the optimizer alone.

        `stamp` goes into the metadata (the step, the epoch), for the receiver to check. Takes time
        in proportion to the number of tensors, not to their size. Raises StateRefused.
        """
        tensors = self._registry.model_tensors()
        for name, buffer in self._registry.buffers().items():
            spec_of(name, buffer)  # refuses holes, which a copy would hide
            tensors[name] = buffer.detach().clone()
        return _image(tensors, self._registry.take_apart(tensors), stamp)

    def export_before_step(self, **stamp: int | str) -> StateImage:
        """The state as it was at the last `snapshot_volatile`, as `export` would have given it.

        May be called on another thread while the step computes, up to its optimizer.

        Raises StateRefused, or RuntimeError if nothing was remembered.
        """
        if self._volatile is None:
            raise RuntimeError("no snapshot of this state was taken")
        others, copies, _ = self._volatile
        tensors = self._registry.model_tensors()
        for name in self._registry.buffers():
            tensors[name] = copies[name]
        trees = self._registry.optimizers_apart(tensors) | others
        tensors |= {name: copy for name, copy in copies.items() if name not in tensors}
        return _image(tensors, trees, stamp)

    def receiver(self, header: ImageHeader) -> StateImage:
        """Where an image with this header is to be received: the live tensors, wherever they exist.

        Tensors that do not exist yet (an optimizer that never stepped) are allocated, from those
        that a rehearsal left behind where they fit. Nothing is changed before bytes are written;
        `import_` then makes them the state. Raises ImageRefused, naming the first misfit.
        """
        live = self._registry.model_tensors()
        models = set(live)
        self._registry.take_apart(live)
        views: list[TensorView] = []
        axes = _axes_in(header.meta)
        for spec in header.specs:
            mine = live.get(spec.name)
            if mine is not None and _fits(mine, spec, axes):
                views.append(view_of(spec.name, mine))
            elif spec.name in models:
                raise ImageRefused(
                    f"{spec.name}: the image has {spec.dtype}{list(spec.shape)}, "
                    f"the model here {_described(spec.name, live[spec.name])}"
                )
            else:
                views.append(view_of(spec.name, self._allocated(spec, axes.get(spec.name))))
        missing = models - {spec.name for spec in header.specs}
        if missing:
            raise ImageRefused(f"the image has no {min(missing)}")
        return StateImage(tuple(views), header.meta)

    def import_(self, image: StateImage) -> None:
        """Make `image` the state, bit for bit, in place; what `receiver` placed is not copied.

        Raises ImageRefused if it does not fit what is registered here; the state is then undefined.
        """
        axes = _axes_in(image.meta)
        arrived = {
            view.spec.name: tensor_of(view, axes.get(view.spec.name)) for view in image.tensors
        }
        with torch.no_grad():
            for name, live in self._registry.model_tensors().items():
                if name not in arrived:
                    raise ImageRefused(f"the image has no {name}")
                _copy(name, live, arrived[name])
        try:
            self._registry.put_together(image.meta["trees"], arrived)
        except (KeyError, TypeError, ValueError) as error:
            raise ImageRefused(f"the image's metadata cannot be read: {error!r}") from error
        self._spare.clear()
        self._volatile = None

    def digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes of every tensor, in order."""
        return self.export().digest()

    def weights_digest(self) -> str:
        """The same over the models' parameters and buffers alone."""
        tensors = self._registry.model_tensors()
        return StateImage(tuple(view_of(name, tensor) for name, tensor in tensors.items())).digest()

    # -- while another role is in force ------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = self._registry.model_tensors()
        self._registry.take_apart(tensors)
        return sum(tensor.nbytes for tensor in tensors.values())

    def park(self) -> int:
        """Give the memory back until `unpark`; what was in it is gone. Returns how many bytes."""
        given = sum(spare.nbytes for spare in self._spare.values())
        self._spare.clear()
        self._volatile = None
        return given + self._parking.park(self._registry)

    def unpark(self) -> int:
        """Allocate the memory again, for `receiver` to fill. Returns how many bytes."""
        return self._parking.unpark()

    def unsound(self) -> str:
        """Name the first model tensor that holds a NaN or an infinity; empty if none does."""
        for name, tensor in self._registry.model_tensors().items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return name
        return ""

    # -- what a thrown-away step must not leave behind ---------------------------------------------

    def snapshot_volatile(self) -> None:
        """Remember what a step changes before its optimizer: buffers, data position, generators.

        Costs a copy of all buffers, which are small in all but unusual models. (A buffer's version
        counter would not tell whether it changed: batch norm updates its statistics without.)
        """
        tensors = self._registry.buffers()
        trees = self._registry.others_apart(tensors)
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._volatile = (trees, copies, ChanceState.capture())

    def rewind_volatile(self) -> None:
        """Put back what `snapshot_volatile` remembered; may be done again after another try.

        Raises RuntimeError if nothing was remembered since the state was last replaced.
        """
        if self._volatile is None:
            raise RuntimeError("no snapshot of this state was taken")
        trees, copies, chance = self._volatile
        with torch.no_grad():
            for name, buffer in self._registry.buffers().items():
                buffer.copy_(copies[name])
        self._registry.others_together(trees, {name: copy.clone() for name, copy in copies.items()})
        chance.restore()

    @contextmanager
    def sandboxed(self) -> Iterator[None]:
        """Run training steps in the block and throw their results away, bit for bit.

        Restores models (weights, buffers, gradients, train or eval mode), optimizers, everything
        else that is registered and the generators, also if the block raises. Memory: one more copy
        of state and gradients during the block; afterwards the optimizer's tensors that the block
        created stay allocated for `receiver` to use, until `import_`.
        """
        saved = _Saved(self._registry)
        try:
            yield
        finally:
            self._spare = saved.restore(self._registry)

    def _allocated(self, spec: TensorSpec, axes: list[int] | None) -> Tensor:
        spare = self._spare.pop(spec, None) if axes is None else None
        return empty_for(spec, axes) if spare is None else spare


class _Saved:
    """Everything that a rehearsal may change, copied."""

    def __init__(self, registry: Registry) -> None:
        self.models = {
            name: tensor.detach().clone() for name, tensor in registry.model_tensors().items()
        }
        tensors: dict[str, Tensor] = {}
        self.trees = registry.take_apart(tensors)
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.gradients = [
            (parameter, None if parameter.grad is None else parameter.grad.clone())
            for model in registry.models.values()
            for parameter in model.parameters()
        ]
        self.training = [
            (module, module.training)
            for model in registry.models.values()
            for module in model.modules()
        ]
        self.chance = ChanceState.capture()

    def restore(self, registry: Registry) -> dict[TensorSpec, Tensor]:
        """Put everything back; returns the host tensors that have no place any more."""
        rehearsed: dict[str, Tensor] = {}
        registry.take_apart(rehearsed)
        with torch.no_grad():
            for name, live in registry.model_tensors().items():
                live.copy_(self.models[name])
            for parameter, gradient in self.gradients:
                if gradient is None or parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.copy_(gradient)
        registry.put_together(self.trees, self.tensors)
        for module, training in self.training:
            module.training = training
        self.chance.restore()
        return {
            spec_of(name, tensor): tensor
            for name, tensor in rehearsed.items()
            if name not in self.tensors and tensor.device.type == "cpu" and tensor.is_contiguous()
        }


def _image(
    tensors: Mapping[str, Tensor], trees: Mapping[str, Tree], stamp: Mapping[str, int | str]
) -> StateImage:
    return StateImage(
        tuple(view_of(name, tensor) for name, tensor in tensors.items()),
        {"stamp": dict(stamp), "trees": trees, "axes": _unusual_axes(tensors)},
    )


def _unusual_axes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {
        name: axis_order(tensor) for name, tensor in tensors.items() if not tensor.is_contiguous()
    }


def _axes_in(meta: Mapping[str, Any]) -> dict[str, list[int]]:
    axes = meta.get("axes")
    if not isinstance(axes, dict):
        raise ImageRefused("the image's metadata does not come from a TrainingState")
    return axes


def _fits(tensor: Tensor, spec: TensorSpec, axes: Mapping[str, list[int]]) -> bool:
    expected = axes.get(spec.name, list(range(tensor.ndim)))
    return spec_of(spec.name, tensor) == spec and axis_order(tensor) == expected


def _described(name: str, tensor: Tensor) -> str:
    spec = spec_of(name, tensor)
    return f"{spec.dtype}{list(spec.shape)}, axes in memory {axis_order(tensor)}"


def _copy(name: str, live: Tensor, arrived: Tensor) -> None:
    if arrived is live:
        return
    if arrived.shape != live.shape or arrived.dtype != live.dtype:
        raise ImageRefused(
            f"{name}: the image has {arrived.dtype}{list(arrived.shape)}, "
            f"the model here {live.dtype}{list(live.shape)}"
        )
    live.copy_(arrived)

"""Checkpoints of one shard: written beside the run by torch.distributed.checkpoint, found again.

What belongs here: when one is written, which are whole, and putting one back. What does not: who
begins from which step (`statemachine.transition`).

Theory of operation. The lowest slot that holds a shard writes it, every so many steps: the state is
copied at the step boundary (what the step pays), and a thread writes the copy. The form is that of
`torch.distributed.checkpoint` in safetensors files, so that nothing is unpickled when it is read;
beside the tensors lies a manifest with the shard, its layout and the digest of every byte. It is
written under another name and renamed when it is whole and on the disk, so that a kill, a full disk
or a folder that turned read-only leave the one before as it was; the oldest is removed only then.

A shard is the same whatever the number of replicas, so these may change between runs. Another cut
of the model has other shards: such a checkpoint is refused, and says so.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from statemachine.ids import Slot
from statemachine.layout import Layout
from worker.state import TrainingState
from worker.state.memory import empty_for, view_of
from worker.transfer import ImageHeader, ImageRefused, StateImage, TensorSpec, TensorView

log = logging.getLogger("worker.checkpoints")

MANIFEST: Final = "manifest.json"
FORM: Final = 1
"""Version of what a manifest says."""


class CheckpointUnusable(Exception):
    """A checkpoint, or the folder for them, cannot be used; one line names the path and why."""


class CheckpointDamaged(CheckpointUnusable):
    """It is not whole, or not what was written."""


class CheckpointForeign(CheckpointUnusable):
    """It is one of another cut of the model, or of another model."""


@dataclass(frozen=True)
class Saved:
    """How writing one checkpoint went; `failure` is empty if it is there."""

    step: int
    nbytes: int = 0
    copy_ms: float = 0.0
    write_ms: float = 0.0
    failure: str = ""


class Checkpoints:
    """The checkpoints of the shard that this process holds, in one folder for the whole job.

    `slot` and `state` tell what this process holds now; `told` hears how each write went.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        *,
        every: int,
        keep: int,
        slot: Callable[[], Slot],
        state: Callable[[], TrainingState],
        told: Callable[[Saved], None],
    ) -> None:
        """Raises CheckpointUnusable if the folder cannot be written, ValueError on bad numbers."""
        if every < 1 or keep < 2:
            raise ValueError(
                f"checkpoints every {every} steps, the last {keep} kept: use 1 or more, 2 or more"
            )
        self._folder, self._every, self._keep = folder, every, keep
        self._layout, self._slot, self._state, self._told = layout, slot, state, told
        self._writing: threading.Thread | None = None
        _try_writing(folder)

    # --- writing ------------------------------------------------------------------------------

    def after_step(self, step: int, holders: Mapping[Slot, object]) -> None:
        """A step was committed while these slots were held: write a checkpoint, if it is time."""
        slot = self._slot()
        if (step + 1) % self._every:
            return
        shards = self._layout.shards_of(slot)
        if slot != min(one for one in holders if self._layout.shards_of(one) == shards):
            return
        if self._writing is not None and self._writing.is_alive():
            self._told(Saved(step, failure="the one before is still being written"))
            return
        began_s = time.perf_counter()
        image = self._state().export(step=step + 1)
        tensors = {view.spec.name: _placed(view).clone() for view in image.tensors}
        copy_ms = (time.perf_counter() - began_s) * 1000
        self._writing = threading.Thread(
            target=self._write,
            args=(step, shards, image.header, tensors, copy_ms),
            name="checkpoint",
            daemon=True,
        )
        self._writing.start()

    def finish(self) -> None:
        """Wait for a write that is under way."""
        if self._writing is not None:
            self._writing.join()

    def _write(
        self,
        step: int,
        shards: tuple[int, ...],
        header: ImageHeader,
        tensors: dict[str, Tensor],
        copy_ms: float,
    ) -> None:
        began_s = time.perf_counter()
        target = self._path(step, shards)
        draft = target.with_name(f".{target.name}.draft")
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            self._fill(draft, step, shards, header, tensors)
            shutil.rmtree(target, ignore_errors=True)  # of a run that went on from before it
            draft.rename(target)
            _force(target.parent)
            self._forget(shards)
        except (Exception, CheckpointException) as error:  # noqa: BLE001  (training goes on)
            shutil.rmtree(draft, ignore_errors=True)
            failure = f"{target}: {_why(error)}"
            log.error("checkpoint of step %d was not written to %s", step, failure)
            self._told(Saved(step, copy_ms=copy_ms, failure=failure))
            return
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        self._told(Saved(step, nbytes, copy_ms, (time.perf_counter() - began_s) * 1000))

    def _fill(
        self,
        draft: Path,
        step: int,
        shards: tuple[int, ...],
        header: ImageHeader,
        tensors: dict[str, Tensor],
    ) -> None:
        writer = HuggingFaceStorageWriter(
            str(draft), fqn_to_index_mapping=dict.fromkeys(tensors, 1), save_distributed=True
        )
        with _alone():
            dcp_save(tensors, storage_writer=writer, no_dist=True)
        manifest = {
            "form": FORM,
            "step": step,
            "shards": shards,
            "cut": cut_of(self._layout),
            "digest": _digest(tensors),
            "specs": [[one.name, one.dtype, one.shape] for one in header.specs],
            "meta": header.meta,
        }
        for path in draft.iterdir():
            _force(path)
        with (draft / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        _force(draft)

    def _forget(self, shards: tuple[int, ...]) -> None:
        """Remove all but the newest of this shard."""
        for step in sorted(self._steps(shards))[: -self._keep]:
            path = self._path(step, shards)
            shutil.rmtree(path, ignore_errors=True)
            try:
                path.parent.rmdir()  # once no shard has this step any more
            except OSError:
                continue

    # --- finding ------------------------------------------------------------------------------

    def newest(self) -> int:
        """The last step whose update is in the newest whole checkpoint of this shard; -1: none.

        What is not whole, or of another cut, is passed over and told in the log.
        """
        return max(self.whole(), default=-1)

    def whole(self) -> list[int]:
        """Every step of which there is a whole checkpoint of this shard, ascending; what is not
        whole, or of another cut, is passed over and told in the log.
        """
        shards = self._layout.shards_of(self._slot())
        found = []
        for step in sorted(self._steps(shards)):
            try:
                self._manifest(step, shards)
            except CheckpointUnusable as error:
                log.warning("passed over: %s", error)
                continue
            found.append(step)
        return found

    def load(self, step: int) -> None:
        """Put the checkpoint of a step into the registered state, in place.

        Raises:
            CheckpointDamaged: it is not whole; the state is then undefined.
            CheckpointForeign: it is of another cut or another model.
        """
        shards = self._layout.shards_of(self._slot())
        path = self._path(step, shards)
        manifest = self._manifest(step, shards)
        state = self._state()
        try:
            specs = [
                TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in manifest["specs"]
            ]
            image = state.receiver(ImageHeader(tuple(specs), manifest["meta"]))
        except ImageRefused as error:
            raise CheckpointForeign(f"{path}: it is of another model: {error}") from error
        tensors = {view.spec.name: _placed(view) for view in image.tensors}
        try:
            with _alone():
                dcp_load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
        except (Exception, CheckpointException) as error:  # each reader has types of its own
            raise CheckpointDamaged(f"{path}: cannot be read: {_why(error)}") from error
        if _digest(tensors) != manifest["digest"]:
            raise CheckpointDamaged(f"{path}: its bytes are not those that were written")
        state.import_(image)

    def _steps(self, shards: tuple[int, ...]) -> list[int]:
        name = _name_of(shards)
        found = self._folder.glob(f"step-*/{name}")
        return [int(path.parent.name.removeprefix("step-")) for path in found]

    def _path(self, step: int, shards: tuple[int, ...]) -> Path:
        return self._folder / f"step-{step:09d}" / _name_of(shards)

    def _manifest(self, step: int, shards: tuple[int, ...]) -> dict[str, Any]:
        path = self._path(step, shards)
        try:
            found: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            known = found["form"] == FORM and found["step"] == step
            cut, digest = found["cut"], found["digest"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{path}: not whole: {error}") from error
        if not known or not digest:
            raise CheckpointDamaged(f"{path}: its manifest is of another form or step")
        if cut != cut_of(self._layout):
            raise CheckpointForeign(f"{path}: it is of layout {cut}, not {cut_of(self._layout)}")
        return found


def cut_of(layout: Layout) -> str:
    """How a layout cuts a model in shards: all but the number of replicas."""
    axes = [f"{name}={size}" for name, size in layout.axes if name != layout.replica_axis]
    return ", ".join([*axes, f"{layout.ranks_per_node} ranks per node"])


def _name_of(shards: tuple[int, ...]) -> str:
    return "shard-" + "-".join(f"{shard:05d}" for shard in shards)


def _placed(view: TensorView) -> Tensor:
    """The bytes of a view, in place, as a tensor of its type and shape."""
    dtype = empty_for(TensorSpec("", view.spec.dtype, (0,))).dtype
    if not view.memory.nbytes:
        return torch.empty(view.spec.shape, dtype=dtype)
    return torch.frombuffer(view.memory, dtype=dtype).view(view.spec.shape)


def _why(error: BaseException) -> str:
    """The cause of an error, in one line; torch's own (no Exception!) holds one per rank."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return " ".join(str(error).split()) or type(error).__name__


def _digest(tensors: Mapping[str, Tensor]) -> str:
    views = tuple(view_of(name, tensor) for name, tensor in tensors.items())
    return StateImage(views).digest()


class _alone(warnings.catch_warnings):  # noqa: N801  (used as a context)
    """torch warns that one process saves alone, which is what is wanted."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", message=".*torch.distributed is disabled")


def _try_writing(folder: Path) -> None:
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckpointUnusable(
            f"checkpoints {folder}: cannot be written: {error.strerror}"
        ) from error


def _force(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


__all__ = [
    "CheckpointDamaged",
    "CheckpointForeign",
    "CheckpointUnusable",
    "Checkpoints",
    "Saved",
]

"""One recorded step: what the cross-machine groups of one role answered, as a file.

Rules of this file: bytes and names; no groups, no network. A recording is a valid safetensors file
whose metadata holds the stamp of what made it and the list of answers in the order of the calls.
Equal tensors are stored once. A file appears under its name whole or not at all: it is written
beside, forced to the disk and then renamed, so that a kill in the middle leaves a draft that nobody
reads and the next writer removes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
from torch import Tensor

from worker.state.memory import tensor_of, view_of
from worker.transfer import ImageHeader, ImageRefused, StateImage, TensorSpec
from worker.warmup.stamp import Stamp

SUFFIX: Final = ".safetensors"


class RecordingUnusable(Exception):
    """A recording may not be replayed here; the message says which and why.

    ```
    RecordingUnusable
    |- RecordingStale    made by other code, layout, types or versions: record anew
    `- RecordingDamaged  not the bytes that were recorded: fetch it again, or record anew
    ```
    """


class RecordingStale(RecordingUnusable):
    """It was made by other code, arguments, layout, types or versions."""


class RecordingDamaged(RecordingUnusable):
    """Its bytes are not those that were recorded."""


class Answer(msgspec.Struct, frozen=True):
    """What one call returned: the group and the operation, and its outputs by tensor's name."""

    group: str
    operation: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """The answers of one step. `name` stands for the content; `image` holds the bytes."""

    role: str
    step: int
    stamp: Stamp
    answers: tuple[Answer, ...]
    image: StateImage

    @classmethod
    def of(
        cls, role: str, step: int, stamp: Stamp, calls: Iterable[tuple[str, str, Sequence[Tensor]]]
    ) -> Self:
        """Put a recording together from (group, operation, outputs) in the order of the calls."""
        tensors: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        answers = []
        for group, operation, outputs in calls:
            kept = tuple(_kept(output, tensors, names) for output in outputs)
            answers.append(Answer(group, operation, kept))
        views = tuple(view_of(name, tensor) for name, tensor in tensors.items())
        found = cls(role, step, stamp, tuple(answers), StateImage(views))
        return cls(role, step, stamp, found.answers, StateImage(views, found._meta(found.digest())))

    @property
    def name(self) -> str:
        """What the content is called in events: equal names, equal answers."""
        return str(self.image.meta["recording"])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.image.nbytes

    def digest(self) -> str:
        """What the content hashes to now."""
        seal = hashlib.sha256(self.image.digest().encode())
        seal.update(msgspec.json.encode([self.role, self.step, self.stamp, self.answers]))
        return seal.hexdigest()[:16]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name; they share the image's memory where it came from tensors."""
        return {view.spec.name: _tensor(view.spec, view) for view in self.image.tensors}

    def _meta(self, name: str) -> dict[str, object]:
        return {
            "recording": name,
            "role": self.role,
            "step": self.step,
            "stamp": msgspec.to_builtins(self.stamp),
            "answers": msgspec.to_builtins(self.answers),
        }

    @classmethod
    def from_image(cls, image: StateImage, where: str) -> Self:
        """Read what was received or loaded, and check that it is what was recorded.

        Raises:
            RecordingDamaged: it is not.
        """
        try:
            meta = image.meta
            found = cls(
                role=str(meta["role"]),
                step=int(meta["step"]),
                stamp=msgspec.convert(meta["stamp"], Stamp),
                answers=msgspec.convert(meta["answers"], tuple[Answer, ...]),
                image=image,
            )
            name = str(meta["recording"])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordingDamaged(f"{where}: no recording ({error})") from error
        if found.digest() != name:
            raise RecordingDamaged(f"{where}: its bytes are not those of recording {name}")
        return found

    def check(self, stamp: Stamp, where: str) -> None:
        """Refuse to be replayed by other code than made it.

        Raises:
            RecordingStale: says what differs.
        """
        differing = stamp.differs_in(self.stamp)
        if differing:
            raise RecordingStale(f"{where}: recorded with other {'; '.join(differing)}")


def _kept(output: Tensor, tensors: dict[str, Tensor], names: dict[str, str]) -> str:
    """The name of a tensor among those kept, which an equal one may have already."""
    dense = output.detach().contiguous()
    seal = hashlib.sha256(f"{dense.dtype}{tuple(dense.shape)}".encode())
    seal.update(view_of("", dense).memory)
    key = seal.hexdigest()
    if key not in names:
        names[key] = f"t{len(tensors)}"
        tensors[names[key]] = dense
    return names[key]


def _tensor(spec: TensorSpec, view: object) -> Tensor:
    found: Tensor = tensor_of(view)  # type: ignore[arg-type]
    return found.reshape(spec.shape)


# --- files ------------------------------------------------------------------------------------


def path_of(folder: Path, role: str) -> Path:
    """Where the recording of a role is kept."""
    return folder / f"{role}{SUFFIX}"


def save(recording: Recording, path: Path, writer: str) -> None:
    """Write a recording under `path`, whole or not at all; `writer` names this process for ever.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for draft in path.parent.glob(f"{path.name}.{writer}.*.draft"):
        draft.unlink(missing_ok=True)  # of an earlier life of this node, killed while it wrote
    draft = path.with_name(f"{path.name}.{writer}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(recording.image.header.encoded())
            for view in recording.image.tensors:
                file.write(view.memory)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _force(path.parent)


def load(path: Path) -> Recording:
    """Read a recording and check every byte of it.

    Raises:
        RecordingDamaged: cut short, or not what was written.
        OSError: it is not there, or cannot be read.
    """
    with path.open("rb") as file:
        length = file.read(8)
        text = file.read(int.from_bytes(length, "little")) if len(length) == 8 else b""
        try:
            header = ImageHeader.decoded(length + text)
        except ImageRefused as error:
            raise RecordingDamaged(f"{path}: {error}") from error
        size = os.fstat(file.fileno()).st_size
        if size != len(length) + len(text) + header.nbytes:
            raise RecordingDamaged(f"{path}: {size} bytes, its header says otherwise")
        image = StateImage.allocate(header)
        for view in image.tensors:
            file.readinto(view.memory)
    return Recording.from_image(image, str(path))


def _force(folder: Path) -> None:
    """Force a rename to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

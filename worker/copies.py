"""Copies of a shard in the memory of two machines, for shards that have no replica.

What belongs here: taking copies, keeping a partner's, and finding them again. What does not: who
begins from which step (`statemachine.transition`), and how bytes travel (`transfer`).

Theory of operation. Every so many steps each holder copies its shard at the step boundary; that is
what the step pays. A thread puts the copy into a folder that lives in memory (tmpfs), so that it
outlives the process but not the machine, and lends it; the buddy, the holder of the next slot,
fetches it into a folder of its own, on a thread of its own, the newest first. `COPIES` are kept,
since not everybody has the newest at the same instant: a fetch may take two periods before the
shards have no step in common any more. After the loss of one machine every shard has a copy at a
common step: its holder's or the buddy's. If a machine and its buddy are lost together, the
checkpoint on the disk is left.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from statemachine.ids import Slot
from statemachine.layout import Layout
from statemachine.topology import Holder
from worker.state import TrainingState
from worker.state.checkpoints import CheckpointDamaged, cut_of
from worker.transfer import ImageHeader, ImageRefused, StateImage, TransferError
from worker.transfer.image import TensorView

log = logging.getLogger("worker.copies")

MEMORY: Final = Path("/dev/shm")  # noqa: S108  (the point is that it is memory)
"""Where copies are kept unless somebody says otherwise."""

COPIES: Final = 3
NUMBER_BASE: Final = 1 << 20
"""Numbers under which copies are lent: this, and then so many for each slot."""

ASKED_MAX: Final = 32
"""How many members are asked for copies at a launch; who held a slot before may sit in another."""

FETCH_S: Final = 2.0
"""How long a partner may take to have its copy ready, once it is due."""
_TRY_S: Final = 0.02

Borrow = Callable[[Sequence[Holder], int, Callable[[ImageHeader], StateImage]], StateImage]


@dataclass
class Copies:
    """The copies that this process takes, keeps and lends.

    `borrow` fetches what others lend; `members` are the holders that are announced now.
    """

    folder: Path
    layout: Layout
    every: int
    slot: Callable[[], Slot]
    state: Callable[[], TrainingState]
    members: Callable[[], Sequence[Holder]]
    borrow: Borrow
    copy_ms: list[float] = field(default_factory=list)
    """What each copy cost its step."""
    write_ms: list[float] = field(default_factory=list)
    """What it took to put each where it is kept, beside the run."""
    fetch_ms: list[float] = field(default_factory=list)
    """What it took to fetch each of a partner's."""
    _buffer: StateImage | None = None
    """Memory of the copy before, to take the next one in: fresh memory costs a step twice as much.
    """
    _writing: threading.Thread | None = None
    _fetching: threading.Thread | None = None
    _due: tuple[Holder, int] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[int, tuple[Sequence[Holder], int] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the folder, for this user alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- taking -------------------------------------------------------------------------------

    def after_step(self, step: int, holders: Sequence[Holder]) -> None:
        """A step was committed: copy, if it is time and no replica holds the same."""
        slot = self.slot()
        held = {holder.slot for holder in holders}
        if (step + 1) % self.every or set(self.layout.replicas_of(slot)) & held:
            return
        if self._writing is not None and self._writing.is_alive():
            log.warning("no copy of step %d: the one before is still being written", step)
            return
        began_s = time.perf_counter()
        image = copied(self.state().export(step=step + 1, cut=cut_of(self.layout)), self._buffer)
        self._buffer = image
        self.copy_ms.append((time.perf_counter() - began_s) * 1000)
        self._writing = threading.Thread(
            target=self._keep, args=(step, slot, image), name="copies", daemon=True
        )
        self._writing.start()
        ward = _before(holders, slot)
        if ward is not None:
            self._fetch_soon(ward, step)

    def finish(self) -> None:
        """Wait for what is under way."""
        for thread in (self._writing, self._fetching):
            if thread is not None:
                thread.join(2 * FETCH_S)

    def forget(self) -> None:
        """The job is over: give the memory back."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def lend(self, number: int) -> StateImage | None:
        """The copy that is lent under a number."""
        if number < NUMBER_BASE:
            return None
        slot, turn = divmod(number - NUMBER_BASE, COPIES)
        with suppress(OSError, ImageRefused):
            return read(self._path(Slot(slot), turn))
        return None

    def _keep(self, step: int, slot: Slot, image: StateImage) -> None:
        began_s = time.perf_counter()
        try:
            self._put(slot, step, image)
        except OSError as error:
            log.warning("no copy of step %d: %s", step, error)
            return
        self.write_ms.append((time.perf_counter() - began_s) * 1000)

    def _fetch_soon(self, ward: Holder, step: int) -> None:
        """Let a partner's copy be fetched; what comes due meanwhile is fetched next, the newest."""
        with self._lock:
            self._due = ward, step
            if self._fetching is None or not self._fetching.is_alive():
                self._fetching = threading.Thread(target=self._fetch_due, name="buddy", daemon=True)
                self._fetching.start()

    def _fetch_due(self) -> None:
        while True:
            with self._lock:
                due, self._due = self._due, None
                if due is None:
                    self._fetching = None
                    return
            ward, step = due
            began_s = time.perf_counter()
            try:
                self._fetch(ward, step)
            except (OSError, TransferError) as error:
                log.warning("no copy of step %d of slot %d: %s", step, ward.slot, error)
                continue
            self.fetch_ms.append((time.perf_counter() - began_s) * 1000)

    def _put(self, slot: Slot, step: int, image: StateImage) -> None:
        write(image, self._path(slot, self._turn(step)))

    def _fetch(self, ward: Holder, step: int) -> None:
        """Receive the partner's copy of the same step, which it may not have taken yet, where it is
        kept: a state takes as much memory as it has, and no more.
        """
        number = NUMBER_BASE + ward.slot * COPIES + self._turn(step)
        path = self._path(ward.slot, self._turn(step))

        def into(header: ImageHeader) -> StateImage:
            if step_of(header) != step:
                raise ImageRefused(f"has the copy of step {step_of(header)}")
            return drafted(header, path)

        ends_at_s = time.monotonic() + FETCH_S
        try:
            while True:
                try:
                    self.borrow([ward], number, into)
                    break
                except TransferError:
                    if time.monotonic() >= ends_at_s:
                        raise
                time.sleep(_TRY_S)
            _draft_of(path).replace(path)
        finally:
            _draft_of(path).unlink(missing_ok=True)

    def _turn(self, step: int) -> int:
        return (step + 1) // self.every % COPIES

    def _path(self, slot: Slot, turn: int) -> Path:
        return self.folder / f"slot-{slot}.{turn}.safetensors"

    # --- finding ------------------------------------------------------------------------------

    def newest(self) -> int:
        """The last step whose update is in the newest copy of this slot, here or at another member;
        -1: there is none.
        """
        slot = self.slot()
        self._found = {}
        for turn in range(COPIES):
            with suppress(OSError, ImageRefused):
                header = header_of(self._path(slot, turn))
                if header.meta["stamp"].get("cut") == cut_of(self.layout):
                    self._found[step_of(header)] = None
        self._ask(slot)  # what is here may be of long ago
        return max(self._found, default=-1)

    def _ask(self, slot: Slot) -> None:
        """Ask the other members, all at once, what copies of a slot they have."""
        others = sorted(
            (one for one in self.members() if one.slot != slot),
            key=lambda one: (one.slot < slot, one.slot),
        )[:ASKED_MAX]  # the buddy first
        asking = []
        for other in others:
            for turn in range(COPIES):
                number = NUMBER_BASE + slot * COPIES + turn
                ask = threading.Thread(target=self._ask_one, args=(other, number), daemon=True)
                ask.start()
                asking.append(ask)
        for ask in asking:
            ask.join()

    def _ask_one(self, other: Holder, number: int) -> None:
        def into(header: ImageHeader) -> StateImage:
            if header.meta["stamp"].get("cut") == cut_of(self.layout):
                self._found.setdefault(step_of(header), ([other], number))
            raise ImageRefused("asked for its step alone")

        with suppress(TransferError):
            self.borrow([other], number, into)

    def has(self, step: int) -> bool:
        """Whether `newest` found a copy of this step."""
        return step in self._found

    def steps(self) -> set[int]:
        """The steps of which `newest` found copies."""
        return set(self._found)

    def forget_after(self, step: int) -> None:
        """The run went back to a step: copies of later ones, here, are of a past that is undone."""
        for path in self.folder.glob("slot-*.safetensors"):
            with suppress(OSError, ImageRefused):
                if step_of(header_of(path)) > step:
                    path.unlink()

    def source(self, step: int) -> str:
        """Where the copy of a step is, in words."""
        found = self._found.get(step)
        return f"the memory of {found[0][0].node}" if found is not None else "this node's memory"

    def load(self, step: int) -> None:
        """Put a copy into the registered state, in place.

        Raises:
            CheckpointDamaged: it is not there any more.
        """
        slot, state = self.slot(), self.state()
        found = self._found.get(step)
        try:
            if found is not None:
                image = self.borrow(found[0], found[1], state.receiver)
            else:
                image = self._here(slot, step, state)
            state.import_(image)
        except (OSError, TransferError) as error:
            raise CheckpointDamaged(f"the copy of step {step} of slot {slot}: {error}") from error

    def _here(self, slot: Slot, step: int, state: TrainingState) -> StateImage:
        kept = read(self._path(slot, self._turn(step)))
        if step_of(kept.header) != step:
            raise ImageRefused(f"it is of step {step_of(kept.header)}")
        target = state.receiver(kept.header)
        for view, source in zip(target.tensors, kept.tensors, strict=True):
            view.memory[:] = source.memory
        return StateImage(target.tensors, kept.meta)


def _before(holders: Sequence[Holder], slot: Slot) -> Holder | None:
    """Whose buddy the holder of a slot is: the holder of the slot before, all round."""
    others = sorted((one for one in holders if one.slot != slot), key=lambda one: one.slot)
    lower = [one for one in others if one.slot < slot]
    return (lower or others or [None])[-1]  # type: ignore[list-item]


def step_of(header: ImageHeader) -> int:
    """The last step whose update a copy holds."""
    return int(header.meta["stamp"]["step"]) - 1


def copied(image: StateImage, into: StateImage | None = None) -> StateImage:
    """An image in memory of its own, or in that of one that nobody needs any more, if it fits."""
    if into is not None and into.header.specs == image.header.specs:
        for target, view in zip(into.tensors, image.tensors, strict=True):
            target.memory[:] = view.memory
        return StateImage(into.tensors, image.meta)
    views = tuple(
        TensorView(view.spec, memoryview(bytearray(view.memory))) for view in image.tensors
    )
    return StateImage(views, image.meta)


def _draft_of(path: Path) -> Path:
    return path.with_suffix(".draft")


def write(image: StateImage, path: Path) -> None:
    """Put an image into a file, whole or not at all (against a kill of the process; memory needs no
    fsync).
    """
    with _draft_of(path).open("wb") as file:
        file.write(image.header.encoded())
        for view in image.tensors:
            file.write(view.memory)
    _draft_of(path).replace(path)


def drafted(header: ImageHeader, path: Path) -> StateImage:
    """A file that is not yet under its name, mapped, for an image to be received into.

    Raises:
        OSError: there is no room for it.
    """
    encoded = header.encoded()
    with _draft_of(path).open("w+b") as file:
        file.write(encoded)
        file.flush()
        total = len(encoded) + header.nbytes
        os.posix_fallocate(file.fileno(), 0, total)  # room that lacks is an error, not a signal
        whole = memoryview(mmap.mmap(file.fileno(), total, access=mmap.ACCESS_WRITE))
    return _seen_in(whole, header)


def read(path: Path) -> StateImage:
    """Such a file, mapped: nothing of it is copied before somebody asks for bytes.

    Raises:
        OSError: there is none.
        ImageRefused: it is not whole.
    """
    with path.open("rb") as file:
        header = _header_in(file)
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if whole.nbytes != file.tell() + header.nbytes:
            raise ImageRefused(f"{path} is cut short")
    return _seen_in(whole, header)


def _seen_in(whole: memoryview, header: ImageHeader) -> StateImage:
    """The image that lies in a file, behind its header."""
    at = whole.nbytes - header.nbytes
    views = []
    for spec in header.specs:
        views.append(TensorView(spec, whole[at : at + spec.nbytes]))
        at += spec.nbytes
    return StateImage(tuple(views), header.meta)


def header_of(path: Path) -> ImageHeader:
    """What such a file holds, without its bytes; raises as `read` does."""
    with path.open("rb") as file:
        return _header_in(file)


def _header_in(file: BinaryIO) -> ImageHeader:
    length = file.read(8)
    return ImageHeader.decoded(length + file.read(int.from_bytes(length, "little")))

"""Copies of a shard in the memory of two machines, for shards that have no replica.

What belongs here: taking copies, keeping a partner's, and finding them again. What does not: who
begins from which step (`statemachine.transition`), and how bytes travel (`transfer`).

Theory of operation. Every so many steps each holder copies its shard at the step boundary; that is
what the step pays. A thread puts the copy into a folder that lives in memory (tmpfs), so that it
outlives the process but not the machine, and lends it; the buddy, the holder of the next slot,
fetches it into a folder of its own. Two copies are kept, since not everybody has the newest at the
same instant. After the loss of one machine every shard has a copy at a common step: its holder's
or the buddy's. If a machine and its buddy are lost together, the checkpoint on the disk is left.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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

COPIES: Final = 2
NUMBER_BASE: Final = 1 << 20
"""Numbers under which copies are lent: this, and then two for each slot."""

ASKED_MAX: Final = 32
"""How many members are asked for copies at a launch; who held a slot before may sit in another."""

FETCH_TRIES: Final = 20
_TRY_S: Final = 0.1

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
    fetch_ms: list[float] = field(default_factory=list)
    _working: threading.Thread | None = None
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
        if self._working is not None and self._working.is_alive():
            log.info("no copy of step %d: the one before is still on its way", step)
            return
        began_s = time.perf_counter()
        image = copied(self.state().export(step=step + 1, cut=cut_of(self.layout)))
        self.copy_ms.append((time.perf_counter() - began_s) * 1000)
        ward = _before(holders, slot)
        self._working = threading.Thread(
            target=self._keep, args=(step, slot, image, ward), name="copies", daemon=True
        )
        self._working.start()

    def finish(self) -> None:
        """Wait for what is under way."""
        if self._working is not None:
            self._working.join(FETCH_TRIES * _TRY_S)

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

    def _keep(self, step: int, slot: Slot, image: StateImage, ward: Holder | None) -> None:
        began_s = time.perf_counter()
        try:
            self._put(slot, step, image)
            if ward is not None:
                self._put(ward.slot, step, self._copy_of(ward, step))
        except (OSError, TransferError) as error:
            log.warning("no copy of step %d: %s", step, error)
            return
        self.fetch_ms.append((time.perf_counter() - began_s) * 1000)

    def _put(self, slot: Slot, step: int, image: StateImage) -> None:
        write(image, self._path(slot, self._turn(step)))

    def _copy_of(self, ward: Holder, step: int) -> StateImage:
        """The partner's copy of the same step, which it may not have taken yet."""
        number = NUMBER_BASE + ward.slot * COPIES + self._turn(step)

        def into(header: ImageHeader) -> StateImage:
            if step_of(header) != step:
                raise ImageRefused(f"has the copy of step {step_of(header)}")
            return StateImage.allocate(header)

        for _ in range(FETCH_TRIES - 1):
            with suppress(TransferError):
                return self.borrow([ward], number, into)
            time.sleep(_TRY_S)
        return self.borrow([ward], number, into)

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
                image = read(self._path(slot, turn))
                if image.meta["stamp"].get("cut") == cut_of(self.layout):
                    self._found[step_of(image.header)] = None
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


def copied(image: StateImage) -> StateImage:
    """An image in memory of its own."""
    views = tuple(
        TensorView(view.spec, memoryview(bytearray(view.memory))) for view in image.tensors
    )
    return StateImage(views, image.meta)


def write(image: StateImage, path: Path) -> None:
    """Put an image into a file, whole or not at all (against a kill of the process; memory needs no
    fsync).
    """
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(image.header.encoded())
        for view in image.tensors:
            file.write(view.memory)
    draft.replace(path)


def read(path: Path) -> StateImage:
    """Read such a file.

    Raises:
        OSError: there is none.
        ImageRefused: it is not whole.
    """
    with path.open("rb") as file:
        length = file.read(8)
        header = ImageHeader.decoded(length + file.read(int.from_bytes(length, "little")))
        image = StateImage.allocate(header)
        for view in image.tensors:
            if file.readinto(view.memory) != view.memory.nbytes:
                raise ImageRefused(f"{path} is cut short")
    return image

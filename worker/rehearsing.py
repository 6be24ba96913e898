"""Rehearsals of one training process, and the recordings that they are made with.

What belongs here: priming, rehearsing a role, recording a step for others, and finding a recording.
What does not: the real steps (`loop`), what a rehearsal measures (`warmup.sandbox`).

Theory of operation. Groups are detached while a node holds no slot, so nothing that a step asks of
them can leave the process: what answers is the sandbox's far side. Nothing that a step does to the
registered state stays (`state.sandboxed`). What a script does beside both, writing a checkpoint or
a log, it does through `Run.outside`, which a rehearsal skips.

One node of each role, the one in its first slot, records the first step that it commits, writes the
file beside the run, and says so. It lends the file to whoever is told to rehearse the role.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from statemachine import messages as m
from statemachine.events import JobDeclared
from statemachine.ids import Role, Slot
from statemachine.layout import FIRST, LAST, MIDDLE, ONLY
from statemachine.topology import WarmupCaps
from worker.channel import Channel, ChannelClosed
from worker.groups.managed import ManagedGroup
from worker.handover import Handover
from worker.roles import PRIMING_STEPS, Roles
from worker.state import seed_step
from worker.step import Step
from worker.transfer import ImageHeader, ImageRefused, StateImage, TransferError
from worker.warmup import recording as recordings
from worker.warmup.caps import Bounds
from worker.warmup.lastwords import LastWords
from worker.warmup.recorder import Recorder
from worker.warmup.recording import Recording, RecordingUnusable
from worker.warmup.replay import Replay, StandIn
from worker.warmup.sandbox import REHEARSAL_STEPS, Rehearsal
from worker.warmup.stamp import Stamp

log = logging.getLogger("worker.rehearsing")

NUMBERS: Final[Mapping[Role, int]] = {FIRST: 0, MIDDLE: 1, LAST: 2, ONLY: 3}
"""What roles are called where only numbers are asked for, in a loan."""

WRITE_WAIT_S: Final = 5.0
"""How long the end of the process waits for a recording that is being written."""


class MakeStep(Protocol):
    """Makes one rehearsed step; `told` takes its loss."""

    def __call__(self, index: int, told: Callable[[float], None]) -> Step:
        """Make it."""
        ...


@dataclass
class Rehearsing:
    """What one process rehearses and records. `stamp` is set before the first step."""

    declared: JobDeclared
    writer: str
    folder: Path | None
    roles: Roles
    groups: Mapping[str, ManagedGroup]
    channel: Channel
    handover: Handover
    priming: WarmupCaps
    """What the steps that prime a role's parts may take."""
    stamp: Stamp | None = None
    _recorder: Recorder = field(default_factory=Recorder)
    _recorded: set[Role] = field(default_factory=set)
    _known: dict[Role, Recording] = field(default_factory=dict)
    _recording_now: bool = False
    _writing: threading.Thread | None = None
    _loss: float | None = None

    def __post_init__(self) -> None:
        """Let nothing that groups are asked leave the process, and lend what is recorded."""
        self._answer_with(StandIn())
        if self.folder is not None:
            self.handover.lend(self._lent)

    @property
    def digest(self) -> str:
        """The short name of the stamp."""
        return self.stamp.digest if self.stamp is not None else ""

    def _answer_with(self, sandbox: StandIn | Replay) -> None:
        for group in self.groups.values():
            group.sandbox = sandbox

    # --- rehearsing ---------------------------------------------------------------------------

    def prime(self, make_step: MakeStep) -> Iterator[Step]:
        """Do what the parts in force do only once; see `roles.PRIMING_STEPS`."""
        parts = self.roles.now
        if parts.steps >= PRIMING_STEPS:
            return
        self._stand_in(self.roles.slot)
        give_up = self._failed_to_prime
        try:
            with Bounds(self.priming, give_up, stand_back=False), parts.state.sandboxed():
                for index in range(parts.steps, PRIMING_STEPS):
                    seed_step(self.declared.seed, index, self.roles.slot)
                    yield make_step(index, self._told)
                    parts.steps += 1
        except GeneratorExit:
            LastWords(give_up)
            raise

    def _failed_to_prime(self, reason: str) -> None:
        """Tell why this process ends before it is ready; its agent starts another."""
        failed = m.Rehearsed(
            job=self.declared.job,
            role=self.roles.now.role,
            digest=self.digest,
            first_step_ms=0.0,
            steady_step_ms=0.0,
            took_ms=0.0,
            failure=f"while priming: {reason}",
        )
        self._say(failed)

    def rehearse(
        self, order: m.Rehearse, make_step: MakeStep, interrupted: Callable[[], bool]
    ) -> Iterator[Step]:
        """Rehearse a role in the sandbox, and tell how it went."""
        rehearsal = Rehearsal(order, self.digest)

        def give_up(reason: str) -> None:
            rehearsal.fail(reason)
            self._say(rehearsal.outcome())

        try:
            with Bounds(order.caps, give_up, wanted=interrupted):
                yield from self._rehearse(order, rehearsal, make_step, interrupted)
        except GeneratorExit:
            LastWords(give_up)
            raise
        self._say(rehearsal.outcome())

    def _rehearse(
        self,
        order: m.Rehearse,
        rehearsal: Rehearsal,
        make_step: MakeStep,
        interrupted: Callable[[], bool],
    ) -> Iterator[Step]:
        slot = self.roles.slot_of(order.role)
        if slot is None:
            rehearsal.fail(f"the layout has no slot of role {order.role}")
            return
        found = self._found(order, rehearsal)
        if rehearsal.failed:
            return
        self._stand_in(slot)
        rehearsal.taken = self.roles.take(slot, with_weights=True)
        parts = self.roles.now
        first = found.step if found is not None else 0
        with parts.state.sandboxed(), self._replaying(found, rehearsal):
            for index in range(REHEARSAL_STEPS):
                if index and interrupted():
                    rehearsal.fail("interrupted: this node is needed")
                    break
                seed_step(self.declared.seed, first, slot)
                self._loss = None
                step = make_step(first if found is not None else index, self._told)
                rehearsal.begin_step()
                yield step
                parts.steps += 1
                rehearsal.end_step(parts.state, voted=step.voted, loss=self._loss)
                rehearsal.state_bytes = parts.state.nbytes
        self.roles.rest()

    def _stand_in(self, slot: Slot) -> None:
        """Let every group answer as the member that a slot's rank is."""
        layout = self.roles.layout
        rank = layout.ranks_of(slot)[0]
        for ref in layout.groups_of_rank(rank):
            if ref.kind in self.groups:
                self.groups[ref.kind].stand_at(sorted(ref.ranks).index(rank))

    def _told(self, loss: float) -> None:
        self._loss = loss

    @contextmanager
    def _replaying(self, found: Recording | None, rehearsal: Rehearsal) -> Iterator[None]:
        if found is not None:
            replay = Replay(found)
            rehearsal.use(replay)
            self._answer_with(replay)
        try:
            yield
        finally:
            self._answer_with(StandIn())

    # --- finding a recording ------------------------------------------------------------------

    def _found(self, order: m.Rehearse, rehearsal: Rehearsal) -> Recording | None:
        """The recording that an order names: known, in the folder, or from a node that has it."""
        if not order.recording or self.stamp is None:
            return None
        try:
            kept = self._kept(order.role, order.recording)
            if kept is None and not order.recording_from:
                log.warning("nobody has recording %s any more: done without", order.recording)
                return None  # less of a proof, but a job must not lack standbys for ever
            found = kept or self._fetched(order)
            found.check(self.stamp, f"recording {order.recording}")
        except (RecordingUnusable, TransferError, OSError) as error:
            rehearsal.fail(f"recording {order.recording} cannot be used: {error}")
            return None
        self._known[order.role] = found
        return found

    def _kept(self, role: Role, name: str) -> Recording | None:
        known = self._known.get(role)
        if known is None and self.folder is not None:
            with suppress(RecordingUnusable, OSError):
                known = recordings.load(recordings.path_of(self.folder, role))
        return known if known is not None and known.name == name else None

    def _fetched(self, order: m.Rehearse) -> Recording:
        """From a node that has it; kept in the folder, for this node may have to lend it."""

        def into(header: ImageHeader) -> StateImage:
            name = header.meta.get("recording")
            if name != order.recording:
                raise ImageRefused(f"has recording {name}")
            return StateImage.allocate(header)

        image = self.handover.borrow(order.recording_from, NUMBERS[order.role], into)
        found = Recording.from_image(image, "what was lent")
        if self.folder is not None:
            path = recordings.path_of(self.folder, order.role)
            with suppress(OSError):
                recordings.save(found, path, self.writer)
        return found

    def _lent(self, number: int) -> StateImage | None:
        """The recording that is lent under a number; called on the server's threads."""
        role = next((role for role, own in NUMBERS.items() if own == number), None)
        known = self._known.get(role) if role is not None else None
        return known.image if known is not None else None

    # --- recording ----------------------------------------------------------------------------

    def step_begins(self, slot: Slot) -> None:
        """A real step begins in a slot: record it, if that is this slot's to do and not done."""
        role = self.roles.layout.role_of(slot)
        if self.folder is None or role in self._recorded:
            return
        if self.roles.slot_of(role) != slot:
            self._stop()
            self._recorded.add(role)
            return
        if not self._recording_now and self._has_one(role):
            return
        self._recorder.begin()
        self._recording_now = True
        for group in self.groups.values():
            group.recorder = self._recorder

    def _has_one(self, role: Role) -> bool:
        """Whether a fresh recording is there already, from before this process; then say so."""
        assert self.folder is not None
        assert self.stamp is not None
        if role in self._known:  # rehearsed with: the job knows it
            self._recorded.add(role)
            return True
        path = recordings.path_of(self.folder, role)
        try:
            found = recordings.load(path)
            found.check(self.stamp, str(path))
        except FileNotFoundError:
            return False
        except (RecordingUnusable, OSError) as error:
            log.info("recording anew: %s", error)
            return False
        self._recorded.add(role)
        self._made(role, found, 0.0)
        return True

    def step_ended(self, step: int, slot: Slot, *, committed: bool) -> None:
        """That step ended: what it recorded counts if it was committed."""
        if not self._recording_now or not committed:
            return
        assert self.stamp is not None
        self._stop()
        role = self.roles.layout.role_of(slot)
        self._recorded.add(role)
        self._writing = threading.Thread(
            target=self._write, args=(role, step, self.stamp), name="recording", daemon=True
        )
        self._writing.start()

    def _stop(self) -> None:
        self._recording_now = False
        for group in self.groups.values():
            group.recorder = None

    def _write(self, role: Role, step: int, stamp: Stamp) -> None:
        assert self.folder is not None
        began_s = time.perf_counter()
        try:
            made = self._recorder.finish(role, step, stamp)
            recordings.save(made, recordings.path_of(self.folder, role), self.writer)
        except (OSError, ValueError, TypeError) as error:
            log.warning("nothing was recorded for role %s: %s", role, error)
            told = m.Recorded(job=self.declared.job, role=role, failure=str(error))
            self._say(told)
            return
        spent_s = self._recorder.spent_s + time.perf_counter() - began_s
        self._made(role, made, spent_s * 1000)

    def _made(self, role: Role, made: Recording, took_ms: float) -> None:
        self._known[role] = made
        self._say(
            m.Recorded(
                job=self.declared.job,
                role=role,
                recording=made.name,
                digest=self.digest,
                step=made.step,
                nbytes=made.nbytes,
                tensors=len(made.image.tensors),
                took_ms=took_ms,
            )
        )

    def _say(self, message: m.FromWorker) -> None:
        with suppress(ChannelClosed):
            self.channel.send(message)

    def close(self) -> None:
        """Let a recording that is being written come to its end."""
        if self._writing is not None:
            self._writing.join(WRITE_WAIT_S)

"""The training loop's side: the only place where an epoch may change under the user's feet.

What belongs here: joining, the step iterator, the boundary vote, and what happens between two
steps. What does not: sockets (`groups`), bytes of state (`transfer`), the agent (`control`).

Theory of operation. `steps()` yields a step; the user's code computes gradients and calls
`vote()`. The vote is a MIN over every rank of four small numbers. If it passes, every rank holds
its gradients and applies them. If a group broke, this rank parks inside `vote()` until the control
plane says where the job resumes: either "apply it now" (some rank saw the vote pass) or "discard
it". Groups, weights and the step number change only between two steps, here, in `steps()`.

A standby runs the same script. Until it holds a slot its groups are detached (every collective is
local), and its steps are rehearsals whose results are thrown away.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from statemachine import messages as m
from statemachine.errors import EventCorrupt
from statemachine.events import Motive, Report
from statemachine.ids import TransitionId
from statemachine.topology import Holder, WarmupCaps
from worker import phases
from worker.channel import Channel, WorkerChannel
from worker.control import Control
from worker.faultpoints import STEP_BEGIN, listen, reach
from worker.faults import SlowCompute
from worker.groups.choice import MakeBackend, chosen
from worker.groups.keeping import Keeping
from worker.groups.links import LinkEndpoint
from worker.groups.port import GroupPlan
from worker.handover import Handover
from worker.membership import make_groups, peers_of, switch_groups
from worker.orders import Become, Order
from worker.place import Place
from worker.progress import Progress
from worker.pulse import Pulse
from worker.rehearsing import Rehearsing
from worker.roles import PerRole, Roles, Taken
from worker.saves import NOTHING_SAVED, Plan, Saves, saves_in
from worker.seat import Seat, layout_of
from worker.startup import Startup
from worker.state import TrainingState, seed_step
from worker.step import Step
from worker.telling import applied, ready
from worker.vigil import Answering, Vigil
from worker.warmup.stamp import stamp_of

log = logging.getLogger("worker.loop")

WINDOW_VARIABLE = "CHANGEOVER_WINDOW_S"
"""Environment variable: length of a window of vitals in seconds (30 unless set)."""


SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from a step, whose every operation asks for it."""

R = TypeVar("R")


class NotRegistered(Exception):
    """`steps()` before `register()`: a joiner would have nothing to receive."""


def join(channel: Channel | None = None, *, groups: str | None = None) -> "Run":
    """Join the job as this node, and return its run. Call it first in the script.

    `groups` is what its groups have inside, ``delta`` or another; see `worker.groups.choice`.

    Raises:
        BadChoice: `groups` names nothing that there is.
        NotUnderAgent: no agent started this process.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    sys.setswitchinterval(SWITCH_S)
    make_backend = chosen(groups)
    channel = channel if channel is not None else WorkerChannel.from_environment()
    first = channel.receive()
    if not isinstance(first, m.Hello):
        raise EventCorrupt(f"the agent began with {type(first).__name__} instead of Hello")
    return Run(channel, first, make_backend)


class Run(Place):
    """This process's part in a job. Made by `join`."""

    def __init__(self, channel: Channel, hello: m.Hello, make_backend: MakeBackend) -> None:
        listen()
        self.node, self.incarnation = hello.node, hello.incarnation
        self.declared = hello.declared
        self.job = hello.declared.job
        self.layout = layout_of(hello.declared)
        self.seed = hello.declared.seed
        self._secret = Path(hello.secret_path).read_bytes()
        self._channel = channel
        self._seat: Seat | None = None
        self._roles = Roles(self.layout)
        self._taken = Taken()
        self._startup = Startup()
        self._local_rank = 0
        self._next = 0
        self._total = 0
        self._has_state = False
        self._finished = False
        host = hello.host
        endpoint = LinkEndpoint(self.job, self.node, self.incarnation, self._secret, host)
        self._endpoint = endpoint
        limit_s = hello.patience.hang_deadline_s
        ours = self.layout, self._local_rank
        self._groups = make_groups(
            *ours, lambda kind: make_backend(kind, endpoint, self._peer_reset, limit_s)
        )
        self._keeping = Keeping(self._mend)
        for group in self._groups.values():
            group.keeping = self._keeping
        self._handover = Handover(self._secret, self.job, self.node, self.incarnation, host)
        self._control = Control(channel, self.job, *ours, self._groups, lambda: self._seat)
        self._control.needs_parts = self._roles.needs
        self._control.expect = partial(self._handover.expect, self.layout)
        self._control.give = self._give_early
        self._control.take = lambda: self._handover.accept(self._state)
        self._rehearsing = Rehearsing(
            hello.declared,
            f"{self.node}.{self.incarnation}",
            Path(hello.recordings) if hello.recordings else None,
            self._roles,
            self._groups,
            channel,
            self._handover,
            WarmupCaps(deadline_s=hello.patience.warmup_deadline_s),
        )
        window_s = float(os.environ.get(WINDOW_VARIABLE, "30"))
        self._pulse = Pulse(
            self.node, self.incarnation, self.job, window_s, list(self._groups.values())
        )
        phases.tell(partial(self._window, anyhow=True))
        self._answering = Answering(self._secret, self.job, endpoint.address)
        self._vigil = Vigil(
            self._secret, self.job, hello.patience, self._watched_plans, self._control.peer_silent
        )
        self._progress = Progress(channel)
        self._slow = SlowCompute.from_environment()
        self._registered = False
        self._stopped = False
        self._saves = NOTHING_SAVED

    # --- what the user asks -------------------------------------------------------------------

    def register(
        self, *, model: Any = None, optimizer: Any = None, data: Any = None, **extra: Any
    ) -> None:
        """Name what makes a run the same run: what a joiner must receive.

        Raises:
            StateRefused: a value that cannot travel without pickle, named by its key.
        """
        self._state.register(model=model, optimizer=optimizer, data=data, **extra)
        self._registered = True

    def resume_with(self, newest: Callable[[], int], load: Callable[[int], None]) -> None:
        """Say how this process goes on from a checkpoint; call it before `steps`.

        Where the job is launched and `newest()` is known of every shard, it begins behind that
        step: one replica of each calls `load(step)`, which puts that state into what is registered,
        and gives it to the others. `newest` returns the last step whose update is in the newest
        whole checkpoint, or -1; it is called on another thread, at each launch. Both are called in
        the middle of a run, too, where a shard is lost that nobody else holds.
        """
        self._saves = Saves(newest, load)
        self._control.saves = self._saves.known

    def checkpoint(self, folder: str | Path, **how: Unpack[Plan]) -> None:
        """Write each shard's state to a folder of the job every so many steps, beside the run, and
        begin a launch with the newest that is whole; call it before `steps`. See `saves.Plan`.

        Raises:
            CheckpointUnusable: the folder cannot be written.
        """
        self._saves = saves_in(Path(folder), self._control, self._handover, self._roles, **how)

    def per_role(self, build: Callable[[], R]) -> PerRole[R]:
        """Let `build` make the parts of a role, where stages differ; call the result for them.

        It is called once for each role that this process takes on: `coordinate` then tells for
        which, and what it registers belongs to that role. Its first weights may depend on the
        coordinates of its shard and on the seed, and on nothing else.
        """
        self._registered = True
        self._roles.begin(build)
        return PerRole(self._roles)

    # --- steps --------------------------------------------------------------------------------

    def steps(self, total: int | None = None) -> Iterator[Step]:
        """Iterate over the job's steps, up to `total` or until an operator stops the job; the
        rehearsals of a standby come first.

        Raises:
            NotRegistered: `register` was not called before.
            AgentGone: this node's agent ended.
        """
        if not self._registered:
            raise NotRegistered("call run.register(model=..., optimizer=...) before run.steps()")
        self._total = sys.maxsize if total is None else total
        self._last = self._total - 1
        self._control.start()
        try:
            stamp = stamp_of(self.layout, self._export().header.specs)  # before any step
            self._rehearsing.stamp = stamp
            self._startup.reached("build")
            log.info("code and state: %s (%s)", stamp.digest, stamp)
            yield from self._startup.each("prime", self._rehearsing.prime(self._rehearsed_step))
            gc.collect()
            gc.freeze()  # what stands by now stays: looking through all of it would stall a step
            self._say_ready()
            while not self._stopped:
                if self._seat is not None and not self._control.is_called_off():
                    if self._next <= self._last:
                        yield from self._train()
                        continue
                    self._finish()
                order, seat = self._wait()
                if isinstance(order, m.Rehearse):
                    yield from self._rehearsing.rehearse(
                        order, self._rehearsed_step, self._control.has_orders
                    )
                elif isinstance(order, Become):
                    yield from self._become(order)
                else:
                    self._obey(order, seat)
        finally:
            self._close()

    @property
    def _state(self) -> TrainingState:
        return self._roles.state

    def _rehearsed_step(self, index: int, told: Callable[[float], None]) -> Step:
        return Step(index, self._vote, told, rehearsal=True)

    def _become(self, order: Become) -> Iterator[Step]:
        """Put the parts of a slot's role in force, before its links are said to be ready."""
        self._taken = self._roles.take(order.slot, launch=order.launch)
        log.info("the parts of slot %d: %s", order.slot, self._taken)
        yield from self._rehearsing.prime(self._rehearsed_step)
        self._control.became()

    def _train(self) -> Iterator[Step]:
        step = Step(self._next, self._vote, self._pulse.record)
        assert self._seat is not None
        slot = self._seat.slot
        seed_step(self.seed, step.index, self._seat.rank)
        self._rehearsing.step_begins(slot)
        self._state.snapshot_volatile()
        self._control.step_begins(Report(has_state=True, applied=step.index - 1))
        self._keeping.step_begins()
        self._pulse.begin_step()
        self._vigil.step_began()
        reach(STEP_BEGIN)
        yield step
        if not step.voted:
            raise RuntimeError(
                f"step {step.index} ended without step.vote(): call it once per step, after "
                "backward and before optimizer.step()"
            )
        self._rehearsing.step_ended(step.index, slot, committed=step.passed)
        if step.passed:
            self._roles.now.steps += 1
            self._committed(step)
        else:
            self._state.rewind_volatile()
            self._progress.declined(step)
        if step.order is not None:
            self._obey(*step.order)
        elif step.switch_to:
            self._switch_planned(step.switch_to)

    def _committed(self, step: Step) -> None:
        self._pulse.end_step(step.index)
        self._next = step.index + 1
        self._finished = False  # whoever stopped too early ends again
        assert self._seat is not None
        told = step.order is None
        if self._progress.committed(step.index, self._seat, self._pulse, told=told):
            log.info("step %d, the first of its epoch: %s", step.index, self._pulse.account())
        self._window()
        self._saves.after_step(step.index, self._seat)
        reach("step.committed")

    def _window(self, *, anyhow: bool = False) -> None:
        seat = self._seat
        if seat is not None and (anyhow or self._pulse.due()):
            role = self.layout.role_of(seat.slot)
            self._channel.send(m.Window(vitals=self._pulse.close(seat.slot, role, seat.epoch)))

    # --- the vote -----------------------------------------------------------------------------

    def _vote(self, step: Step, ok: bool) -> bool:
        if step.rehearsal:
            return ok
        self._keeping.spend()
        self._slow.burn(self._pulse.work_so_far_s())
        reach("vote.before")
        sound = self._control.may_vote()
        sound = sound and not any(group.broken for group in self._groups.values())
        stop = self._control.stop_requested
        values = [int(sound), int(ok), self._control.committed(), int(stop)]
        for group in self._groups.values():
            if group.attached:
                values = group.vote(values) or [0, 0, 0, 0]
        reach("vote.after")
        if values[0] == 1:
            step.switch_to = TransitionId(values[2])
            if values[1]:
                self._handover.withdraw()  # who voted has received what it was offered
            if values[1] and values[3]:
                self._last = step.index
            return values[1] == 1
        return self._parked_vote(step, holds_gradients=sound and ok)

    def _parked_vote(self, step: Step, *, holds_gradients: bool) -> bool:
        pending = step.index if holds_gradients else -1
        report = Report(has_state=True, applied=step.index - 1, pending=pending)
        order, seat = self._control.park(report, holds_slot=True, broken=self._why_broken())
        step.order = (order, seat)
        if isinstance(order, m.Commit) and order.apply and order.resume_step == step.index + 1:
            self._handover.withdraw()
            return True
        return False

    def _why_broken(self) -> str:
        groups = self._groups.items()
        return "; ".join(f"{kind}: {group.cause}" for kind, group in groups if group.broken)

    def _mend(self) -> bool:
        """In the first collective of a step, whose group broke: have the step go on if it can."""
        found = self._control.wait_in_step(self._why_broken(), self._goes_on)
        if found is None:
            return False
        self._take_seat(*found, in_step=True)
        self._pulse.begin_step()
        self._vigil.step_began()
        log.info("step %d goes on in epoch %d", self._next, found[0].epoch)
        return True

    def _goes_on(self, order: m.Commit, seat: Seat) -> bool:
        """Whether a step that is under way is the one to be done in this seat, as it is."""
        before = self._seat
        if before is None or (seat.slot, seat.shape) != (before.slot, before.shape):
            return False
        same_state = not (order.leave or order.apply or order.loads or order.receive)
        return same_state and order.resume_step == self._next

    # --- between steps ------------------------------------------------------------------------

    def _wait(self) -> tuple[Order, Seat | None]:
        report = Report(has_state=self._has_state, applied=self._next - 1)
        if not self._has_state:
            report = Report(has_state=False)
        return self._control.park(report, holds_slot=self._seat is not None)

    def _obey(self, order: Order, seat: Seat | None) -> None:
        match order:
            case m.Commit():
                if order.leave:
                    self._leave(keeps_state=not self._give(order))
                elif seat is not None:
                    self._take_seat(order, seat)
            case m.Release():
                self._leave()
            case m.Stop():
                self._stopped, self._ended_in = True, self._seat if self._finished else None
                self._leave()
            case m.Rehearse() | Become():
                log.warning("asked to rehearse while holding a slot; not done")

    def _switch_planned(self, transition: TransitionId) -> None:
        taken = self._control.take_commit(transition)
        if taken is not None:
            self._obey(*taken)

    def _give(self, order: m.Commit) -> bool:
        """Hand the state over; False if a loss came between: perhaps nobody else holds it then."""
        began_s = time.perf_counter()
        self._handover.offer(order.transition, order.send, self._export)
        if not self._handover.finish_serving(self._control.interrupt):
            return False
        took_ms = (time.perf_counter() - began_s) * 1000
        self._channel.send(applied(order, self._next, {"transfer": took_ms}))
        return True

    def _export(self, *, in_step: bool = False) -> Any:
        export = self._state.export_before_step if in_step else self._state.export
        return export(step=self._next, job=self.job)

    def _give_early(self, transition: TransitionId, takers: Sequence[Holder]) -> None:
        """On another thread, while the training thread is in a step."""
        self._handover.offer(transition, takers, partial(self._export, in_step=True))

    def _take_seat(self, order: m.Commit, seat: Seat, *, in_step: bool = False) -> None:
        self._handover.withdraw(but=order.transition)
        self._last = self._total - 1  # who stopped at a vote that others missed votes again
        phases = {"quiesce": self._control.quiesce_ms(order.transition)}
        if order.loads:
            phases["load"] = self._load(order.resume_step)
        self._handover.offer(order.transition, order.send, partial(self._export, in_step=in_step))
        received = 0
        if order.receive is not None:
            self._has_state = False
            began_s = time.perf_counter()
            fetched = self._handover.fetch(order, self._state, self._control.interrupt)
            phases["transfer"] = (time.perf_counter() - began_s) * 1000
            if fetched is None:
                return  # a further loss: the next transition says what to do
            received, self._next = fetched
            self._roles.now.hollow = False
        elif order.motive is not Motive.PLANNED:
            self._next = order.resume_step
        self._has_state = True
        reach("switch.before")
        before, self._seat = self._seat, seat
        everything = order.motive is not Motive.PLANNED
        phases["switch"] = switch_groups(self._groups, seat, before, everything=everything)
        if self._taken.took_ms:
            phases["parts"] = self._taken.took_ms
            self._taken = Taken()
        self._pulse.drop()
        done = applied(order, self._next, phases, peers_of(seat), received, keeps_step=in_step)
        self._channel.send(done)
        reach("switch.after")

    def _load(self, next_step: int) -> float:
        """Go on from the checkpoint before a step; how long it took, in ms."""
        began_s = time.perf_counter()
        self._saves.load(next_step - 1)
        self._next = next_step
        self._roles.now.hollow = False
        return (time.perf_counter() - began_s) * 1000

    def _leave(self, *, keeps_state: bool = False) -> None:
        self._vigil.rest()
        self._seat = None
        self._has_state = self._has_state and keeps_state
        for group in self._groups.values():
            group.detach()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._vigil.rest()
        self._window()
        self._channel.send(
            m.Finished(
                step=self._next - 1,
                weights_digest=self._state.weights_digest(),
                loss=self._pulse.loss,
            )
        )

    def _close(self) -> None:
        self._vigil.close()
        self._answering.close()
        self._rehearsing.close()
        self._saves.finish(over=self._stopped)
        self._handover.close()
        for group in self._groups.values():
            group.close()
        self._endpoint.close()

    def _say_ready(self) -> None:
        self._channel.send(
            ready(
                self._endpoint.address,
                self._handover.port,
                digest=self._rehearsing.digest,
                state_bytes=self._export().nbytes,
                records=self._rehearsing.folder is not None,
                phases_ms=self._startup.phases_ms(),
            )
        )

    def _watched_plans(self) -> list[GroupPlan]:
        seats = (self._seat, self._control.prepared_seat())
        return [plan for seat in seats if seat is not None for plan in seat.plans.values()]

    def _peer_reset(self, member: Any, group: str) -> None:
        self._control.peer_reset(member.node, member.incarnation, group)


__all__ = ["NotRegistered", "Run", "Step", "join"]

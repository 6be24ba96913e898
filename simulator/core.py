"""The state machine on virtual time: facts in, `settle`, projections and instructions out.

This is the shell's loop with everything real taken out: `evolve` folds, `settle` decides,
`participant` says what each node does, and what a training process would answer is asked of
`Replies`. No rule is written here.

Theory of operation. A job of 8,192 machines has 8,192 nodes that nothing ever happens to, and a
transition would have each of them acknowledge. So healthy nodes are *implicit*: the state holds
records only of nodes that something concerns: those lost, joining, under a verdict, and one replica
of each slot that is to be filled (somebody must hold its state, or the rules refuse to resume).
A node that nothing concerns any more is put aside with its record, and comes back with it. What
the rules see is a job of which the other slots have not spoken; they do not ask how many there are.
With `explicit` every node is there from the launch on: a test holds the two to the same decisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace
from rpds import HashTrieMap, HashTrieSet

from simulator.agenda import Agenda
from simulator.scenario import Scenario
from simulator.scenario_file import policy_for
from statemachine import events as e
from statemachine import messages as m
from statemachine.decide import next_deadline, settle
from statemachine.evolve import evolve
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Slot, TransitionId
from statemachine.indexes import PRESENT, refresh_pool
from statemachine.lifecycle import AWAY_STATES, NodeState
from statemachine.participant import (
    Instruction,
    Participant,
    RunRound,
    Submit,
    Tell,
    on_desired,
    on_message,
    on_orders,
)
from statemachine.state import FleetState, Job, Node
from statemachine.topology import Desired, desired_of, orders_of, subjects

JOB: Final = JobId("job")
HARDWARE: Final = "sim"
DIGEST: Final = "sim"
EPOCH_MS: Final = 1_700_000_000_000
"""Unix ms of virtual time 0: rules compare times, and 0 means 'never' to some of them."""


class Replies(Protocol):
    """What a node's training process and probes answer, later and on virtual time."""

    def told(self, me: Participant, message: m.ToWorker) -> None:
        """A training process was told something."""

    def asked_round(self, me: Participant, round_: RunRound) -> None:
        """A node shall measure one round of a sweep."""

    def heard(self, recorded: e.Recorded) -> None:
        """The state machine decided something."""


encode_entry = msgspec.json.Encoder().encode
"""As the codec encodes, without its limit: the plan of a launch of thousands is over 64 KiB."""


def node_id(number: int) -> NodeId:
    """The name of a machine."""
    return NodeId(f"n{number:06d}")


def number_of(node: str) -> int:
    """The machine of a name."""
    return int(node[1:])


class Core:
    """One fleet's state, and the participants of the nodes that have a record."""

    def __init__(self, scenario: Scenario, agenda: Agenda, replies: Replies, standbys: int) -> None:
        self.scenario = scenario
        self.agenda = agenda
        self.replies = replies
        self.participants: dict[NodeId, Participant] = {}
        self.aside: dict[NodeId, Node] = {}
        self.keep: Callable[[e.Recorded], None] | None = None
        self.entries = 0
        self._ended: set[NodeId] = set()
        """Whose life ended since records were put aside last."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._dirty_jobs = False
        self._dirty_nodes: set[NodeId] = set()
        self._unsettled = False
        self._wake_ms = 0
        self._replicas: dict[int, tuple[Slot, ...]] = {}
        self._desired: Desired | None = None
        self._knows: dict[NodeId, Participant] = {}
        """Who heard the desired topology as it is now, and what it was after that."""
        policy = policy_for(scenario)
        self.state = FleetState(policy=policy, at_ms=EPOCH_MS)
        self.declared = e.JobDeclared(
            job=JOB,
            axes=dict(scenario.job.axes),
            ranks_per_node=scenario.fleet.gpus_per_node,
            standbys=standbys,
            by="simctl",
        )

    @property
    def now_ms(self) -> int:
        """Virtual Unix ms."""
        return EPOCH_MS + round(self.agenda.now_s * 1000)

    @property
    def job(self) -> Job:
        """The job's record."""
        return self.state.jobs[JOB]

    @property
    def digest(self) -> str:
        """Stands for every entry of the log so far."""
        return self._digest.hexdigest()

    def replicas_of(self, slot: int) -> tuple[Slot, ...]:
        """The slots that hold the same state; asked for often, and constant."""
        found = self._replicas.get(slot)
        if found is None:
            found = self._replicas[slot] = self.job.layout.replicas_of(slot)
        return found

    # --- the log ------------------------------------------------------------------------------

    def submit(self, event: e.AnyEvent, writer: str = "simctl") -> None:
        """Append a fact; what follows from it is decided when the present action is over."""
        entry = e.Recorded(
            position=Position(self.state.position + 1),
            at_ms=self.now_ms,
            writer=writer,
            event=event,
        )
        self.state = evolve(self.state, entry)
        self._note(entry)
        self._unsettled = True
        self.replies.heard(entry)

    def _note(self, entry: e.Recorded) -> None:
        self.entries += 1
        self._digest.update(encode_entry(entry))
        if self.keep is not None:
            self.keep(entry)
        if isinstance(entry.event, e.NodeLeft | e.NodeLost):
            self._ended.add(entry.event.node)
        jobs, nodes = subjects(entry.event)
        self._dirty_jobs = self._dirty_jobs or bool(jobs)
        self._dirty_nodes.update(nodes)

    def rest(self, before_deciding: Callable[[], None]) -> None:
        """Decide, tell everybody, and decide again until nothing follows."""
        while self._unsettled or self._dirty_nodes or self._dirty_jobs:
            before_deciding()
            self._unsettled = False
            settled = settle(self.state, self.now_ms, "simctl")
            self.state = settled.state
            for entry in settled.recorded:
                self._note(entry)
            for entry in settled.recorded:  # what follows from them comes after all of them
                self.replies.heard(entry)
            self._deliver()
            self._set_alarm()

    def _set_alarm(self) -> None:
        due_ms = next_deadline(self.state, self.now_ms, self.state.policy)
        if due_ms is None or due_ms == self._wake_ms:
            return
        self._wake_ms = due_ms
        self.agenda.at((due_ms - EPOCH_MS) / 1000 + 1e-4, lambda: self._alarm(due_ms))

    def _alarm(self, due_ms: int) -> None:
        if due_ms == self._wake_ms:
            self._wake_ms = 0
            self._unsettled = True

    # --- projections and answers --------------------------------------------------------------

    def _deliver(self) -> None:
        nodes, jobs = self._dirty_nodes, self._dirty_jobs
        self._dirty_nodes, self._dirty_jobs = set(), False
        for name in sorted(nodes):
            me, record = self.participants.get(name), self.state.nodes.get(name)
            if me is not None and record is not None:
                self._took(on_orders(me, orders_of(self.state, record)))
        if jobs and JOB in self.state.jobs:
            self._deliver_desired(replace(desired_of(self.state, self.job), position=Position(0)))

    def _deliver_desired(self, desired: Desired) -> None:
        """Like a watched key: who heard it as it is, and has changed in nothing, hears no more."""
        if desired != self._desired:
            self._desired, self._knows = desired, {}
        for name in sorted(self.participants):
            me = self.participants[name]
            if self._knows.get(name) is not me:
                after = on_desired(me, desired)
                self._took(after)
                self._knows[name] = after[0]

    def _took(self, outcome: tuple[Participant, tuple[Instruction, ...]]) -> None:
        me, instructions = outcome
        self.participants[me.node] = me
        for instruction in instructions:
            match instruction:
                case Tell():
                    self.replies.told(me, instruction.message)
                case Submit():
                    self.submit(instruction.event, me.node)
                case RunRound():
                    self.replies.asked_round(me, instruction)

    def say(self, node: NodeId, incarnation: Incarnation, said: m.FromWorker) -> None:
        """A training process says something, unless its life is over."""
        me = self.participants.get(node)
        if me is not None and me.incarnation == incarnation:
            self._took(on_message(me, said))

    # --- nodes come and go --------------------------------------------------------------------

    def join(self, number: int, incarnation: int, *, ready: bool = True) -> None:
        """A machine's agent takes a lease and its training process is ready."""
        name = node_id(number)
        self.recall(number)
        me = Participant(node=name, incarnation=Incarnation(incarnation), job=JOB)
        self.participants[name] = me
        self.submit(
            e.NodeJoined(
                node=name,
                incarnation=me.incarnation,
                host=name,
                ranks=self.scenario.fleet.gpus_per_node,
                hardware=HARDWARE,
                probe_port=1,
            ),
            name,
        )
        if ready:
            self._took(on_message(me, _ready(name)))

    def recall(self, number: int) -> Node | None:
        """The record of a machine whose life is over, back in the state: the fleet remembers it."""
        name = node_id(number)
        node = self.aside.pop(name, None)
        if node is not None and node.state in AWAY_STATES:
            self.state = replace(self.state, nodes=self.state.nodes.insert(name, node))
            self._ended.add(name)
        return self.state.nodes.get(name)

    def part(self, number: int) -> None:
        """A machine's participant is no more."""
        self.participants.pop(node_id(number), None)

    def launch_implicit(self) -> None:
        """The job as it is after its launch, with every holder implicit."""
        self.submit(self.declared)
        job = replace(self.job, epoch=Epoch(1), last_transition=1, launched=True, began=True)
        reference = {"gemm_gflops_best": 100.0, "link_mbps_best": 100.0}
        self.state = replace(
            self.state,
            jobs=self.state.jobs.insert(JOB, job),
            present=self.scenario.slots,
            reference=self.state.reference.insert(HARDWARE, (reference,)),
        )

    def relaunch_implicit(self, revived: Iterable[NodeId]) -> None:
        """The job after a launch from a checkpoint: holders are implicit again, and so are those
        whose record says that an earlier life is over.
        """
        parties = {name for n in self.state.sweeps for name in self.state.sweeps[n].parties()}
        nodes, found = self.state.nodes, 0
        for name in revived:
            self.aside.pop(name, None)
            found += 1
            if name in nodes and name not in parties:
                nodes = nodes.remove(name)
        before = self.job
        job = replace(
            before,
            epoch=Epoch(before.epoch + 1),
            last_transition=TransitionId(before.last_transition + 1),
            launched=True,
            began=True,
            vacant=HashTrieSet(),
            holders=HashTrieMap(),
        )
        state = replace(self.state, nodes=nodes, present=self.state.present + found)
        self.state = refresh_pool(replace(state, jobs=state.jobs.insert(JOB, job)), job)
        self._dirty_jobs = self._unsettled = True

    def materialise(self, number: int, slot: int, incarnation: int) -> None:
        """Give a healthy holder its record back."""
        name = node_id(number)
        if name in self.participants:
            return
        node = self.aside.pop(name, None) or self._fresh(name, slot, incarnation)
        job = replace(self.job, holders=self.job.holders.insert(Slot(slot), name))
        self.state = replace(
            self.state,
            nodes=self.state.nodes.insert(name, node),
            jobs=self.state.jobs.insert(JOB, job),
        )
        self.participants[name] = Participant(
            node=name,
            incarnation=node.incarnation,
            job=JOB,
            ready=_ready(name),
            epoch=job.epoch,
            slot=Slot(slot),
            member=True,
        )

    def _fresh(self, name: NodeId, slot: int, incarnation: int) -> Node:
        said = _ready(name)
        worker = e.WorkerReady(
            node=name,
            incarnation=Incarnation(incarnation),
            job=JOB,
            host=said.host,
            port=said.port,
            transfer_port=said.transfer_port,
            pid=said.pid,
            digest=said.digest,
        )
        return Node(
            node=name,
            incarnation=Incarnation(incarnation),
            state=NodeState.ACTIVE,
            host=name,
            since_at_ms=EPOCH_MS,
            joined_at_ms=EPOCH_MS,
            hardware=HARDWARE,
            probe_port=1,
            worker=worker,
            job=JOB,
            slot=Slot(slot),
            indexed=PRESENT,
        )

    def put_aside(self, needed: Iterable[NodeId]) -> None:
        """Make every healthy holder implicit again that nothing concerns, and put away what is
        remembered of machines that are no more: rules look through all records there are.
        """
        job = self.state.jobs.get(JOB)
        if job is None or job.pending is not None or job.vacant:
            return
        if not self._ended and not len(job.holders):
            return
        wanted = set(needed)
        for number in self.state.sweeps:
            wanted.update(self.state.sweeps[number].parties())
        state, holders = self._without_ended(wanted), job.holders
        for slot in sorted(holders):
            name = holders[slot]
            node = state.nodes.get(name)
            if node is None or node.state is not NodeState.ACTIVE or name in wanted:
                continue
            if name in state.unsettled or name in state.accused:
                continue
            self.aside[name] = node
            self.participants.pop(name, None)
            holders = holders.remove(slot)
            state = replace(state, nodes=state.nodes.remove(name))
        job = replace(job, holders=holders)
        self.state = replace(state, jobs=state.jobs.insert(JOB, job))

    def _without_ended(self, wanted: set[NodeId]) -> FleetState:
        nodes = self.state.nodes
        for name in sorted(self._ended - wanted):
            node = nodes.get(name)
            if node is not None and node.state in AWAY_STATES:
                self.aside[name] = node
                nodes = nodes.remove(name)
        self._ended &= wanted
        return replace(self.state, nodes=nodes)


def _ready(name: NodeId) -> m.Ready:
    return m.Ready(pid=1, host=name, port=1, transfer_port=2, digest=DIGEST, state_bytes=0)

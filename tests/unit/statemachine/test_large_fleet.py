"""A fleet of 8,192 nodes with the longest names: every event fits, every key stays small.

The log is played once: a launch, a loss, a lost rack, a drain, and the launch that nobody answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statemachine import events as e
from statemachine.codec import EVENT_BYTES_MAX, encode_event
from statemachine.decide import settle
from statemachine.errors import EventCorrupt
from statemachine.evolve import evolve, fold
from statemachine.ids import (
    Epoch,
    GroupName,
    Incarnation,
    JobId,
    NodeId,
    Position,
    Slot,
    check_name,
)
from statemachine.invariants import check, check_step
from statemachine.lifecycle import Phase, Warmth
from statemachine.packing import PACKED_FROM
from statemachine.parts import SOURCES_MAX
from statemachine.state import FleetState, Job
from statemachine.topology import Desired, Holder, decode_desired, desired_of, encode_projection

SLOTS = 8192
STANDBYS = 300
RACK = 256
JOB = JobId("j")
ONE = Incarnation(1)
KEY_BYTES_MAX = 256 * 1024
"""Every worker reads the key at every change; the store refuses a request of 1.5 MiB."""


def name_of(number: int) -> NodeId:
    """A name of the longest form that is allowed."""
    name = f"cluster-7.zone-b.rack-{number // RACK:04d}.node-{number:05d}."
    return NodeId(check_name("node", name.ljust(62, "x") + "0"))


class Large:
    """A log in the making, with every encoded event and key looked at."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.log: list[e.Recorded] = []
        self.now_ms = 1_000_000
        self.keys: list[int] = []
        self.largest: dict[str, int] = {}

    @property
    def job(self) -> Job:
        """The only job."""
        return self.state.jobs[JOB]

    def _take(self, entry: e.Recorded, *, checked: bool) -> None:
        after = evolve(self.state, entry)
        if checked:
            assert check_step(self.state, entry, after) == []
        self.log.append(entry)
        size, kind = len(encode_event(entry.event)), type(entry.event).__name__
        self.largest[kind] = max(size, self.largest.get(kind, 0))
        self.state = after

    def tell(self, *events: e.AnyEvent) -> None:
        """Enter facts."""
        for event in events:
            position = Position(self.state.position + 1)
            entry = e.Recorded(position=position, at_ms=self.now_ms, writer="w", event=event)
            self._take(entry, checked=False)

    def decide(self) -> None:
        """Let the core decide, and look at the key."""
        for entry in settle(self.state, self.now_ms, "core").recorded:
            self._take(entry, checked=True)
        desired = desired_of(self.state, self.job)
        raw = encode_projection(desired)
        assert decode_desired(raw) == desired, "the key does not read back"
        self.keys.append(len(raw))

    def carry(self) -> None:
        """Whatever is pending is prepared and applied by everybody."""
        while (pending := self.job.pending) is not None:
            transition = pending.plan.transition
            for name in pending.awaited():
                if pending.phase is Phase.COMMITTED:
                    self.tell(
                        e.TransitionApplied(
                            job=JOB,
                            transition=transition,
                            epoch=self.job.epoch,
                            node=name,
                            incarnation=ONE,
                            step=6,
                        )
                    )
                    continue
                trains = self.state.nodes[name].slot >= 0
                report = e.Report(has_state=trains, applied=5 if trains else -1)
                self.tell(
                    e.TransitionPrepared(
                        job=JOB, transition=transition, node=name, incarnation=ONE, report=report
                    )
                )
            self.now_ms += 100
            self.decide()

    def rehearse(self, name: NodeId) -> None:
        """One standby rehearses every role."""
        while name in self.state.unready:
            for entry in self.state.nodes[name].rehearsals:
                if entry.warmth is Warmth.WARMING:
                    passed = e.WarmupPassed(
                        node=name,
                        incarnation=ONE,
                        job=JOB,
                        role=entry.role,
                        digest="0123456789abcdef",
                        first_step_ms=900.0,
                        steady_step_ms=300.0,
                        took_ms=1500.0,
                    )
                    self.tell(passed)
            self.decide()

    def die(self, *names: NodeId) -> None:
        """Processes end, and every peer that has a link to the first says so."""
        for name in names:
            self.tell(e.WorkerExited(node=name, incarnation=ONE, job=JOB, reason="signal 9"))
        peers = [self.job.holders[slot] for slot in list(self.job.holders)[:1000]]
        for peer in sorted(set(peers) - set(names)):
            self.tell(
                e.PeerReset(
                    node=peer,
                    incarnation=ONE,
                    job=JOB,
                    epoch=self.job.epoch,
                    peer=names[0],
                    peer_incarnation=ONE,
                    group=GroupName("dp[0]"),
                )
            )
        self.decide()


@pytest.fixture(scope="module")
def large() -> Large:
    """The log, played to its end."""
    fleet = Large()
    axes = {"pp": 8, "dp": SLOTS // 8, "tp": 8}
    fleet.tell(e.JobDeclared(job=JOB, axes=axes, ranks_per_node=8))
    names = [name_of(number) for number in range(SLOTS + STANDBYS)]
    for number, name in enumerate(names):
        fleet.tell(e.NodeJoined(node=name, incarnation=ONE, host=name, ranks=8))
        fleet.tell(
            e.WorkerReady(
                node=name,
                incarnation=ONE,
                job=JOB,
                host=f"10.0.{number // RACK}.{number % RACK}",
                port=32768 + number * 7919 % 28000,
                transfer_port=32768 + number * 104729 % 28000,
                pid=4711,
                digest="0123456789abcdef",
            )
        )
    fleet.now_ms += 60_000
    fleet.decide()
    fleet.carry()
    fleet.die(names[0])
    fleet.carry()
    fleet.die(*names[RACK : 2 * RACK])
    fleet.carry()
    fleet.rehearse(names[-1])
    fleet.tell(e.DrainRequested(node=names[5], by="ada"))
    fleet.decide()
    fleet.carry()
    fleet.die(names[7])
    pending = fleet.job.pending
    assert pending is not None
    fleet.now_ms = pending.plan.deadline_at_ms
    fleet.decide()
    return fleet


def of_kind(large: Large, *kinds: type[e.Event]) -> Iterator[e.AnyEvent]:
    """The events of some kinds, in order."""
    return (entry.event for entry in large.log if isinstance(entry.event, kinds))


def test_every_event_fits(large: Large) -> None:
    """No event of a job of 8,192 nodes comes near the limit of 64 KiB, whatever nodes are called;
    their encoder would have refused a larger one.
    """
    kind, size = max(large.largest.items(), key=lambda found: found[1])

    print(f"largest: {kind} of {size} bytes")
    assert size < EVENT_BYTES_MAX
    assert {"ChangesDrafted", "SourcesChosen", "TransitionPlanned"} <= set(large.largest)


def test_every_key_is_small(large: Large) -> None:
    """The key that each worker watches is a fraction of what the store takes in one request."""
    print(f"largest key: {max(large.keys)} bytes for {SLOTS} members")

    assert max(large.keys) < KEY_BYTES_MAX


def test_it_goes_as_in_a_small_fleet(large: Large) -> None:
    """The launch fills every slot, both losses and the drain are answered, and nobody is let out of
    a launch or a repair: whoever is required is everybody, though none of them is listed.
    """
    plans = [p for p in of_kind(large, e.TransitionPlanned) if isinstance(p, e.TransitionPlanned)]
    committed = len(list(of_kind(large, e.TransitionCommitted)))

    assert [plan.motive for plan in plans[:4]] == ["launch", "unplanned", "unplanned", "planned"]
    assert [plan.implied for plan in plans[:3]] == [True, True, True]
    assert all(plan.required == () for plan in plans[:3])
    assert committed == 4
    assert sum(1 for _ in of_kind(large, e.TransitionPrepared)) >= 3 * SLOTS
    lost = [event.node for event in of_kind(large, e.NodeLost) if isinstance(event, e.NodeLost)]
    assert set(lost[: RACK + 1]) == {name_of(0), *map(name_of, range(RACK, 2 * RACK))}


def test_nobody_asks_everybody(large: Large) -> None:
    """A joiner of a job with a thousand replicas has its state from a few of them, and joiners of
    one rack do not all have it from the same.
    """
    handed = [
        handover
        for event in of_kind(large, e.SourcesChosen, e.TransitionCommitted)
        if isinstance(event, e.SourcesChosen | e.TransitionCommitted)
        for handover in event.handovers
        if handover.kind == "replica"
    ]

    assert len(handed) == RACK + 1
    assert {len(handover.sources) for handover in handed} == {SOURCES_MAX}
    assert len({source for handover in handed for source in handover.sources}) > 4 * SOURCES_MAX


def test_who_is_silent_is_lost_one_by_one(large: Large) -> None:
    """At the deadline of a repair that nobody answered every silent member is declared lost."""
    pending = large.job.pending
    lost = sum(1 for _ in of_kind(large, e.NodeLost))

    assert pending is None or not pending.prepared
    assert lost > SLOTS


def test_the_state_holds_all_that_its_events_left_out(large: Large) -> None:
    """Every state invariant holds at the end, and folding the log anew gives the same state."""
    assert check(large.state) == []
    assert fold(FleetState(), large.log) == large.state


def test_a_log_that_ends_between_the_parts(large: Large) -> None:
    """Cut between any two parts of the launch, the log is whole: the next controller begins the
    plan anew, and comes to the same end.
    """
    first = next(i for i, r in enumerate(large.log) if isinstance(r.event, e.ChangesDrafted))
    planned = next(i for i, r in enumerate(large.log) if isinstance(r.event, e.TransitionPlanned))
    whole = fold(FleetState(), large.log[: planned + 1]).jobs[JOB].pending
    before = fold(FleetState(), large.log[:first])
    for cut in (first + 1, first + 2, (first + planned) // 2, planned - 1, planned):
        state = fold(before, large.log[first:cut])
        assert state.jobs[JOB].pending is None
        pending = settle(state, large.log[planned].at_ms, "other").state.jobs[JOB].pending
        assert pending is not None
        assert whole is not None
        assert pending.plan == whole.plan, f"cut at {cut}"


def test_a_key_that_is_damaged_is_refused() -> None:
    """A packed value that was cut off, or that contradicts itself, is refused with its reason."""
    members = tuple(
        Holder(
            slot=Slot(slot),
            node=name_of(slot),
            incarnation=ONE,
            host="h",
            port=slot,
            transfer_port=slot,
        )
        for slot in range(PACKED_FROM)
    )
    desired = Desired(
        job=JOB,
        position=Position(1),
        epoch=Epoch(1),
        declared=e.JobDeclared(job=JOB, axes={"dp": PACKED_FROM}),
        members=members,
    )
    raw = encode_projection(desired)

    assert decode_desired(raw) == desired
    for damaged in (b"", raw[:-1], raw[:20], b"x" + raw, raw[:40] + b"zz" + raw[42:]):
        with pytest.raises(EventCorrupt):
            decode_desired(damaged)

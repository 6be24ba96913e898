"""Which recording a role is rehearsed with, who has it, and what another one makes stale."""

from typing import Any

from statemachine import events as e
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position, Role
from statemachine.lifecycle import Warmth
from statemachine.policy import policy_of
from statemachine.state import FleetState
from statemachine.topology import orders_of

ONE = Incarnation(1)
JOB = JobId("j")
ROLES = ("first", "last", "middle")


class Log:
    """A job of three stages on a fleet whose processes record; what is decided follows at once."""

    def __init__(self, knobs: dict[str, Any] | None = None) -> None:
        self.at_ms = 1000
        self.state = FleetState(policy=policy_of({"retry_cooldown_s": 1.0, **(knobs or {})}))
        self.said: list[e.Recorded] = []
        self.say(e.JobDeclared(job=JOB, axes={"pp": 3}, standbys=1, steps=100))
        for name in ("n0", "n1", "n2", "n3"):
            self.join(name)
        for name in ("n0", "n1", "n2"):
            self.say(self.prepared(name))
        for name in ("n0", "n1", "n2"):
            self.say(self.applied(name))

    def join(self, name: str, *, incarnation: int = 1, records: bool = True) -> None:
        """A node joins, and its training process is ready."""
        life: Any = {"node": NodeId(name), "incarnation": Incarnation(incarnation)}
        self.say(e.NodeJoined(**life, host=f"host-{name}"))
        ready: Any = {"host": f"host-{name}", "port": 1, "transfer_port": 2, "pid": 3}
        self.say(e.WorkerReady(**life, job=JOB, digest="code", records=records, **ready))

    def prepared(self, name: str) -> e.AnyEvent:
        """A member is ready for the launch."""
        plan = self.state.jobs[JOB].last_transition
        report = e.Report(has_state=False)
        return e.TransitionPrepared(
            job=JOB, transition=plan, node=NodeId(name), incarnation=ONE, report=report
        )

    def applied(self, name: str) -> e.AnyEvent:
        """A member trains."""
        job = self.state.jobs[JOB]
        return e.TransitionApplied(
            job=JOB,
            transition=job.last_transition,
            epoch=job.epoch,
            node=NodeId(name),
            incarnation=ONE,
            step=0,
        )

    def say(self, event: e.AnyEvent, after_ms: int = 1) -> None:
        """Record a fact, and what is decided about it."""
        self.at_ms += after_ms
        entry = e.Recorded(
            position=Position(self.state.position + 1), at_ms=self.at_ms, writer="t", event=event
        )
        self.state = evolve(self.state, entry)
        settled = settle(self.state, self.at_ms, "t")
        self.state = settled.state
        self.said += [entry, *settled.recorded]

    def made(self, role: str, name: str, node: str = "n0", failure: str = "") -> None:
        """A node made a recording."""
        self.say(
            e.RecordingMade(
                node=NodeId(node),
                incarnation=ONE,
                job=JOB,
                role=Role(role),
                recording="" if failure else name,
                digest="code",
                failure=failure,
            )
        )

    def passed(self, node: str = "n3") -> str:
        """A node passes the rehearsal that it was ordered to do; returns the role."""
        orders = orders_of(self.state, self.state.nodes[NodeId(node)])
        self.say(
            e.WarmupPassed(
                node=NodeId(node),
                incarnation=self.state.nodes[NodeId(node)].incarnation,
                job=JOB,
                role=Role(orders.rehearse),
                digest="code",
                first_step_ms=1.0,
                steady_step_ms=1.0,
                took_ms=1.0,
                recording=orders.recording,
            )
        )
        return orders.rehearse

    def warmth(self, role: str, node: str = "n3") -> Warmth:
        """How warm a node is for a role."""
        entry = self.state.nodes[NodeId(node)].rehearsal(JOB, Role(role))
        return entry.warmth if entry is not None else Warmth.NONE

    def rehearses(self, node: str = "n3") -> str:
        """Which role a node is ordered to rehearse."""
        return orders_of(self.state, self.state.nodes[NodeId(node)]).rehearse

    def givers(self, node: str = "n3") -> list[str]:
        """From whom a node may fetch what it rehearses with."""
        orders = orders_of(self.state, self.state.nodes[NodeId(node)])
        return [str(holder.node) for holder in orders.recording_from]


def recorded() -> Log:
    """A job of which every role is recorded."""
    log = Log()
    for number, role in enumerate(("first", "middle", "last")):
        log.made(role, f"r-{role}", f"n{number}")
    return log


def test_a_role_is_not_rehearsed_before_it_is_recorded() -> None:
    """A standby waits for the first step, role by role."""
    log = Log()
    assert log.state.jobs[JOB].launched
    assert log.rehearses() == ""
    log.made("last", "r-last", "n2")
    assert log.rehearses() == "last"
    log.passed()
    assert log.rehearses() == ""
    log.made("first", "r-first")
    assert log.rehearses() == "first"


def test_processes_that_record_nothing_rehearse_at_once() -> None:
    """Where no recording will come nobody waits for one."""
    log = Log()
    log.join("n4", records=False)
    assert log.rehearses("n4") == "first"
    assert log.rehearses("n3") == ""


def test_what_could_not_be_recorded_is_rehearsed_without() -> None:
    """A full disk at the recorder keeps no standby cold."""
    log = Log()
    log.made("first", "", failure="No space left on device")
    assert log.rehearses() == "first"
    assert orders_of(log.state, log.state.nodes[NodeId("n3")]).recording == ""
    assert log.givers() == []


def test_orders_name_what_to_rehearse_with_who_has_it_and_what_it_may_take() -> None:
    """The recording's name, its maker's address, and both bounds of the policy in force."""
    log = Log({"warmup_memory_mib": 3})
    log.made("first", "r-first")
    orders = orders_of(log.state, log.state.nodes[NodeId("n3")])
    assert orders.recording == "r-first"
    (giver,) = orders.recording_from
    assert (giver.node, giver.host, giver.transfer_port) == ("n0", "host-n0", 2)
    assert orders.caps.memory_bytes == 3 << 20
    assert 0 < orders.caps.deadline_s < log.state.policy.warmup_deadline_s


def test_another_recording_makes_warm_roles_stale_and_they_are_rehearsed_anew() -> None:
    """Only the role whose recording changed; the same recording told twice changes nothing."""
    log = recorded()
    assert [log.passed() for _ in ROLES] == list(ROLES)
    assert log.rehearses() == ""
    log.made("last", "r-last", "n2")
    assert [log.warmth(role) for role in ROLES] == [Warmth.WARM] * 3
    log.made("last", "other", "n2")
    assert log.rehearses() == "last"
    assert log.warmth("first") is log.warmth("middle") is Warmth.WARM
    orders = orders_of(log.state, log.state.nodes[NodeId("n3")])
    assert orders.recording == "other"
    log.passed()
    assert log.warmth("last") is Warmth.WARM
    assert log.rehearses() == ""


def test_a_recording_outlives_its_maker() -> None:
    """Whoever rehearsed with it lends it on; those that are gone are not named."""
    log = recorded()
    while log.rehearses():
        log.passed()
    log.say(e.NodeLost(node=NodeId("n0"), incarnation=ONE, reason="test"))
    log.join("n5")
    assert log.rehearses("n5") == "first"
    assert log.givers("n5") == ["n3"], "not n0, which made it and is lost"
    assert log.rehearses("n3") == "", "it is about to take the slot"


def test_a_job_that_is_launched_anew_is_recorded_anew() -> None:
    """What was recorded before a restart is no part of the new launch."""
    log = recorded()
    log.say(e.JobRestarted(job=JOB, reason="test"))
    assert len(log.state.jobs[JOB].recordings) == 0
    assert len(log.state.jobs[JOB].keepers) == 0


def test_a_ghost_records_nothing() -> None:
    """What an incarnation says after it was fenced is not folded."""
    log = Log()
    log.say(e.NodeLost(node=NodeId("n0"), incarnation=ONE, reason="test"))
    log.made("first", "r-first", "n0")
    assert Role("first") not in log.state.jobs[JOB].recordings


def test_who_must_build_a_role_first_gets_the_time_of_a_rehearsal() -> None:
    """Where stages differ a launch may compile; a standby that rehearsed its role answers in the
    time that links take.
    """
    log = recorded()
    policy = log.state.policy
    plans = [r for r in log.said if isinstance(r.event, e.TransitionPlanned)]
    launched: Any = plans[0].event
    assert launched.deadline_at_ms - plans[0].at_ms == policy.warmup_deadline_s * 1000
    while log.rehearses():
        log.passed()
    log.say(e.NodeLost(node=NodeId("n0"), incarnation=ONE, reason="test"))
    plans = [r for r in log.said if isinstance(r.event, e.TransitionPlanned)]
    repaired: Any = plans[-1].event
    assert repaired.motive is e.Motive.UNPLANNED
    assert repaired.deadline_at_ms - plans[-1].at_ms == policy.prepare_deadline_s * 1000

"""Third parties, remedies, qualification, and a whole fleet in two rounds: what is decided."""

import pytest

from statemachine import events as e
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position, SweepId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState, Node
from statemachine.sweep import PAIR, REFERENCE, SOLO, THIRD
from statemachine.topology import orders_of

ONE = Incarnation(1)
FAST = {"gemm_gflops_best": 100.0, "memory_gbps_best": 30.0}
SLOW = {"gemm_gflops_best": 60.0, "memory_gbps_best": 18.0}
GOOD_LINK = {"link_mbps_out_best": 9000.0, "link_mbps_in_best": 9000.0}
BAD_LINK = {"link_mbps_out_best": 3000.0, "link_mbps_in_best": 9000.0}
DAY_MS = 86_400_000
_JUDGE = {"judge_medians": False}


class Fleet:
    """A fold that grows, and what the controller adds to it. Nodes answer rounds by their truth."""

    def __init__(self, nodes: int, **sweep: object) -> None:
        self.state = FleetState()
        self.now_ms = 10
        self.decided: list[e.AnyEvent] = []
        self.slow_alone: set[str] = set()
        self.slow_links: set[str] = set()
        self.tell(e.PolicyChanged(version=1, knobs={"sweep": _JUDGE | sweep}, by="me"))
        for number in range(nodes):
            self.join(f"n{number}")

    def join(self, name: str, incarnation: int = 1) -> None:
        node, life = NodeId(name), Incarnation(incarnation)
        self.tell(e.NodeJoined(node=node, incarnation=life, host="h", probe_port=7))
        self.tell(
            e.WorkerReady(
                node=node,
                incarnation=life,
                job=JobId("j"),
                host="h",
                port=1,
                transfer_port=2,
                pid=3,
                digest="d",
            )
        )

    def tell(self, *events: e.AnyEvent) -> None:
        for event in events:
            position = Position(self.state.position + 1)
            recorded = e.Recorded(position=position, at_ms=self.now_ms, writer="w", event=event)
            self.state = evolve(self.state, recorded)
        settled = settle(self.state, self.now_ms, "c")
        self.state = settled.state
        self.decided += [recorded.event for recorded in settled.recorded]

    def node(self, name: str) -> Node:
        return self.state.nodes[NodeId(name)]

    def asked(self) -> list[tuple[str, e.SweepRequested, str]]:
        """(who measures, in which sweep, which round), as the nodes' orders say now."""
        found = []
        for name in sorted(self.state.nodes):
            orders = orders_of(self.state, self.state.nodes[name])
            found += [(str(name), orders.sweep, r) for r in orders.rounds if orders.sweep]
        return found

    def answer(self) -> int:
        """Answer every round that is asked for, once; how many that were."""
        asked = self.asked()
        for who, sweep, name in asked:
            self.tell(
                e.SweepRoundFinished(
                    sweep=sweep.sweep,
                    node=sweep.node,
                    incarnation=sweep.incarnation,
                    round=name,
                    measurements=self.measured(who, sweep, name),
                    partner=sweep.partner,
                )
            )
        return len(asked)

    def measured(self, who: str, sweep: e.SweepRequested, name: str) -> dict[str, float]:
        if name in (SOLO, REFERENCE):
            return SLOW if who in self.slow_alone else FAST
        return BAD_LINK if {str(sweep.node), str(sweep.partner)} & self.slow_links else GOOD_LINK

    def answer_all(self, turns: int = 20) -> int:
        """Answer until nothing is asked any more; how many turns that took."""
        for turn in range(turns):
            if not self.answer():
                return turn
        raise AssertionError(f"endless: {self.asked()}")

    def certify(self, *names: str) -> None:
        """Have nodes swept while all is well, so that the fleet knows what is usual."""
        self.tell(*(e.SweepAsked(node=NodeId(name), by="me") for name in names))
        self.answer_all()

    def quarantine(self, name: str) -> None:
        self.tell(e.QuarantineRequested(node=NodeId(name), by="me"))

    def outcomes(self) -> dict[str, e.SweepOutcome]:
        finished = [event for event in self.decided if isinstance(event, e.SweepFinished)]
        return {str(event.node): event.outcome for event in finished}

    def of(self, kind: type[e.AnyEvent]) -> list[e.AnyEvent]:
        return [event for event in self.decided if isinstance(event, kind)]


# --- third parties ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "outcome", "extended"),
    [
        ({"n0"}, e.SweepOutcome.FAILED, True),
        ({"n1"}, e.SweepOutcome.PASSED, True),
        ({"n0", "n1"}, e.SweepOutcome.FAILED, True),
        (set(), e.SweepOutcome.PASSED, False),
    ],
)
def test_a_third_party_tells_whose_link_is_slow(
    bad: set[str], outcome: e.SweepOutcome, extended: bool
) -> None:
    """Bad with good, good with bad, two bad ones paired: the node answers for its own link only."""
    fleet = Fleet(4)
    fleet.certify("n2", "n3", "n0", "n1")
    fleet.decided.clear()
    fleet.slow_links = bad
    fleet.quarantine("n0")
    assert fleet.state.sweeps[fleet.state.last_sweep].request.partner == "n1"
    fleet.answer_all()

    assert fleet.outcomes() == {"n0": outcome}
    third = [event for event in fleet.of(e.SweepExtended) if isinstance(event, e.SweepExtended)]
    assert [(event.round, event.partner) for event in third] == [(THIRD, "n2")] * extended
    assert all(event.evidence for event in third), "the rounds that could not tell"
    assert fleet.node("n1").state is NodeState.SPARE, "a partner is never blamed for its partner"
    assert not fleet.node("n1").quarantine


def test_without_a_third_party_a_slow_pair_is_inconclusive() -> None:
    """Two nodes alone cannot tell whose link is slow: never a pass, and nobody is blamed."""
    fleet = Fleet(2)
    fleet.certify("n0", "n1")
    fleet.decided.clear()
    fleet.slow_links = {"n0"}
    fleet.quarantine("n0")
    fleet.answer_all()

    assert fleet.outcomes() == {"n0": e.SweepOutcome.INCONCLUSIVE}
    assert fleet.node("n0").state is NodeState.QUARANTINED
    assert not fleet.of(e.SweepExtended)


# --- remedies ---------------------------------------------------------------------------------

STEPS = ("reset", "reboot", "vendor")


def mended(fleet: Fleet, *, is_done: bool = True) -> str:
    """Carry out the remedy that is under way; its name."""
    remedy = fleet.node("n0").remedy
    assert remedy is not None
    fleet.tell(
        e.RemedyFinished(
            node=remedy.node, remedy=remedy.remedy, number=remedy.number, is_done=is_done
        )
    )
    return remedy.remedy


def test_remedies_follow_each_other_with_a_sweep_after_each() -> None:
    """Reset, swept, reboot, swept: the node that passes is well, and begins at the first again."""
    fleet = Fleet(3, remedies=STEPS)
    fleet.certify("n1", "n2")
    fleet.slow_alone = {"n0"}
    fleet.quarantine("n0")
    fleet.answer_all()
    assert mended(fleet) == "reset"
    assert fleet.node("n0").state is NodeState.SWEEPING, "a check after each"
    fleet.answer_all()
    assert mended(fleet) == "reboot"
    fleet.slow_alone = set()
    fleet.answer_all()

    assert fleet.node("n0").state is NodeState.SPARE
    assert fleet.node("n0").certificate is not None
    assert fleet.node("n0").remedies == 0
    asked = [event for event in fleet.of(e.RemedyRequested) if isinstance(event, e.RemedyRequested)]
    assert len(asked) == 2
    assert all(event.evidence for event in asked), "where it was quarantined"


def test_a_node_that_no_remedy_helps_is_retired() -> None:
    """After the last remedy and its sweep the node leaves the fleet, with what was tried."""
    fleet = Fleet(3, remedies=STEPS)
    fleet.certify("n1", "n2")
    fleet.slow_alone = {"n0"}
    fleet.quarantine("n0")
    tried = []
    for _ in STEPS:
        fleet.answer_all()
        tried.append(mended(fleet))
    fleet.answer_all()

    assert tuple(tried) == STEPS
    assert fleet.node("n0").state is NodeState.RETIRED
    assert "reset, reboot, vendor" in fleet.node("n0").retired


def test_a_remedy_that_was_not_done_leads_to_the_next_without_a_sweep() -> None:
    """A hook that failed mended nothing, so nothing is measured; nor did one without end."""
    fleet = Fleet(3, remedies=STEPS)
    fleet.certify("n1", "n2")
    fleet.slow_alone = {"n0"}
    fleet.quarantine("n0")
    fleet.answer_all()
    mended(fleet, is_done=False)
    remedy = fleet.node("n0").remedy
    assert remedy is not None
    assert remedy.remedy == "reboot"
    fleet.now_ms = remedy.deadline_at_ms
    fleet.tell()

    late = [event for event in fleet.of(e.RemedyFinished) if isinstance(event, e.RemedyFinished)]
    assert [(event.remedy, event.detail) for event in late] == [
        ("reboot", "it was not done in time")
    ]
    remedy = fleet.node("n0").remedy
    assert remedy is not None
    assert remedy.remedy == "vendor"


def test_a_remedy_survives_a_restart_of_the_node() -> None:
    """A node that comes back rebooted is in quarantine still, its remedy open until it is told."""
    fleet = Fleet(3, remedies=STEPS)
    fleet.certify("n1", "n2")
    fleet.slow_alone = {"n0"}
    fleet.quarantine("n0")
    fleet.answer_all()
    fleet.tell(e.NodeLeft(node=NodeId("n0"), incarnation=ONE, reason="reboot"))
    fleet.join("n0", 2)
    assert fleet.node("n0").state is NodeState.QUARANTINED
    assert fleet.node("n0").remedy is not None
    fleet.slow_alone = set()
    mended(fleet)
    fleet.answer_all()

    assert fleet.node("n0").state is NodeState.SPARE


def test_what_a_sweep_could_not_tell_costs_no_remedy() -> None:
    """Inconclusive is swept again; only a failure is mended."""
    fleet = Fleet(1, remedies=STEPS)
    fleet.quarantine("n0")
    fleet.answer_all()

    assert fleet.outcomes() == {"n0": e.SweepOutcome.INCONCLUSIVE}
    assert not fleet.of(e.RemedyRequested)
    fleet.now_ms += DAY_MS
    fleet.tell()
    assert fleet.node("n0").state is NodeState.SWEEPING


def test_the_third_entry_within_a_week_retires_even_after_passes() -> None:
    """A lemon passes its sweeps and comes back: the third time within seven days it is out."""
    fleet = Fleet(3)
    fleet.certify("n1", "n2")
    for _ in range(2):
        fleet.quarantine("n0")
        fleet.answer_all()
        assert fleet.node("n0").state is NodeState.SPARE
        fleet.now_ms += DAY_MS
    fleet.quarantine("n0")

    assert fleet.node("n0").state is NodeState.RETIRED


# --- qualification and whole fleets -----------------------------------------------------------


def test_a_new_machine_qualifies_before_its_first_duty() -> None:
    """Without a valid certificate a node is swept before it may take a slot; with one it is not."""
    fleet = Fleet(3, qualify=True)
    assert fleet.asked(), "they are measured as soon as there are two"
    assert not [n for n in ("n0", "n1", "n2") if fleet.node(n).certificate]
    fleet.answer_all()
    assert all(fleet.node(n).certificate for n in ("n0", "n1", "n2"))
    swept = len(fleet.of(e.SweepRequested))
    fleet.tell(e.NodeLeft(node=NodeId("n0"), incarnation=ONE, reason="restart"))
    fleet.join("n0", 2)
    assert len(fleet.of(e.SweepRequested)) == swept, "its certificate still holds"
    fleet.now_ms += 8 * DAY_MS
    fleet.tell(e.NodeLeft(node=NodeId("n0"), incarnation=Incarnation(2), reason="restart"))
    fleet.join("n0", 3)
    assert len(fleet.of(e.SweepRequested)) == swept + 1, "it has expired"


def test_a_new_machine_that_cannot_be_judged_stays_without_duty() -> None:
    """Nobody to measure with, and it waits; inconclusive never qualifies: again after a pause."""
    fleet = Fleet(1, qualify=True)
    assert fleet.node("n0").sweep_wanted
    assert fleet.answer_all() == 0
    fleet = Fleet(1, qualify=True, partner_needed=False)
    fleet.answer_all()

    assert fleet.outcomes() == {"n0": e.SweepOutcome.INCONCLUSIVE}
    assert fleet.node("n0").sweep_wanted
    fleet.now_ms += DAY_MS
    fleet.tell()
    assert fleet.node("n0").state is NodeState.SWEEPING


@pytest.mark.parametrize("nodes", [2, 8, 33, 64])
def test_a_whole_fleet_is_swept_in_two_rounds_whatever_its_size(nodes: int) -> None:
    """Nodes are paired at once, half of them serve the other half, then the other way round; the
    bad ones are found, and nobody beside them.
    """
    fleet = Fleet(nodes)
    bad_link = {f"n{nodes // 2}"} if nodes > 3 else set()
    fleet.slow_links = set(bad_link)
    fleet.certify("n0", "n1")
    fleet.decided.clear()
    fleet.tell(*(e.SweepAsked(node=name, by="me") for name in sorted(fleet.state.nodes)))
    turns = fleet.answer_all()

    failed = {n for n, outcome in fleet.outcomes().items() if outcome is e.SweepOutcome.FAILED}
    assert len(fleet.outcomes()) == nodes
    assert failed == bad_link
    assert turns <= 8, "each of two rounds: alone, together, perhaps with a third party"
    assert fleet.state.last_sweep == SweepId(nodes + 2)


def test_nobody_is_swept_while_it_serves() -> None:
    """A node that measures for another is not itself under test in those minutes."""
    fleet = Fleet(4)
    fleet.tell(*(e.SweepAsked(node=name, by="me") for name in sorted(fleet.state.nodes)))
    sweeps = [fleet.state.sweeps[n] for n in fleet.state.sweeps]
    subjects = {sweep.request.node for sweep in sweeps}
    servants = {party for sweep in sweeps for party in sweep.parties()}

    assert subjects
    assert not subjects & servants
    assert {r for _, _, r in fleet.asked()} == {SOLO, REFERENCE}
    assert PAIR not in {r for _, _, r in fleet.asked()}


# --- baselines --------------------------------------------------------------------------------


def test_a_shipped_baseline_judges_the_first_node_of_a_fleet() -> None:
    """Where nothing was certified yet, what policy ships for the hardware tells slow from fast."""
    shipped = {"": {"gemm_gflops_best": 100.0, "memory_gbps_best": 30.0}}
    outcomes = {}
    for slow in (False, True):
        fleet = Fleet(1, baselines=shipped, partner_needed=False)
        fleet.slow_alone = {"n0"} if slow else set()
        fleet.certify("n0")
        outcomes[slow] = fleet.outcomes()["n0"]

    assert outcomes == {False: e.SweepOutcome.PASSED, True: e.SweepOutcome.FAILED}


def test_what_a_fleet_learns_replaces_what_was_shipped() -> None:
    """A fleet of slower machines than the data's is measured by its own once one is certified."""
    shipped = {"": {"gemm_gflops_best": 62.0, "memory_gbps_best": 18.5}}
    fleet = Fleet(3, baselines=shipped)
    fleet.slow_alone = {"n0", "n1", "n2"}
    fleet.certify("n0")
    usual = fleet.state.reference[""]
    fleet.slow_alone = set()
    fleet.certify("n1")

    assert [sweep["gemm_gflops_best"] for sweep in usual] == [60.0]
    assert fleet.outcomes() == {"n0": e.SweepOutcome.PASSED, "n1": e.SweepOutcome.PASSED}

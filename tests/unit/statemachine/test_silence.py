"""When a mere wait becomes a loss, and when it does not."""

from statemachine import events as e
from statemachine.decide import next_deadline, settle
from statemachine.evolve import evolve
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position
from statemachine.policy import policy_of
from statemachine.state import FleetState

ONE = Incarnation(1)
DEADLINE_MS = 500


class Log:
    """A log that is folded and decided as it grows."""

    def __init__(self) -> None:
        self.state = FleetState(policy=policy_of({"silence_deadline_s": DEADLINE_MS / 1000}))
        for name in ("a", "b", "c"):
            self.say(0, e.NodeJoined(node=NodeId(name), incarnation=ONE, host="h"))

    def say(self, at_ms: int, event: e.AnyEvent) -> None:
        """Record a fact."""
        self.state = evolve(
            self.state,
            e.Recorded(
                position=Position(self.state.position + 1), at_ms=at_ms, writer="t", event=event
            ),
        )

    def waits(self, at_ms: int, node: str, peer: str, silent_ms: float = 2000.0) -> None:
        """Record that `node` waits for a silent `peer`."""
        self.say(
            at_ms,
            e.PeerWaited(
                node=NodeId(node),
                incarnation=ONE,
                job=JobId("j"),
                epoch=Epoch(1),
                peer=NodeId(peer),
                peer_incarnation=ONE,
                waited_ms=3000.0,
                silent_ms=silent_ms,
            ),
        )

    def lost(self, now_ms: int) -> list[str]:
        """Who is lost if the controller looks at `now_ms`."""
        settled = settle(self.state, now_ms, "t")
        return [r.event.node for r in settled.recorded if isinstance(r.event, e.NodeLost)]


def test_a_silent_peer_is_lost_at_the_deadline_and_not_before() -> None:
    """A wait fences when its deadline is over, and the controller wakes for it."""
    log = Log()
    log.waits(1000, "a", "b")

    assert log.lost(1000) == []
    assert log.lost(1000 + DEADLINE_MS - 1) == []
    assert next_deadline(log.state, 1000, log.state.policy) == 1000 + DEADLINE_MS
    assert log.lost(1000 + DEADLINE_MS) == ["b"]


def test_an_answer_takes_the_accusation_back() -> None:
    """A peer that answers again before the deadline is not lost."""
    log = Log()
    log.waits(1000, "a", "b")
    log.waits(1200, "a", "b", silent_ms=0.0)

    assert log.lost(99_000) == []
    assert next_deadline(log.state, 1200, log.state.policy) is None


def test_an_answer_to_one_leaves_the_word_of_another() -> None:
    """Each reporter takes back its own word only."""
    log = Log()
    log.waits(1000, "a", "b")
    log.waits(1000, "c", "b")
    log.waits(1200, "a", "b", silent_ms=0.0)

    assert log.lost(99_000) == ["b"]


def test_two_that_accuse_each_other_do_not_both_go() -> None:
    """A cut cable between two live nodes costs one of them, the one that more accuse."""
    log = Log()
    log.waits(1000, "a", "b")
    log.waits(1000, "b", "a")

    assert log.lost(99_000) == ["b"]

    log.waits(1000, "c", "a")

    assert log.lost(99_000) == ["a"]


def test_the_word_of_a_ghost_counts_for_nothing() -> None:
    """Who is lost itself accuses nobody."""
    log = Log()
    log.say(500, e.NodeLost(node=NodeId("a"), incarnation=ONE, reason="fenced"))
    log.waits(1000, "a", "b")

    assert log.lost(99_000) == []

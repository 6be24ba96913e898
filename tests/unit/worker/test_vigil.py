"""Who is asked, who is called silent, and who is not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from statemachine.topology import Patience
from worker.groups.port import GroupPlan, Member
from worker.vigil import TICK_S, Answering, Silence, Vigil

SECRET = b"s" * 32
PATIENCE = Patience(wait_floor_s=0.2, wait_steps=3.0, silence_s=3 * TICK_S)


def _free_address() -> tuple[str, int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        found = sock.getsockname()
        return str(found[0]), int(found[1])


class Watch:
    """A vigil over one peer, and what it said; with `mute`, also over one that never answers."""

    def __init__(self, secret: bytes = SECRET, *, mute: bool = False) -> None:
        host, port = _free_address()
        self.address = (host, port)
        self.peer = Answering(secret, "job", self.address)
        members = [
            Member(slot=0, rank=0, node="me", incarnation=1, host=host, port=1),
            Member(slot=1, rank=1, node="peer", incarnation=1, host=host, port=port),
        ]
        if mute:
            _, port = _free_address()
            members.append(Member(slot=2, rank=2, node="mute", incarnation=1, host=host, port=port))
        plan = GroupPlan(name="dp", job="job", epoch=1, transition=1, me=0, members=tuple(members))
        self.said: list[Silence] = []
        self.heard = threading.Event()
        self.vigil = Vigil(SECRET, "job", PATIENCE, lambda: [plan], self._hear)

    def _hear(self, found: Silence) -> None:
        self.said.append(found)
        self.heard.set()

    def acquainted(self) -> bool:
        """Whether the peer has answered once."""
        return any(one.answered for one in list(self.vigil._asked.values()))

    def close(self) -> None:
        """End both."""
        self.vigil.close()
        self.peer.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A vigil over one peer that answers."""
    one = Watch()
    yield one
    one.close()


def _until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, "not in time"
        time.sleep(0.01)


def test_a_peer_that_answers_is_not_called_silent(watch: Watch) -> None:
    """However overdue a step is, who answers is left alone."""
    _until(watch.acquainted)
    watch.vigil.step_began()

    assert not watch.heard.wait(PATIENCE.wait_floor_s + 8 * TICK_S), watch.said


def test_a_peer_that_stops_answering_is_called_silent_and_then_again_alive(watch: Watch) -> None:
    """Silence is reported once, with how long; an answer takes it back."""
    _until(watch.acquainted)
    watch.peer.close()
    watch.vigil.step_began()

    assert watch.heard.wait(10.0)
    assert watch.said[0].member.node == "peer"
    assert watch.said[0].silent_s >= PATIENCE.silence_s

    watch.heard.clear()
    watch.peer = Answering(SECRET, "job", watch.address)

    assert watch.heard.wait(10.0)
    assert watch.said[1].silent_s == 0.0


def test_nobody_is_called_silent_while_steps_come_in_time(watch: Watch) -> None:
    """Without an overdue step there is no accusation, whatever does not answer."""
    _until(watch.acquainted)
    watch.peer.close()
    ends_at = time.monotonic() + 8 * TICK_S
    while time.monotonic() < ends_at:
        watch.vigil.step_began()
        time.sleep(0.02)

    assert watch.said == []


def test_a_peer_with_another_secret_is_never_called_silent() -> None:
    """Who cannot be asked is not accused: it never answered, so that its silence means nothing."""
    watch = Watch(secret=b"x" * 32)
    try:
        watch.vigil.step_began()

        assert not watch.heard.wait(PATIENCE.wait_floor_s + 8 * TICK_S), watch.said
    finally:
        watch.close()


def test_a_peer_that_never_answered_is_called_silent_where_others_are_heard() -> None:
    """A joiner that froze as a standby has met nobody; that others answer says that it could."""
    watch = Watch(mute=True)
    try:
        _until(watch.acquainted)
        watch.vigil.step_began()

        assert watch.heard.wait(10.0)
        assert [found.member.node for found in watch.said] == ["mute"]
        assert watch.said[0].silent_s >= PATIENCE.silence_s
    finally:
        watch.close()


def test_patience_is_learned_from_the_steps(watch: Watch) -> None:
    """A job with long steps is given proportionally longer before anybody is asked."""
    assert watch.vigil.patience_s() == PATIENCE.wait_floor_s

    for _ in range(3):
        watch.vigil.step_began()
        time.sleep(0.15)
    watch.vigil.step_began()

    assert watch.vigil.patience_s() >= 0.45

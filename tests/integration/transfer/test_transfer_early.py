"""Sources that are asked before it is known which of them will give."""

import threading
import time
from collections.abc import Iterator

import pytest

from worker.transfer import (
    Claim,
    Fetching,
    Limits,
    Party,
    Source,
    StateImage,
    TensorSpec,
    TensorView,
    TransferAborted,
    TransferFailed,
    TransferServer,
)

SECRET = bytes(range(32))
JOINER = Party("n9", 3)
LIMITS = Limits(connect_s=2.0, offer_wait_s=20.0, stall_s=5.0)


def image() -> StateImage:
    """A small image."""
    memory = memoryview(bytearray(b"state of the run"))
    return StateImage((TensorView(TensorSpec("t", "U8", (16,)), memory),), {"step": 1})


@pytest.fixture
def servers() -> Iterator[list[TransferServer]]:
    """Three sources that listen and offer nothing yet."""
    made = [
        TransferServer(secret=SECRET, job="job", me=Party(f"n{number}", 1)) for number in range(3)
    ]
    yield made
    for one in made:
        one.close()


def source(server: TransferServer, number: int) -> Source:
    """Where one of them is."""
    return Source(*server.address, Party(f"n{number}", 1))


def begun(
    servers: list[TransferServer], first: int = 0, transition: int = 7
) -> tuple[Fetching, list[Source]]:
    """A transfer that has asked all, each of which has somebody waiting."""
    sources = [source(server, number) for number, server in enumerate(servers, first)]
    fetching = Fetching(Claim(SECRET, "job", transition, JOINER), StateImage.allocate, LIMITS)
    fetching.ask(sources)
    ends_at = time.monotonic() + 5
    while not all(server.callers for server in servers):
        assert time.monotonic() < ends_at, "nobody was asked"
        time.sleep(0.002)
    return fetching, sources


def test_what_is_offered_later_is_received_from_those_who_were_chosen(
    servers: list[TransferServer],
) -> None:
    """Nothing but the offer is missing: whoever is chosen gives, and the others are let go."""
    fetching, sources = begun(servers)
    with servers[1].offer(7, JOINER, image()) as offer:
        fetching.settle(sources[1:2])
        report = fetching.finish(None)

        assert offer.wait(5)
        assert offer.completed
    assert report.image.digest() == image().digest()
    assert [one.node for one in report.sources] == ["n1"]


@pytest.mark.parametrize("chosen", [0, 1], ids=["by whom was chosen", "by another"])
def test_what_was_given_before_anybody_was_chosen_counts(
    servers: list[TransferServer], chosen: int
) -> None:
    """All images of one transfer are the same: nothing is sent again because of who was chosen."""
    fetching, sources = begun(servers)
    with servers[0].offer(7, JOINER, image()) as offer:
        assert offer.wait(5)
        assert offer.completed
        fetching.settle(sources[chosen : chosen + 1])
        report = fetching.finish(None)

    assert report.image.digest() == image().digest()
    assert report.nbytes == 16


def test_a_source_that_is_let_go_while_it_gives_writes_nothing_more(
    servers: list[TransferServer],
) -> None:
    """What it had been asked for is asked of those who were chosen."""
    big = StateImage(
        (TensorView(TensorSpec("t", "U8", (64 << 20,)), memoryview(bytearray(64 << 20))),),
        {"step": 1},
    )
    fetching, sources = begun(servers)
    with servers[0].offer(7, JOINER, big) as first, servers[1].offer(7, JOINER, big) as second:
        ends_at = time.monotonic() + 5
        while not first.bytes_sent and time.monotonic() < ends_at:
            time.sleep(0.001)
        fetching.settle(sources[1:2])
        report = fetching.finish(None)

        assert first.wait(5)
        assert second.wait(5)
    assert report.image.digest() == big.digest()
    assert {one.node for one in report.sources} == {"n1"}


def test_a_source_that_was_not_asked_in_advance_can_be_chosen(
    servers: list[TransferServer],
) -> None:
    """The guess may be wrong altogether."""
    fetching, sources = begun(servers[:2])
    with servers[2].offer(7, JOINER, image()):
        fetching.settle([source(servers[2], 2)])

        assert fetching.finish(None).image.digest() == image().digest()
    assert len(sources) == 2


def test_a_source_that_went_away_meanwhile_is_asked_anew(servers: list[TransferServer]) -> None:
    """One of the chosen was gone before it could offer: the transfer says so, or does without."""
    fetching, sources = begun(servers)
    servers[0].close()
    with servers[1].offer(7, JOINER, image()):
        fetching.settle(sources[:2])
        report = fetching.finish(None)
    told = {one.node: one.outcome for one in report.sources}

    assert report.image.digest() == image().digest()
    assert told["n1"] == "complete"

    alone, sources = begun(servers[1:2], 1, 8)
    servers[1].close()
    alone.settle(sources)
    with pytest.raises(TransferFailed, match="n1"):
        alone.finish(None)


def test_a_transfer_that_is_given_up_lets_everybody_go(servers: list[TransferServer]) -> None:
    """Cancelled before anybody offered: it returns at once, and an abort ends it as well."""
    fetching, _ = begun(servers)
    began_s = time.monotonic()
    fetching.cancel()

    assert time.monotonic() - began_s < 1.0
    again, sources = begun(servers, transition=8)
    abort = threading.Event()
    abort.set()
    again.settle(sources)
    with pytest.raises(TransferAborted):
        again.finish(abort)
    assert time.monotonic() - began_s < 5.0

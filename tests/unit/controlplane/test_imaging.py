"""A snapshot is the state, under any hash seed, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane import imaging
from controlplane.imaging import Image, SnapshotUnusable, decode_image, encode_image
from controlplane.turn import Ledger, count
from statemachine import events as e
from statemachine.decide import settle
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position
from statemachine.state import FleetState

JOB = JobId("job")
AT_MS = 1_800_000_000_000


def story() -> list[e.AnyEvent]:
    """A launch with a standby, a loss in the middle of it, an operator, a sweep."""
    facts: list[e.AnyEvent] = [e.JobDeclared(job=JOB, axes={"dp": 3}, steps=9, standbys=1)]
    for name in ("n0", "n1", "n2", "n3", "n4"):
        node = NodeId(name)
        facts.append(e.NodeJoined(node=node, incarnation=Incarnation(1), host="h"))
        facts.append(
            e.WorkerReady(
                node=node,
                incarnation=Incarnation(1),
                job=JOB,
                host="127.0.0.1",
                port=1,
                transfer_port=2,
                pid=3,
                digest="d",
            )
        )
    facts.append(
        e.WorkerExited(node=NodeId("n1"), incarnation=Incarnation(1), job=JOB, reason="signal 9")
    )
    facts.append(e.SweepAsked(node=NodeId("n4"), by="ada"))
    facts.append(e.QuarantineRequested(node=NodeId("n2"), by="ada"))
    return facts


def images() -> list[Image]:
    """The image after every entry of the log of that story."""
    state, counters = FleetState(), Ledger().counters
    made = []
    for number, event in enumerate(story(), 1):
        at_ms = AT_MS + 100 * number
        fact = e.Recorded(
            position=Position(state.position + 1),
            at_ms=at_ms,
            writer=f"w{number % 3}",
            incarnation=Incarnation(1),
            counter=number,
            event=event,
        )
        state = evolve(state, fact)
        counters = count(counters, fact.writer, fact.incarnation, fact.counter)
        made.append(Image(state=state, counters=counters))
        for recorded in settle(state, at_ms, "c0").recorded:
            state = evolve(state, recorded)
            made.append(Image(state=state, counters=counters))
    return made


def test_every_state_of_a_story_comes_back() -> None:
    """Equal in every record, and encoded to the same bytes again."""
    made = images()
    assert any(image.state.jobs[JOB].pending for image in made if image.state.jobs)
    assert any(image.state.sweeps for image in made)
    for image in made:
        blob = encode_image("f", image)
        found = decode_image("f", blob)
        assert found == image, f"after position {image.state.position}"
        assert encode_image("f", found) == blob


def test_a_restored_state_decides_alike() -> None:
    """What the state machine decides next is the same from a snapshot."""
    for image in images():
        found = decode_image("f", encode_image("f", image))
        now_ms = image.state.at_ms + 3_600_000
        assert settle(found.state, now_ms, "c") == settle(image.state, now_ms, "c")


def test_the_hash_seed_does_not_show() -> None:
    """Two processes with two hash seeds write the same bytes and the same shape."""
    root = Path(__file__).parents[3]
    said = set()
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, __file__]
        said.add(subprocess.check_output(command, env=environment, cwd=root, text=True))
    (digest,) = said
    assert len(digest.split()) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda blob: blob.replace(b'"fleet":"f"', b'"fleet":"g"'), "of fleet g, not of f"),
        (lambda blob: blob.replace(b'"version":1', b'"version":2'), "folds otherwise"),
        (lambda blob: blob.replace(imaging.shape().encode(), b"0" * 16), "folds otherwise"),
        (lambda blob: blob[:-9], "snapshot at position"),
        (lambda _: b"\x00", "not a snapshot"),
    ],
)
def test_what_this_release_cannot_vouch_for_is_refused(change: object, words: str) -> None:
    """Another fleet's, another fold's, another shape's, a cut one, no snapshot at all."""
    assert callable(change)
    with pytest.raises(SnapshotUnusable, match=words):
        decode_image("f", change(encode_image("f", images()[-1])))


if __name__ == "__main__":
    import hashlib

    sys.path.insert(0, str(Path.cwd()))
    print(
        hashlib.sha256(b"".join(encode_image("f", each) for each in images())).hexdigest(),
        imaging.shape(),
    )

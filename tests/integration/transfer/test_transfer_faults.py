"""State reaches a joiner whole, or not at all, whatever happens to those who give it.

Sources are processes of their own. Where a fault must hit in the middle of the stream, the bytes
pass through a relay that triggers it at an exact count, so that no test hopes for the right moment.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from worker.transfer import (
    ImageHeader,
    ImageRefused,
    Party,
    Source,
    StateImage,
    TransferAborted,
    TransferFailed,
    TransferReport,
    fetch,
)

SECRET = bytes(range(32))
JOB, TRANSITION = "job", 7
JOINER = Party("n9", 3)
MIB = 1 << 20


class SourceProcess:
    """A running source, its digest, and how a joiner names it."""

    def __init__(self, node: str, *, nbytes: int, seed: int = 1, joiners: Any = (JOINER,)) -> None:
        told = {
            "secret": SECRET.hex(),
            "job": JOB,
            "transition": TRANSITION,
            "me": [node, 1],
            "joiners": [[each.node, each.incarnation] for each in joiners],
            "seed": seed,
            "nbytes": nbytes,
        }
        script = Path(__file__).with_name("source_process.py")
        self.child = subprocess.Popen(
            [sys.executable, str(script), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        self.party = Party(node, 1)

    def ready(self) -> None:
        """Wait until it listens."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, f"source {self.party} ended with {self.child.wait()}"
        told = json.loads(line)
        self.port, self.digest = int(told["port"]), str(told["digest"])

    def through(self, relay: "Relay | None" = None) -> Source:
        """The source as a joiner should see it."""
        return Source("127.0.0.1", self.port if relay is None else relay.port, self.party)

    def end(self) -> None:
        """Kill it and reap it."""
        with suppress(ProcessLookupError):
            self.child.send_signal(signal.SIGCONT)
        self.child.kill()
        self.child.communicate()


class Relay:
    """Passes one connection on to `port`; `hook(count, data)` sees every byte from the source.

    `count` is how many bytes came before `data`; what the hook returns is passed on, None cuts.
    """

    def __init__(self, port: int, hook: Callable[[int, bytes], bytes | None]) -> None:
        self._hook = hook
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        with suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            self._sockets += [near, far]
            up = threading.Thread(target=self._copy, args=(near, far, lambda _, d: d), daemon=True)
            up.start()
            self._copy(far, near, self._hook)
            up.join()

    def _copy(
        self, source: socket.socket, to: socket.socket, hook: Callable[[int, bytes], bytes | None]
    ) -> None:
        count = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                passed = hook(count, data)
                count += len(data)
                if passed is None:
                    break
                to.sendall(passed)
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Cut everything and wait for the threads."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        for each in self._sockets:
            each.close()


@pytest.fixture
def start() -> Iterator[Callable[..., list[SourceProcess]]]:
    """Start sources with identical bits; they end with the test."""
    running: list[SourceProcess] = []

    def started(*nodes: str, **told: Any) -> list[SourceProcess]:
        new = [SourceProcess(node, **told) for node in nodes]
        running.extend(new)
        for each in new:
            each.ready()
        return new

    yield started
    for each in running:
        each.end()


@pytest.fixture
def relayed() -> Iterator[Callable[[SourceProcess, Callable[[int, bytes], bytes | None]], Relay]]:
    """Put a relay in front of a source; it ends with the test."""
    relays: list[Relay] = []

    def put(source: SourceProcess, hook: Callable[[int, bytes], bytes | None]) -> Relay:
        relays.append(Relay(source.port, hook))
        return relays[-1]

    yield put
    for relay in relays:
        relay.end()


def take(*sources: Source, **told: Any) -> TransferReport:
    """Fetch from these sources, as the joiner, into fresh memory."""
    given: dict[str, Any] = {"into": StateImage.allocate, "joiner": JOINER, "stall_s": 10.0} | told
    return fetch(sources, secret=SECRET, job=JOB, transition=TRANSITION, **given)


def test_every_bit_arrives_from_two_sources_each_giving_a_part(start: Any) -> None:
    """Two replicas share the work, and the image is theirs bit for bit."""
    one, two = start("n0", "n1", nbytes=48 * MIB)
    assert one.digest == two.digest

    report = take(one.through(), two.through())

    assert report.image.digest() == one.digest
    assert report.image.meta == {"stamp": {"step": 41, "seed": 1}}
    assert report.nbytes == sum(each.nbytes for each in report.sources) >= 48 * MIB
    assert all(each.chunks >= 4 for each in report.sources), report.sources
    assert [each.outcome for each in report.sources] == ["complete", "complete"]


@pytest.mark.parametrize("nbytes", [0, MIB - 1, MIB, 5 * MIB + 17])
def test_sizes_that_are_no_whole_number_of_chunks_arrive(start: Any, nbytes: int) -> None:
    """The last, short chunk and tensors smaller than a chunk are not lost."""
    (source,) = start("n0", nbytes=nbytes)

    assert take(source.through()).image.digest() == source.digest


def test_a_source_killed_in_the_stream_is_replaced_by_the_other(start: Any, relayed: Any) -> None:
    """SIGKILL of one source after 5 MiB: the rest comes from the other, nothing twice."""
    dies, lives = start("n0", "n1", nbytes=64 * MIB)

    def kill_at_5_mib(count: int, data: bytes) -> bytes:
        if count > 5 * MIB and dies.child.poll() is None:
            dies.child.kill()
            dies.child.wait()
        return data

    report = take(dies.through(relayed(dies, kill_at_5_mib)), lives.through())

    assert dies.child.returncode == -signal.SIGKILL
    assert report.image.digest() == lives.digest
    assert report.sources[0].outcome.startswith("lost: ")
    assert report.sources[0].nbytes > 0
    assert report.sources[1].outcome == "complete"
    assert sum(each.nbytes for each in report.sources) == report.nbytes


def test_the_last_source_lost_is_a_failure_that_says_so(start: Any, relayed: Any) -> None:
    """With nobody left the transfer fails at once and tells what each source did."""
    (source,) = start("n0", nbytes=16 * MIB)
    relay = relayed(source, lambda count, data: data if count < 2 * MIB else None)
    started = time.monotonic()

    with pytest.raises(TransferFailed, match=r"n0: lost: .*; n1: lost: .*refused"):
        take(source.through(relay), Source("127.0.0.1", _closed_port(), Party("n1", 1)))

    assert time.monotonic() - started < 5


def test_a_tampered_chunk_is_refused_named_and_fetched_again(start: Any, relayed: Any) -> None:
    """One flipped bit in the stream costs one chunk, which is named, and does not get in."""
    (source,) = start("n0", nbytes=8 * MIB)

    def flip_once(count: int, data: bytes) -> bytes:
        at = 3 * MIB - count
        if 0 <= at < len(data):
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    report = take(source.through(relayed(source, flip_once)))

    assert report.image.digest() == source.digest
    assert len(report.sources[0].bad_chunks) == 1
    assert report.sources[0].bad_chunks[0].startswith("chunk 2 (bytes 2097152..3145728, t")


def test_a_source_that_keeps_tampering_is_left_out(start: Any, relayed: Any) -> None:
    """After three bad chunks the others give the rest."""
    bad, good = start("n0", "n1", nbytes=32 * MIB)

    def flip_always(count: int, data: bytes) -> bytes:
        return data if count < MIB // 2 else bytes([data[0] ^ 1]) + data[1:]

    report = take(bad.through(relayed(bad, flip_always)), good.through())

    assert report.image.digest() == good.digest
    assert report.sources[0].outcome.startswith("left out: ")
    assert report.sources[1].outcome == "complete"


def test_a_frozen_source_is_left_after_the_stall_limit(start: Any, relayed: Any) -> None:
    """SIGSTOP of a source in the stream: its part is taken over once it was silent too long."""
    frozen, lives = start("n0", "n1", nbytes=32 * MIB)
    stopped = threading.Event()

    def freeze_at_2_mib(count: int, data: bytes) -> bytes:
        if count > 2 * MIB and not stopped.is_set():
            frozen.child.send_signal(signal.SIGSTOP)
            stopped.set()
        return data

    started = time.monotonic()
    report = take(frozen.through(relayed(frozen, freeze_at_2_mib)), lives.through(), stall_s=0.5)

    assert stopped.is_set()
    assert report.image.digest() == lives.digest
    assert report.sources[0].outcome == "lost: peer sent nothing for too long"
    assert time.monotonic() - started < 10


def test_an_abort_in_the_stream_returns_at_once_and_writes_nothing_more(
    start: Any, relayed: Any
) -> None:
    """An abort at 3 MiB frees the joiner within half a second; its memory is its own again."""
    (source,) = start("n0", nbytes=64 * MIB)
    abort, at_s, made = threading.Event(), [0.0], []

    def abort_at_3_mib(count: int, data: bytes) -> bytes:
        if count > 3 * MIB and not abort.is_set():
            at_s[0] = time.monotonic()
            abort.set()
        return data

    def into(header: ImageHeader) -> StateImage:
        made.append(StateImage.allocate(header))
        return made[0]

    with pytest.raises(TransferAborted):
        take(source.through(relayed(source, abort_at_3_mib)), abort=abort, into=into)
    taken_s = time.monotonic() - at_s[0]
    frozen_digest = made[0].digest()

    assert taken_s < 0.5, f"abort took {taken_s * 1e3:.0f} ms"
    assert frozen_digest != source.digest
    assert not [each for each in threading.enumerate() if each.name == "transfer-draw"]
    assert made[0].digest() == frozen_digest


def test_two_joiners_are_served_at_once(start: Any, relayed: Any) -> None:
    """A joiner that takes nothing does not keep another one waiting."""
    slow, quick = Party("n8", 1), JOINER
    (source,) = start("n0", nbytes=48 * MIB, joiners=(slow, quick))
    hold, reached = threading.Event(), threading.Event()

    def hold_at_1_mib(count: int, data: bytes) -> bytes:
        if count > MIB:
            reached.set()
            hold.wait(30)
        return data

    results: dict[str, TransferReport] = {}
    relay = relayed(source, hold_at_1_mib)
    thread = threading.Thread(
        target=lambda: results.update(slow=take(source.through(relay), joiner=slow, stall_s=40.0))
    )
    thread.start()
    assert reached.wait(20)

    results["quick"] = take(source.through(), joiner=quick)
    assert "slow" not in results
    hold.set()
    thread.join(30)

    assert {name: report.image.digest() for name, report in results.items()} == {
        "slow": source.digest,
        "quick": source.digest,
    }


def test_a_source_with_other_bits_is_left_out(start: Any) -> None:
    """Replicas that disagree are never mixed: what the first one gives is what arrives."""
    (one,) = start("n0", nbytes=24 * MIB, seed=1)
    (other,) = start("n1", nbytes=24 * MIB, seed=2)

    report = take(one.through(), other.through())

    outcomes = {each.node: each.outcome for each in report.sources}
    assert sorted(outcomes.values()) == [
        "complete",
        "left out: has another state than the source that answered first",
    ]
    chosen = one if outcomes["n0"] == "complete" else other
    assert report.image.digest() == chosen.digest


def test_the_joiner_may_refuse_a_header(start: Any) -> None:
    """A source at another step is left out by the joiner's own word, and the next one is asked."""
    (stale,) = start("n0", nbytes=MIB, seed=1)
    (fresh,) = start("n1", nbytes=MIB, seed=2)

    def into(header: ImageHeader) -> StateImage:
        if header.meta["stamp"]["seed"] != 2:
            raise ImageRefused("another seed, wanted 2")
        return StateImage.allocate(header)

    report = take(stale.through(), fresh.through(), into=into)

    assert report.image.digest() == fresh.digest
    assert report.sources[0].outcome.startswith("left out: ")
    with pytest.raises(TransferFailed, match="n2: left out: another seed, wanted 2"):
        take(start("n2", nbytes=MIB, seed=3)[0].through(), into=into)


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

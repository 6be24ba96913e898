"""`changeover log archive | import | stats | verify` on a fleet that is led meanwhile; and foreign
values under the fleet's prefix, which cost a line in the journal and never the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.eventlog import open_store
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import Put
from statemachine.codec import encode_fact
from statemachine.events import Fact, NodeJoined
from statemachine.ids import Incarnation, NodeId

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.etcd_server import EtcdServer
    from tests.integration.controlplane.conftest import Controllers, Run

pytestmark = pytest.mark.etcd


def put(etcd: EtcdServer, *pairs: tuple[bytes, bytes]) -> None:
    """Write straight into the store, as nobody of ours would."""

    async def write() -> None:
        store = await open_store(etcd.url)
        await store.txn((), [Put(key, value) for key, value in pairs])
        await store.aclose()

    anyio.run(write)


def values(run: Run, *arguments: str) -> dict[str, object]:
    """What a command prints as JSON."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_log_is_archived_under_a_live_fleet_and_taken_over(
    controllers: Controllers, run: Run, tmp_path: Path
) -> None:
    """What is archived is proven; whoever leads next knows it; an import is the same log."""
    leader = controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    for number in range(3):
        run("pause", "--as", f"a{number}")
        run("resume", "--as", f"a{number}")
    before = run("log", "export", "-").stdout
    folder = tmp_path / "archive"

    done = values(run, "log", "archive", str(folder), "--keep", "2")
    assert (done["entries"], done["last"], done["snapshot"]) == (5, 5, 7)
    assert run("log", "archive", str(folder), "--keep", "2").stdout.startswith("nothing to archive")
    run("pause", "--as", "later")
    leader.kill()
    controllers.start("c1")
    controllers.wait_for("c1", "LeaderElected")

    stats = values(run, "log", "stats")
    assert (stats["head"], stats["oldest"], stats["live_entries"]) == (9, 6, 4)
    assert values(run, "status")["paused_by"] == "later"
    assert len(run("log", "tail").stdout.splitlines()) == 4
    proven = values(run, "log", "verify", "etcd", "--archive", str(folder))
    assert (proven["first"], proven["last"], proven["segments"], proven["snapshots"]) == (
        1,
        9,
        1,
        1,
    )
    assert values(run, "log", "verify", str(folder))["entries"] == 5
    after = run("log", "export", "-").stdout
    fleet = str(stats["fleet"])
    imported = run("log", "import", str(folder), "--from-fleet", fleet, "--fleet", f"{fleet}-b")
    assert imported.stdout == f"5 events imported into fleet {fleet}-b\n"
    copy = run("log", "export", "-", "--fleet", f"{fleet}-b").stdout
    assert copy == "".join(before.splitlines(keepends=True)[:5])
    assert after.startswith("".join(before.splitlines(keepends=True)[5:]))
    refused = run("log", "import", str(folder), "--from-fleet", fleet)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


def test_a_changed_archive_is_named_in_one_line(
    controllers: Controllers, run: Run, tmp_path: Path
) -> None:
    """Exit 1, the file and the position."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    run("pause")
    run("log", "archive", str(tmp_path), "--keep", "0")
    (segment,) = tmp_path.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 255
    segment.write_bytes(content)
    refuted = run("log", "verify", str(tmp_path))
    assert (refuted.returncode, refuted.stderr.count("\n")) == (1, 1)
    assert f"position 1: {segment.name}" in refuted.stderr


def fact(event: str, counter: int) -> bytes:
    """A fact of node n0, with an event as its writer spelt it."""
    shell = Fact(
        event=NodeJoined(node=NodeId("n0"), incarnation=Incarnation(1), host="h"),
        at_ms=1,
        writer="n0",
        incarnation=Incarnation(1),
        counter=counter,
    )
    raw = encode_fact(shell).decode()
    known = '{"type":"NodeJoined","node":"n0","incarnation":1,"host":"h"}'
    assert known in raw
    return raw.replace(known, event).encode()


def test_what_a_newer_release_says_survives(
    controllers: Controllers, run: Run, etcd: EtcdServer, fleet: str
) -> None:
    """An unknown tag and an unknown field enter the log, byte for byte, and are reported."""
    keys = Keys(fleet)
    tag = '{"type":"NodeTeleported","node":"n0","to":{"moon":[1,2]}}'
    field = '{"type":"NodeJoined","node":"n0","incarnation":1,"host":"h","colour":"red"}'
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    put(etcd, (keys.inbox("n0", 1, 1), fact(field, 1)), (keys.inbox("n0", 1, 2), fact(tag, 2)))
    controllers.wait_for("c0", "UnknownEvent")

    exported = run("log", "export", "-").stdout
    assert tag in exported
    assert field in exported
    assert values(run, "status")["unknown_events"] == 1
    assert "1 events of a newer release were not folded" in run("log", "verify", "etcd").stdout


def test_foreign_values_cost_a_line_and_nothing_else(
    controllers: Controllers, run: Run, etcd: EtcdServer, fleet: str
) -> None:
    """Garbage, a fact over the limit, a snapshot of nobody: passed over; the fleet works on."""
    keys = Keys(fleet)
    huge = '{"type":"NodeJoined","node":"n1","incarnation":1,"host":"' + "h" * 1_000_000 + '"}'
    put(
        etcd,
        (keys.inbox("n9", 1, 1), b"\xff\xfe nobody's"),
        (keys.inbox("n1", 1, 1), fact(huge, 1)),
        (keys.inbox_all[0] + b"what/is/this", b"?"),
        (keys.snapshot(7), b"not a manifest"),
        (keys.snapshot(8), b'{"position":8,"chunks":3,"size":9,"sha256":"00"}'),
        (keys.snapshot_chunk(9, 0), b"an orphan"),
    )
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    controllers.wait_for("c0", "n9/1/1")
    controllers.wait_for("c0", "a fact is at most")
    assert run("pause", "--as", "ada").returncode == 0
    assert values(run, "status")["paused_by"] == "ada"
    assert "a snapshot is passed over" in controllers.said("c0")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("schema", b"99", "codec version 99, this release knows up to 1: upgrade Changeover here"),
        ("schema", b"?", "damaged at position 0: its codec version says b'?'"),
        ("head", b"?", "damaged at position 0: its head says b'?'"),
        ("archived", b"?", "damaged at position 0: the mark of its archive says b'?'"),
        ("log", b"?", "damaged at position 1: no entry of a log"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_in_one_line(
    *, run: Run, etcd: EtcdServer, fleet: str, key: str, value: bytes, words: str
) -> None:
    """A controller does not lead what it cannot read: exit 1, and what is wrong where."""
    keys = Keys(fleet)
    where = {
        "schema": keys.schema,
        "head": keys.head,
        "archived": keys.archived,
        "log": keys.log(1),
    }
    head = [] if key == "head" else [(keys.head, b"%020d" % 1)]
    put(etcd, *head, (where[key], value))
    refused = run("controller", "--name", "c0", "--leader-ttl-s", "1")
    assert refused.returncode == 1, refused.stderr
    assert words in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr

"""Vitals that were kept: the same detector on them says the same, offline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import json as msgjson
from msgspec.structs import replace

from controlplane.eventlog import VitalsItem
from controlplane.health.collector import Collector
from controlplane.health.history import VitalsHistory
from simulator.cli.detecting import detect as command
from simulator.detecting import detect
from simulator.errors import BadTrace
from simulator.grey.faults import Fault, Kind
from simulator.grey.fleet import FleetSpec, windows
from statemachine import events as e
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.lifecycle import NodeState
from statemachine.policy import Policy
from statemachine.state import FleetState, Node
from statemachine.vitals import encode_vitals

SICK = FleetSpec(faults={2: Fault(kind=Kind.COMPUTE, size=1.4, onset=20)})


class Online:
    """A collector as a controller runs it, over a fold in which every node holds a slot."""

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        self.state = FleetState(policy=policy or Policy())
        for number in range(SICK.nodes):
            node = Node(
                node=NodeId(f"n{number}"),
                incarnation=Incarnation(1),
                state=NodeState.ACTIVE,
                host="h",
                since_at_ms=0,
                joined_at_ms=0,
            )
            self.state = replace(self.state, nodes=self.state.nodes.insert(node.node, node))
        self.now_ms = 0
        self.said: list[e.AnyEvent] = []
        self.history = VitalsHistory(path)
        self.collector = Collector(
            lambda: self.state, self.said.extend, lambda: self.now_ms, self.history
        )

    def play(self, seed: int, count: int) -> None:
        for batch in windows(SICK, seed, count):
            for vitals in batch:
                self.now_ms += 50
                item = VitalsItem(
                    node=vitals.node,
                    incarnation=vitals.incarnation,
                    value=encode_vitals(vitals),
                    revision=1,
                )
                self.collector._take([item])

    def hear(self, event: e.AnyEvent) -> None:
        recorded = e.Recorded(position=Position(1), at_ms=self.now_ms, writer="w", event=event)
        self.collector.heard([recorded], evolve(self.state, recorded))


@pytest.fixture
def recorded(tmp_path: Path) -> Online:
    """A run with a grey node, a node that is lost and a verdict that an operator took back."""
    online = Online(tmp_path / "vitals.jsonl")
    online.play(1, 30)
    lost = e.NodeLost(node=NodeId("n5"), incarnation=Incarnation(1), reason="gone", evidence=())
    online.hear(lost)
    n2 = NodeId("n2")
    online.hear(e.VerdictWithdrawn(node=n2, incarnation=Incarnation(1), reason="by ann", by="ann"))
    online.collector._observe(())
    online.history.close()
    return online


def test_offline_the_verdicts_are_those_of_online(recorded: Online, tmp_path: Path) -> None:
    """Every judgement, byte for byte, and in the same order."""
    found = detect(tmp_path / "vitals.jsonl")

    assert any(isinstance(said, e.VerdictIssued) for said in recorded.said)
    assert [msgjson.encode(said.judgement) for said in found.said] == [
        msgjson.encode(said) for said in recorded.said
    ]
    assert found.nodes == SICK.nodes


def test_a_table_of_a_recording_says_the_same(recorded: Online, tmp_path: Path) -> None:
    """`simctl detect vitals.parquet`: every judgement, byte for byte; a row for each window."""
    pq = pytest.importorskip("pyarrow.parquet")
    lines, table = tmp_path / "vitals.jsonl", tmp_path / "vitals.parquet"
    done = CliRunner().invoke(command, [str(lines), "--parquet", str(table), "--json"])
    again = CliRunner().invoke(command, [str(table), "--json"])
    rows = pq.read_table(table).to_pylist()

    assert done.exit_code == again.exit_code == 0, done.output + again.output
    assert again.output == done.output
    assert '"faulty"' in done.output
    sick = [row["work_ms_p50"] for row in rows if row["node"] == "n2" and row["window"] > 20]
    well = [row["work_ms_p50"] for row in rows if row["node"] == "n3" and row["window"] > 20]
    assert min(sick) > 1.1 * max(well)


def test_a_table_that_is_none_is_one_line(tmp_path: Path) -> None:
    """Another file of that name, and a table without what the detector was told."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    path.write_text("no table")
    with pytest.raises(BadTrace, match=r"x\.parquet: no recorded vitals"):
        detect(path)
    pq.write_table(pa.Table.from_pylist([{"entry": 1}]), path)
    with pytest.raises(BadTrace, match=r"x\.parquet: no recorded vitals"):
        detect(path)


def test_another_policy_judges_otherwise(recorded: Online, tmp_path: Path) -> None:
    """A policy given on the command line replaces the recorded one."""
    policy = tmp_path / "lax.toml"
    policy.write_text("[policy.detector]\nfaulty_ratio = 3.0\ndegraded_ratio = 2.5\n")
    path = str(tmp_path / "vitals.jsonl")
    done = CliRunner().invoke(command, [path, "--policy", str(policy), "--json"])
    same = CliRunner().invoke(command, [path, "--json"])

    assert done.exit_code == same.exit_code == 0, done.output
    verdicts = [said["judgement"].get("verdict") for said in json.loads(done.output)["said"]]
    assert "faulty" not in verdicts
    assert "faulty" in [s["judgement"].get("verdict") for s in json.loads(same.output)["said"]]


def test_bare_vitals_are_read_as_they_are() -> None:
    """A file of windows, one a line, is a recording too: a real demo's grey node is found."""
    path = Path("tests/history/grey_node_on_two_cores.vitals.jsonl")
    found = detect(path)

    assert [(s.judgement.node, getattr(s.judgement, "verdict", "")) for s in found.said] == [
        ("n2", "faulty")
    ]


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    """A line that is no entry is named with its number; exit code 2, no traceback."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"at_ms": 1, "batch": []}\n{"at_ms": "soon"}\n')
    with pytest.raises(BadTrace, match=r"x\.jsonl:2: no recorded vitals"):
        detect(path)
    done = subprocess.run(
        [sys.executable, "-c", "from simulator.cli import main; main()", "detect", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """At most twice the bound is on disk, the newest whole, and the policy at each beginning."""
    path = tmp_path / "vitals.jsonl"
    history = VitalsHistory(path, bytes_max=100_000)
    policy = Policy()
    for number, batch in enumerate(windows(SICK, 1, 60)):
        history.observed(batch, number, policy)
    history.close()

    sizes = [p.stat().st_size for p in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100_000
    first = json.loads(path.read_bytes().splitlines()[0])
    assert "policy" in first
    assert json.loads(path.read_bytes().splitlines()[-1])["at_ms"] == 59


def test_a_full_disk_stops_the_history_and_nothing_else(tmp_path: Path) -> None:
    """What cannot be written is given up with a word; the collector goes on."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    online = Online(blocked / "vitals.jsonl")
    online.play(1, 30)

    assert any(isinstance(said, e.VerdictIssued) for said in online.said)

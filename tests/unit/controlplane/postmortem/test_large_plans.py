"""A plan that was too much for one event is read as one: in lines, chains and traces."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controlplane.explaining import explain
from controlplane.lines import words_of
from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.telling import tell, timeline_values
from statemachine import events as e
from statemachine import parts
from statemachine.codec import encode_recorded
from tests.datadriven.stage import Stage
from tests.unit.controlplane.postmortem.test_trace import Begins, Slice, traced

COMMANDS = ["fleet n0 n1 n2 standby=n3,n4", "drain n0 n2", "carry"]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[e.Recorded]:
    """Two nodes are drained at once, and every event holds one change at most."""
    monkeypatch.setattr(parts, "CHANGES_MAX", 1)
    stage = Stage()
    for line in COMMANDS:
        stage.perform([line])
    return stage.log


@pytest.fixture
def path(cut: list[e.Recorded], tmp_path: Path) -> Path:
    """The same in a file."""
    target = tmp_path / "cut.jsonl"
    target.write_bytes(b"".join(encode_recorded(each) + b"\n" for each in cut))
    return target


def test_lines_say_every_change_once(cut: list[e.Recorded]) -> None:
    """In the part that has it; the plan says how many parts there were."""
    (plan,) = [
        r.event for r in cut if isinstance(r.event, e.TransitionPlanned) and r.event.transition == 2
    ]
    drafted = [
        r.event for r in cut if isinstance(r.event, e.ChangesDrafted) and r.event.transition == 2
    ]
    told = [*map(words_of, drafted), words_of(plan)]

    assert "slot 0: n3 for n0" in told[0]
    assert "slot 2: n4 for n2" in told[1]
    assert "what 2 parts say" in told[2]
    assert sum("for n0" in each for each in told) == 1


def test_a_chain_begins_with_each_wish(path: Path) -> None:
    """Of both incidents of the transition: the act, the plan, the commit, the end."""
    log = LogFile(path)

    found = timeline_values(tell(log), log)["incidents"]

    assert [(each["node"], each["replacement"]) for each in found] == [("n0", "n3"), ("n2", "n4")]
    for each in found:
        kinds = [link["type"] for link in each["chain"]]
        assert kinds.count("DrainRequested") == 2, kinds
        assert kinds.index("DrainRequested") < kinds.index("TransitionPlanned")


def test_a_trace_has_an_arrow_from_each_wish_to_the_plan(path: Path) -> None:
    """And from the plan to those who joined or left when they prepared."""
    trace = traced(path)
    named = {
        (each.pid, each.tid, each.ts): each for each in trace.records if isinstance(each, Slice)
    }
    begins = [
        named[each.pid, each.tid, each.ts].name
        for each in trace.records
        if isinstance(each, Begins) and (each.pid, each.tid, each.ts) in named
    ]

    assert begins.count("DrainRequested") >= 2, begins
    movers = sum(1 for name in begins if name == "TransitionPlanned")
    assert movers >= 4, "two joiners and two leavers prepared because of the plan"
    assert msgspec.json.encode(trace.metadata)


def test_whoever_leaves_by_a_part_is_explained(cut: list[e.Recorded]) -> None:
    """A node that only a part of the plan names has the plan in its story."""
    told = "\n".join(explain(cut, "n2", "lab").lines())

    assert "t2: n3 takes slot 0 of n0: drain by ann" in told
    assert "ChangesDrafted" in told
    assert "NodeDrained: drained by ann" in told

"""A trace is what Perfetto reads: checked against the Trace Event Format, strictly.

The records below are the parts of that format that a trace of ours may use; an unknown field, a
missing one or another type is a failure. What the format says in words is checked in words: slices
of a thread nest, arrows begin and end inside a slice, and every thread has a name.
"""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Struct, field

from controlplane.postmortem.logfile import LogFile
from controlplane.postmortem.trace import write_trace

HISTORY = Path(__file__).parents[3] / "history"


class Slice(Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    """A complete event; times in µs."""

    name: str
    cat: str
    pid: int
    tid: int
    ts: int
    dur: int
    args: dict[str, Any]


class Named(Struct, tag_field="ph", tag="M", forbid_unknown_fields=True):
    """Metadata of a process or thread."""

    name: Literal["process_name", "process_sort_index", "thread_name"]
    pid: int
    tid: int
    args: dict[str, Any]


class Begins(Struct, tag_field="ph", tag="s", forbid_unknown_fields=True):
    """Where an arrow begins."""

    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: int


class Ends(Struct, tag_field="ph", tag="f", forbid_unknown_fields=True):
    """Where an arrow ends: in the slice around it."""

    bp: Literal["e"]
    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: int


class Trace(Struct, forbid_unknown_fields=True):
    """The JSON object form."""

    records: list[Slice | Named | Begins | Ends] = field(name="traceEvents")
    unit: Literal["ms", "ns"] = field(name="displayTimeUnit")
    metadata: dict[str, Any]


def traced(path: Path) -> Trace:
    """The trace of a log, decoded strictly."""
    sink = io.BytesIO()
    write_trace(LogFile(path), sink)
    return msgspec.json.decode(sink.getvalue(), type=Trace, strict=True)


@pytest.fixture(params=sorted(HISTORY.glob("*.events.jsonl")), ids=lambda path: path.stem)
def trace(request: pytest.FixtureRequest) -> Trace:
    """Every recorded log as a trace."""
    return traced(request.param)


def slices(trace: Trace) -> dict[tuple[int, int], list[Slice]]:
    """Slices by thread, in the order in which a viewer stacks them."""
    found: dict[tuple[int, int], list[Slice]] = {}
    for record in trace.records:
        if isinstance(record, Slice):
            found.setdefault((record.pid, record.tid), []).append(record)
    for each in found.values():
        each.sort(key=lambda one: (one.ts, -one.dur))
    return found


def test_slices_of_a_thread_nest(trace: Trace) -> None:
    """Two slices of one thread follow each other, or one holds the other."""
    for thread, each in slices(trace).items():
        open_until: list[int] = []
        for one in each:
            while open_until and open_until[-1] <= one.ts:
                open_until.pop()
            end = one.ts + one.dur
            assert not open_until or end <= open_until[-1], f"{thread}: {one} sticks out"
            open_until.append(end)


def test_arrows_have_two_ends_inside_slices(trace: Trace) -> None:
    """Each begins once and ends once, not before it began, and both ends lie in a slice."""
    by_thread = slices(trace)
    begins = {r.id: r for r in trace.records if isinstance(r, Begins)}
    ends = {r.id: r for r in trace.records if isinstance(r, Ends)}

    assert begins.keys() == ends.keys()
    for number, begin in begins.items():
        assert begin.ts <= ends[number].ts
    both: list[Begins | Ends] = [*begins.values(), *ends.values()]
    for end in both:
        around = by_thread[end.pid, end.tid]
        assert any(one.ts <= end.ts < one.ts + one.dur for one in around), end


def test_every_thread_has_one_name(trace: Trace) -> None:
    """A track without a name is a number to its reader."""
    named = Counter(
        (r.pid, r.tid) for r in trace.records if isinstance(r, Named) and r.name == "thread_name"
    )

    assert set(named) == set(slices(trace))
    assert set(named.values()) == {1}


def test_a_loss_is_followed_from_its_evidence_to_the_step_that_ended_it(demo_log: Path) -> None:
    """Arrows lead from the reset link to the plan, the acknowledgements, the commit and the end."""
    trace = traced(demo_log)
    at = {
        (one.pid, one.tid, one.ts): one
        for each in slices(trace).values()
        for one in each
        if one.cat == "entry"
    }
    begins = {r.id: r for r in trace.records if isinstance(r, Begins)}
    led = {
        (at[b.pid, b.tid, b.ts].name, at[r.pid, r.tid, r.ts].name)
        for r in trace.records
        if isinstance(r, Ends) and (b := begins[r.id])
    }

    assert {
        ("NodeLost", "TransitionPlanned"),
        ("TransitionPlanned", "TransitionPrepared"),
        ("TransitionPrepared", "TransitionCommitted"),
        ("TransitionCommitted", "TransitionApplied"),
        ("TransitionApplied", "TransitionFinished"),
        ("SweepRequested", "SweepFinished"),
    } <= led, led


def test_a_damaged_log_is_traced_as_far_as_it_goes(demo_log: Path, tmp_path: Path) -> None:
    """The trace says of itself that its log was damaged."""
    lines = demo_log.read_bytes().splitlines(keepends=True)
    target = tmp_path / "damaged.jsonl"
    target.write_bytes(b"".join(lines[:60] + lines[61:]))

    trace = traced(target)

    assert trace.metadata["log_is_whole"] is False
    assert "position 61 is missing" in trace.metadata["said_first"][0]

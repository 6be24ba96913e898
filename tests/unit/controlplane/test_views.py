"""What operators read: lines of the log, pictures of the fleet, stories, exports, proofs."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, get_args

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace as with_fields

from controlplane.cli.status import lay_out_nodes, lay_out_status
from controlplane.cli.tables import span, table
from controlplane.errors import LogRefuted, NothingToExplain, TargetExists
from controlplane.eventlog import Batch, EventLog
from controlplane.eventlog.memory import MemoryStore
from controlplane.explaining import story_of
from controlplane.exporting import appearing, exported
from controlplane.lines import line_of, words_of
from controlplane.picture import Picture, as_values
from controlplane.postmortem.logfile import LogFile
from controlplane.verifying import verify_file, verify_log
from statemachine import events as e
from statemachine.checksums import has_checksum, without_checksum
from statemachine.codec import encode_recorded
from statemachine.decide import settle
from statemachine.errors import UsageError
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, JobId, NodeId, Position
from statemachine.state import FleetState

JOB = JobId("job")
AT_MS = 1_800_000_000_000


def node_facts(node: str) -> list[e.AnyEvent]:
    """A node joins and is ready."""
    return [
        e.NodeJoined(node=NodeId(node), incarnation=Incarnation(1), host="h"),
        e.WorkerReady(
            node=NodeId(node),
            incarnation=Incarnation(1),
            job=JOB,
            host="127.0.0.1",
            port=1,
            transfer_port=2,
            pid=3,
            digest="d",
        ),
    ]


def written(events: list[e.AnyEvent]) -> list[e.Recorded]:
    """A log of facts with all that the state machine decides upon them."""
    state, log = FleetState(), []
    for event in events:
        at_ms = AT_MS + 100 * int(state.position)
        fact = e.Recorded(
            position=Position(state.position + 1), at_ms=at_ms, writer="w", event=event
        )
        settled = settle(evolve(state, fact), at_ms, "c0")
        log += [fact, *settled.recorded]
        state = settled.state
    return log


@pytest.fixture(scope="module")
def log() -> list[e.Recorded]:
    """Two nodes get the slots of a job; the third dies before it is of use."""
    job = e.JobDeclared(job=JOB, axes={"dp": 2}, steps=9)
    died = e.WorkerExited(node=NodeId("n2"), incarnation=Incarnation(1), job=JOB, reason="signal 9")
    facts = [*node_facts("n2"), died, job, *node_facts("n0"), *node_facts("n1")]
    return written(facts)


def fold_of(log: list[e.Recorded]) -> FleetState:
    """The state after a log."""
    state = FleetState()
    for recorded in log:
        state = evolve(state, recorded)
    return state


# --- lines ------------------------------------------------------------------------------------


def example_of(kind: type[e.Event]) -> e.AnyEvent:
    """Some event of a kind, with every field that has no default filled in."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            fields[field.name] = EXAMPLES.get(field.name, "x\n\x1b[2Jy")
    return msgspec.convert(fields, kind) if kind is e.UnknownEvent else kind(**fields)  # type: ignore[return-value]


EXAMPLES: dict[str, Any] = {
    "incarnation": 1,
    "axes": {"dp": 2},
    "changes": (),
    "required": (),
    "apply": (),
    "handovers": (),
    "measurements": {"gemm_gflops_best": 1.0},
    "knobs": {},
    "rounds": ("solo",),
    "raw": b"{}",
    **dict.fromkeys(("took_ms", "first_step_ms", "steady_step_ms", "step_ms"), 1.0),
    **dict.fromkeys(("waited_ms", "silent_ms"), 1.0),
    **dict.fromkeys(
        ("port", "transfer_port", "pid", "transition", "epoch", "from_epoch", "step", "sweep"), 1
    ),
    **dict.fromkeys(("deadline_at_ms", "expires_at_ms", "resume_step", "version", "term"), 1),
    **dict.fromkeys(("peer_incarnation",), 1),
}


@pytest.mark.parametrize("kind", get_args(e.AnyEvent), ids=lambda kind: kind.__name__)
def test_every_event_is_one_line(kind: type[e.Event]) -> None:
    """Whatever an event says, and whatever its texts hold, it reads as one line."""
    event = example_of(kind)
    line = line_of(e.Recorded(position=Position(7), at_ms=AT_MS, writer="n0", event=event))
    assert kind.__name__ in line
    assert line.isprintable()
    assert words_of(event)


# --- pictures ---------------------------------------------------------------------------------


def test_a_picture_names_who_is_awaited_and_for_how_long(log: list[e.Recorded]) -> None:
    """The pending launch waits for both nodes since it was planned."""
    state = fold_of(log)
    planned = next(r for r in log if isinstance(r.event, e.TransitionPlanned))
    picture = Picture(fleet="lab", state=state, leader=("c0", 3), vitals={})
    values = as_values(picture, planned.at_ms + 2500)
    (job,) = values["jobs"]
    assert job["state"] == "waiting to launch"
    assert (job["pending"]["awaited"], job["pending"]["since_s"]) == (["n0", "n1"], 2.5)
    assert values["nodes_by_state"] == {"spare": 2, "lost": 1}
    lines = lay_out_status(values)
    assert any("waiting for n0, n1: 2.5 s of 30.0 s" in line for line in lines)
    assert json.loads(msgspec.json.encode(values)) == json.loads(json.dumps(values))


def test_a_job_that_nothing_brings_back_says_why_and_what_would(log: list[e.Recorded]) -> None:
    """All who held its state are gone and nothing was saved: it is parked beside warm standbys,
    with nothing pending, and whoever looks at it has to be told.
    """
    state = fold_of(log)
    stalled = with_fields(state.jobs[JOB], stalled="no state; nothing saved", pending=None)
    state = with_fields(state, jobs=state.jobs.insert(JOB, stalled))

    lines = lay_out_status(
        as_values(Picture(fleet="lab", state=state, leader=None, vitals={}), AT_MS)
    )

    assert "  stands still: no state; nothing saved" in lines
    assert "restart" in lines[-1]


def test_a_fleet_without_a_leader_says_what_that_means() -> None:
    """Nobody is left to guess whether training goes on."""
    picture = Picture(fleet="lab", state=FleetState(), leader=None, vitals={})
    lines = lay_out_status(as_values(picture, AT_MS))
    assert "no controller leads" in lines[0]
    assert lines[-1] == "nodes: none ever joined"


def test_a_table_of_nodes_has_a_row_each(log: list[e.Recorded]) -> None:
    """Lost ones included, since the question is often where one went."""
    picture = Picture(fleet="lab", state=fold_of(log), leader=None, vitals={})
    rows = lay_out_nodes(as_values(picture, AT_MS))
    assert [row.split()[:2] for row in rows[1:]] == [
        ["n0/1", "spare"],
        ["n1/1", "spare"],
        ["n2/1", "lost"],
    ]


def test_columns_are_as_wide_as_they_must_be() -> None:
    """Empty values are visible, and no line ends in blanks."""
    assert table(("a", "bbb"), [(1, None), ("long", [1, 2])]) == [
        "a     bbb",
        "1     -",
        "long  1,2",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "-"), (2.04, "2.0 s"), (900.0, "15 min"), (90_000.0, "25.0 h")]
)
def test_durations_read_as_people_say_them(seconds: float | None, words: str) -> None:
    """Seconds, then minutes, then hours."""
    assert span(seconds) == words


# --- stories ----------------------------------------------------------------------------------


def test_the_story_of_a_node_holds_what_led_to_its_loss(log: list[e.Recorded]) -> None:
    """Its own facts, the evidence, the decision; nothing about others."""
    kinds = [type(r.event).__name__ for r in story_of(log, "n2", "lab")]
    assert kinds == ["NodeJoined", "WorkerReady", "WorkerExited", "NodeLost"]


def test_the_story_of_a_transition_may_name_its_job(log: list[e.Recorded]) -> None:
    """A number alone finds it in any job."""
    assert story_of(log, "job/1", "lab") == story_of(log, "1", "lab")
    with pytest.raises(NothingToExplain, match="'other/1'"):
        story_of(log, "other/1", "lab")


# --- files ------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def live(log: list[e.Recorded]) -> AsyncIterator[EventLog]:
    """The log in a store."""
    event_log = EventLog(MemoryStore(), "lab")
    leadership = await event_log.campaign("c0", 30)
    entries = tuple(encode_recorded(r) for r in log)
    await leadership.append(Batch(after=Position(0), entries=entries))
    yield event_log
    await leadership.resign()


async def test_an_export_is_the_logs_own_bytes(live: EventLog, log: list[e.Recorded]) -> None:
    """One entry a line, in order, each with a checksum behind its own bytes."""
    sink = io.BytesIO()
    assert await exported(live, sink) == len(log)
    lines = sink.getvalue().splitlines()
    assert all(map(has_checksum, lines))
    assert [without_checksum(line) for line in lines] == [encode_recorded(r) for r in log]


async def test_no_flipped_bit_of_an_export_goes_unseen(live: EventLog, tmp_path: Path) -> None:
    """Whichever byte of the file it hits, in an entry, its checksum or between two lines."""
    sink = io.BytesIO()
    await exported(live, sink)
    whole, path = sink.getvalue(), tmp_path / "log.jsonl"
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for at in sorted({*range(0, len(whole), 7), *ends}):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(LogRefuted, match="line "):
            verify_file(path)
        log = LogFile(path)
        list(log.entries())
        assert log.damage, f"bit {at % 8} of byte {at}: nothing was seen"


async def test_a_log_that_holds_is_proven(
    live: EventLog, log: list[e.Recorded], tmp_path: Path
) -> None:
    """In the store and as a file alike."""
    path = tmp_path / "log.jsonl"
    with appearing(path) as sink:
        await exported(live, sink)
    found = verify_file(path)
    assert found == await verify_log(live)
    assert (found.entries, found.first, found.last) == (len(log), 1, len(log))
    assert str(found).startswith("ok: ")


def spoil(raw: list[bytes], how: str) -> list[bytes]:
    """Spoil a log in one way, at its third entry."""
    match how:
        case "hole":
            return [*raw[:2], *raw[3:]]
        case "swap":
            return [*raw[:2], raw[3], raw[2], *raw[4:]]
        case "time":
            return [*raw[:2], raw[2].replace(b'"at_ms":18', b'"at_ms":17', 1), *raw[3:]]
        case "torn":
            return [*raw[:2], raw[2][:-9], *raw[3:]]
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize("how", ["hole", "swap", "time", "torn"])
def test_a_log_that_was_tampered_with_is_refuted_at_the_place(
    log: list[e.Recorded], tmp_path: Path, how: str
) -> None:
    """The first fault is named with its line."""
    raw = spoil([encode_recorded(r) for r in log], how)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    with pytest.raises(LogRefuted, match="line 3"):
        verify_file(path)


def test_a_file_that_ends_within_a_line_is_refuted(log: list[e.Recorded], tmp_path: Path) -> None:
    """As after a full disk or a copy cut short."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_recorded(log[0]))
    with pytest.raises(LogRefuted, match="the file ends within it"):
        verify_file(path)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failure on the way leaves neither the file nor a partial one."""
    target = tmp_path / "log.jsonl"

    def fail_half_way(sink: IO[bytes]) -> None:
        sink.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError), appearing(target) as sink:
        fail_half_way(sink)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    """Only on demand."""
    target = tmp_path / "log.jsonl"
    target.write_bytes(b"precious")
    with pytest.raises(TargetExists, match="--force"), appearing(target):
        pass
    assert target.read_bytes() == b"precious"
    with appearing(target, overwrite=True) as sink:
        sink.write(b"new")
    assert target.read_bytes() == b"new"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """One line, no traceback."""
    with pytest.raises(UsageError, match="cannot be written"), appearing(tmp_path / "no" / "x"):
        pass

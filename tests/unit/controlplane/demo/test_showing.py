"""What people see: plain lines without a terminal, tables from an outcome, nothing interpreted."""

import io
from pathlib import Path

from rich.console import Console

from controlplane.demo.baseline import Pace, measured, pace_of, read_lines
from controlplane.demo.live import Screen
from controlplane.demo.outcome import BaselineOutcome, ClaimOutcome, IncidentOutcome, Outcome
from controlplane.demo.tables import milliseconds, show
from statemachine import events as e
from statemachine.ids import Incarnation, NodeId, Position

MARKUP = "[red]n1[/red]"


def plain() -> tuple[Screen, io.StringIO]:
    """A screen that is no terminal, and what it writes."""
    file = io.StringIO()
    return Screen(Console(file=file, force_terminal=False, width=100)), file


def recorded(event: e.AnyEvent) -> e.Recorded:
    """An entry of a log."""
    return e.Recorded(position=Position(12), at_ms=1, writer="w", event=event)


def incident(kind: str, downtime_ms: float | None) -> IncidentOutcome:
    """An incident with one phase."""
    return IncidentOutcome(
        kind=kind,
        node=MARKUP,
        replacement="n4",
        slot=1,
        steps_lost=1,
        downtime_ms=downtime_ms,
        gap_ms=None,
        pause_ms=None,
        resume_step=9,
        phases={"detect": 12.3},
        injected_at_ms=0,
        resumed_at_ms=None,
        transition=2,
        epoch=2,
        failed_sweeps=0,
        came_back=True,
        reason="",
    )


def test_lines_are_plain_and_say_names_as_they_are() -> None:
    """No escape codes, and what looks like markup in a name is text."""
    screen, file = plain()
    screen.say(f"killed {MARKUP}")
    node = NodeId(MARKUP)
    screen.hear(recorded(e.NodeLost(node=node, incarnation=Incarnation(1), reason="reset")))
    first, second = file.getvalue().splitlines()
    assert first.endswith(f"killed {MARKUP}")
    assert MARKUP in second
    assert "12 NodeLost" in second
    assert "\x1b" not in file.getvalue()


def test_events_that_nobody_needs_to_see_are_not_shown() -> None:
    """The log has them."""
    screen, file = plain()
    node = NodeId("n1")
    screen.hear(recorded(e.NodeJoined(node=node, incarnation=Incarnation(1), host="h")))
    assert file.getvalue() == ""


def test_a_reason_of_any_length_stays_one_line() -> None:
    """A line that wraps hides the next one."""
    screen, file = plain()
    screen.say("x" * 1000)
    assert len(file.getvalue().splitlines()) == 1
    assert len(file.getvalue()) < 200


def test_the_table_sets_downtime_beside_a_restart() -> None:
    """Each incident with its ratio; what is not known is a dash."""
    file = io.StringIO()
    outcome = Outcome(
        incidents=[incident("kill", 250.0), incident("grey", None)],
        baseline=BaselineOutcome(restart_ms=6500.0, step_ms=50, repeated_steps=3),
        claims=[ClaimOutcome(claim=MARKUP, holds=False, detail="because")],
    )
    show(outcome, Console(file=file, force_terminal=False, width=160))
    said = file.getvalue()
    assert "kill [red]n1[/red] -> n4" in said
    assert "26x less" in said
    assert "6500 ms" in said
    assert "NO" in said


def test_durations_keep_the_digits_that_matter() -> None:
    """Milliseconds to ten seconds, then seconds."""
    assert [milliseconds(each) for each in (None, 0.04, 9.94, 250.6, 12_345)] == [
        "-",
        "0.0 ms",
        "9.9 ms",
        "251 ms",
        "12.3 s",
    ]


def test_a_restart_is_measured_to_the_first_step_of_the_last_rank(tmp_path: Path) -> None:
    """Two ranks restart from step 20 after 25 were committed; the slower is back after 6.5 s."""
    path = tmp_path / "ranks.jsonl"
    lines = []
    for rank, pid in ((0, 10), (1, 11)):
        lines.append(f'{{"event": "started", "at_s": 1, "rank": {rank}, "pid": {pid}}}')
        lines += [
            f'{{"event": "step", "at_s": 2, "rank": {rank}, "pid": {pid}, "index": {index},'
            f' "step_ms": 40}}'
            for index in range(26)
        ]
    path.write_text("\n".join(lines))
    before = read_lines(path)
    for rank, pid, at_s in ((0, 20, 106.0), (1, 21, 106.5)):
        lines.append(f'{{"event": "started", "at_s": 103, "rank": {rank}, "pid": {pid}}}')
        lines.append(
            f'{{"event": "resumed", "at_s": 105, "rank": {rank}, "pid": {pid}, "step": 20}}'
        )
        lines.append(
            f'{{"event": "step", "at_s": {at_s}, "rank": {rank}, "pid": {pid}, "index": 20}}'
        )
    path.write_text("\n".join(lines) + '\n{"event": "st')
    assert measured(before, read_lines(path), killed_at_s=100.0, ranks=2) == BaselineOutcome(
        restart_ms=6500.0, step_ms=40.0, repeated_steps=6
    )
    assert pace_of(before, began_s=-4.0) == Pace(step_ms=40.0, start_s=6.0)

"""report.html: one file, whole at any stage of a demo, that trusts nothing that nodes say."""

import re
from html.parser import HTMLParser
from pathlib import Path

from controlplane.demo.outcome import BaselineOutcome, ClaimOutcome, IncidentOutcome, Outcome
from controlplane.demo.report import write_report
from controlplane.demo.steps import JobStep
from controlplane.localfleet.folder import RunFolder
from statemachine import events as e
from statemachine.ids import Incarnation, JobId, NodeId, Position

HOSTILE = "<script>alert('x')</script>\"&"


class Balanced(HTMLParser):
    """Checks that what is opened is closed, in order."""

    VOID = frozenset({"meta", "br", "line", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> closes something else, line {self.getpos()}"


def page_of(folder: RunFolder) -> str:
    """The report, checked to be one well-formed file that refers to nothing."""
    html = folder.report.read_text()
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert parser.references == []
    assert not re.search(r"https?://|@import|url\(", html)
    return html


def incident() -> IncidentOutcome:
    """A kill, told in full."""
    return IncidentOutcome(
        kind="kill",
        node=HOSTILE,
        replacement="n4",
        slot=1,
        steps_lost=1,
        downtime_ms=250.0,
        gap_ms=None,
        pause_ms=180.0,
        resume_step=9,
        phases={"detect": 12.0, "prepare": 33.0},
        injected_at_ms=1500.0,
        resumed_at_ms=1750.0,
        transition=2,
        epoch=2,
        failed_sweeps=0,
        came_back=True,
        reason=HOSTILE,
    )


def log() -> list[e.Recorded]:
    """Two events, one with a reason from outside."""
    events: list[e.AnyEvent] = [
        e.NodeJoined(node=NodeId("n0"), incarnation=Incarnation(1), host="h"),
        e.FaultInjected(node=NodeId("n0"), kind="kill", detail=HOSTILE),
        e.WarmupPassed(
            node=NodeId("n0"),
            incarnation=Incarnation(1),
            job=JobId(HOSTILE),
            role="only",  # type: ignore[arg-type]
            digest="",
            first_step_ms=1,
            steady_step_ms=1,
            took_ms=1,
        ),
    ]
    return [
        e.Recorded(position=Position(n + 1), at_ms=1000 + n, writer="w", event=event)
        for n, event in enumerate(events)
    ]


def test_what_nodes_say_is_escaped(tmp_path: Path) -> None:
    """A node's name, a reason or a claim with markup in it is shown, never run."""
    folder = RunFolder.made(tmp_path / "run")
    outcome = Outcome(
        incidents=[incident()],
        baseline=BaselineOutcome(restart_ms=6500, step_ms=50, repeated_steps=7),
        claims=[ClaimOutcome(claim=HOSTILE, holds=False, detail=HOSTILE)],
    )
    steps = [JobStep(step=n, at_ms=1000 + n, gap_ms=1, loss=3 - n / 100) for n in range(30)]
    write_report(folder, outcome, log(), steps)
    html = page_of(folder)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<svg") == 3


def test_a_demo_that_was_stopped_at_once_has_a_report_too(tmp_path: Path) -> None:
    """No log, no steps, no incident: nothing is shown that is not known."""
    folder = RunFolder.made(tmp_path / "run")
    write_report(folder, Outcome(error="interrupted by SIGINT"), [], [])
    html = page_of(folder)
    assert "interrupted by SIGINT" in html
    assert "<svg" not in html


def test_light_and_dark_are_both_drawn_for(tmp_path: Path) -> None:
    """Every colour of the light page has its counterpart in the dark one."""
    folder = RunFolder.made(tmp_path / "run")
    write_report(folder, Outcome(), [], [])
    light, dark = page_of(folder).split("prefers-color-scheme: dark", 1)
    names = set(re.findall(r"(--[a-z]+):", light)) - {"--other"}
    assert names <= set(re.findall(r"(--[a-z]+):", dark))
    assert len(names) > 10

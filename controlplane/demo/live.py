"""The demo as it happens: a panel that moves on a terminal, plain lines anywhere else.

What belongs here: drawing what a chronicle knows, on stderr. It asks nothing of the fleet.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from controlplane.demo.chronicle import Chronicle
from controlplane.lines import words_of
from statemachine import events as e
from statemachine.lifecycle import NodeState, Phase
from statemachine.state import Job
from statemachine.vitals import STEP_MS

SHOWN: Final = (
    e.NodeLost,
    e.VerdictIssued,
    e.TransitionPlanned,
    e.TransitionCommitted,
    e.TransitionFinished,
    e.TransitionAborted,
    e.TransitionRefused,
    e.WarmupPassed,
    e.WarmupFailed,
    e.NodeQuarantined,
    e.NodeRetired,
    e.SweepRequested,
    e.SweepFinished,
    e.CertificateIssued,
    e.JobFinished,
    e.UnknownEvent,
)
"""Events that are worth a line while one watches; the log has all."""

COLOURS: Final = {
    NodeState.ACTIVE: "green",
    NodeState.STANDBY: "cyan",
    NodeState.WARMING: "blue",
    NodeState.QUARANTINED: "yellow",
    NodeState.SWEEPING: "yellow",
    NodeState.RETIRED: "red",
    NodeState.LOST: "red",
}

_TERMINAL_S: Final = 0.2
_PLAIN_S: Final = 5.0
_PLAIN_COLUMNS: Final = 180
_TABLE_COLUMNS: Final = 120
_BAR_COLUMNS: Final = 32


class Screen:
    """Where a demo shows itself. Lines carry the seconds since it began."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        if not self.console.is_terminal:
            self.console.width = _TABLE_COLUMNS
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        """Say one line."""
        self._line(f"[bold]{escape(text)}[/bold]")

    def hear(self, recorded: e.Recorded) -> None:
        """Say an event of the log, if it is worth a line."""
        if isinstance(recorded.event, SHOWN):
            name = type(recorded.event).__name__
            words = escape(words_of(recorded.event))
            self._line(f"[dim]{recorded.position:>5}[/dim] {name} [dim]{words}[/dim]")

    def _line(self, markup: str) -> None:
        text = Text.from_markup(f"[dim]{self.elapsed_s:6.1f} s[/dim]  {markup}")
        columns = self.console.width if self.console.is_terminal else _PLAIN_COLUMNS
        text.truncate(columns, overflow="ellipsis")
        if self.console.is_terminal:
            self.console.print(text)
        else:
            print(text.plain, file=self.console.file, flush=True)

    @asynccontextmanager
    async def showing(self, chronicle: Chronicle, title: str, steps: int) -> AsyncIterator[None]:
        """Show a run for as long as the block runs."""
        view = _View(chronicle, title, steps)
        async with anyio.create_task_group() as group:
            if self.console.is_terminal:
                group.start_soon(self._move, view)
            else:
                group.start_soon(self._repeat, view)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    async def _move(self, view: _View) -> None:
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(view.panel(), refresh=True)
                await anyio.sleep(_TERMINAL_S)

    async def _repeat(self, view: _View) -> None:
        while True:
            await anyio.sleep(_PLAIN_S)
            self._line(escape(view.line()))


class _View:
    """One run in words and in a panel."""

    def __init__(self, chronicle: Chronicle, title: str, steps: int) -> None:
        self._chronicle = chronicle
        self._title = title
        self._steps = steps

    def line(self) -> str:
        """Everything in one plain line."""
        parts = [f"{self._title}: {self._progress()}", self._nodes().plain]
        transition = self._transition()
        return " | ".join([*parts, *([transition] if transition else [])])

    def panel(self) -> Group:
        """Everything, drawn."""
        done = max(0, self._chronicle.step + 1)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._steps, completed=done, width=_BAR_COLUMNS)
        head.add_row(Text(self._title, style="bold"), bar, self._progress())
        transition = self._transition() or "no transition pending"
        return Group(head, self._nodes(), Text(transition, style="magenta"))

    def _progress(self) -> str:
        chronicle = self._chronicle
        done = max(0, chronicle.step + 1)
        newest = [v for v in chronicle.vitals.values() if v.last_step == chronicle.step]
        losses = [v.loss for v in newest if v.loss is not None]
        steps_ms = [m.p50 for v in newest if (m := v.measured(STEP_MS))]
        job = chronicle.job
        parts = [f"step {done}/{self._steps}"]
        if losses:
            parts.append(f"loss {sum(losses) / len(losses):.3f}")
        if steps_ms:
            parts.append(f"{max(steps_ms):.0f} ms/step")
        if job is not None:
            parts.append(f"epoch {job.epoch}")
        return "  ".join(parts)

    def _nodes(self) -> Text:
        nodes = self._chronicle.state.nodes
        by_state: dict[NodeState, list[str]] = {}
        for name in sorted(nodes):
            by_state.setdefault(nodes[name].state, []).append(name)
        text = Text("")
        for state in NodeState:
            if state in by_state:
                words = f"{state} {' '.join(by_state[state])}"
                text.append(("  " if text else "") + words, style=COLOURS.get(state, ""))
        return text or Text("no node has joined yet")

    def _transition(self) -> str:
        job = self._chronicle.job
        if job is None or job.pending is None:
            return ""
        return _pending_words(job, time.time() * 1000)


def _pending_words(job: Job, now_ms: float) -> str:
    pending = job.pending
    assert pending is not None
    preparing = pending.phase is Phase.PREPARING
    since_ms = pending.planned_at_ms if preparing else pending.committed_at_ms
    commit = pending.committed
    due_ms = pending.plan.deadline_at_ms
    if commit is not None and not preparing:
        due_ms = commit.deadline_at_ms
    waiting = ", ".join(pending.awaited()) or "nobody"
    plan = pending.plan
    return (
        f"transition {plan.transition} ({plan.motive}) {pending.phase}: waiting for {waiting}, "
        f"{max(0.0, now_ms - since_ms) / 1000:.1f} s of {(due_ms - since_ms) / 1000:.0f} s"
    )

"""The ground on which scripts play: one fleet in the pure core, on virtual time.

What belongs here: the clock, the log, and finding the method of a command. A command states facts,
as nodes and operators would; then the core decides until it comes to rest, and every event, stated
or decided, goes through the checked fold. What was decided is the answer, one line each; jobs that
changed follow.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from statemachine import events as e
from statemachine.decide import settle
from statemachine.ids import (
    Incarnation,
    JobId,
    NodeId,
    Position,
)
from statemachine.invariants import CheckedFold
from statemachine.notation import line_of_event, lines_of_job
from statemachine.state import FleetState, Job, Transition

BEGIN_MS = 1_000_000
VERDICT_S = 600

Options = dict[str, str]


class Ground:
    """A fleet, its clock, and what was answered last."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.log: list[e.Recorded] = []
        self._fold = CheckedFold()
        self._lines: list[str] = []
        self._shown: list[str] = []

    @property
    def state(self) -> FleetState:
        """The folded state."""
        return self._fold.state

    def perform(self, commands: list[str]) -> list[str]:
        """Perform commands; return what was decided, then the jobs if they changed."""
        self._lines = []
        for line in commands:
            self._perform(line)
        jobs = self.state.jobs
        shown = [line for name in sorted(jobs) for line in lines_of_job(jobs[name])]
        if shown != self._shown:
            self._lines += shown
        self._shown = shown
        return self._lines or ["nothing"]

    def _perform(self, line: str) -> None:
        words = shlex.split(line, comments=True, posix=words_are_plain(line))
        names = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        handler: Callable[[list[str], Options], None] = getattr(self, f"do_{words[0]}")
        handler(names, options)

    # --- the log ------------------------------------------------------------------------------

    def state_facts(self, *events: e.AnyEvent, writer: str = "script") -> None:
        """Enter facts, then let the core decide and enter what it decided."""
        for event in events:
            self._enter(event, writer)
        self.settle()

    def settle(self) -> None:
        """Let the core decide until it comes to rest."""
        settled = settle(self.state, self.now_ms, "core")
        for recorded in settled.recorded:
            self._take(recorded)
            self._lines.append(line_of_event(recorded.event))
        assert self.state == settled.state, "what was decided folds to another state"
        assert settle(self.state, self.now_ms, "core").recorded == (), "it did not come to rest"

    def _enter(self, event: e.AnyEvent, writer: str) -> None:
        position = Position(self.state.position + 1)
        self._take(e.Recorded(position=position, at_ms=self.now_ms, writer=writer, event=event))

    def _take(self, recorded: e.Recorded) -> None:
        self._fold.take(recorded)
        self.log.append(recorded)

    # --- what names mean ----------------------------------------------------------------------

    def life(self, name: str) -> tuple[NodeId, Incarnation]:
        """``n1`` is its present life, ``n1.2`` the second one."""
        node, _, number = name.partition(".")
        known = self.state.nodes.get(NodeId(node))
        present = known.incarnation if known is not None else 0
        return NodeId(node), Incarnation(int(number) if number else present)

    def job(self, options: Options) -> Job:
        """The job that is meant: the only one, unless one is named."""
        return self.state.jobs[JobId(options.get("job", min(self.state.jobs)))]

    def pending(self, options: Options) -> Transition:
        """What is pending in the job that is meant."""
        pending = self.job(options).pending
        assert pending is not None, "nothing is pending"
        return pending


def words_are_plain(line: str) -> bool:
    """Whether quotes in a line are the script's own, not those of an event in JSON."""
    return not line.startswith("raw ")

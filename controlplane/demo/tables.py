"""The end of a demo in tables: what each incident cost, beside a restart, and what was proved.

What belongs here: columns and words, from an `Outcome` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from controlplane.demo.outcome import IncidentOutcome, Outcome, PaceOutcome
from statemachine.incidents import PHASES

PHASE_WORDS: Final[Mapping[str, str]] = {
    "detect": "fault to first evidence or verdict in the log",
    "decide": "evidence to plan",
    "prepare": "plan to the last acknowledgement",
    "quiesce": "of that: until the last survivor was parked",
    "commit": "last acknowledgement to commit",
    "transfer": "state to the joiner",
    "switch": "links exchanged",
    "first_step": "the first step at full size",
    "parts": "of prepare: until the joiner had put its slot's role in force",
    "load": "a checkpoint was read",
}


def milliseconds(value: float | None) -> str:
    """A duration for people: ms below ten seconds, seconds above."""
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def title_of(incident: IncidentOutcome) -> str:
    """An incident in a few words."""
    return f"{incident.kind} {incident.node} -> {incident.replacement}"


def ratio(outcome: Outcome, incident: IncidentOutcome) -> str:
    """How often an incident's downtime fits into a restart."""
    baseline = outcome.baseline
    if baseline is None or not incident.downtime_ms:
        return "-"
    return f"{baseline.restart_ms / incident.downtime_ms:.0f}x less"


def show(outcome: Outcome, console: Console) -> None:
    """Print the tables."""
    if outcome.incidents:
        console.print(_incidents(outcome))
        console.print(
            "[dim]One machine, one clock: detect and downtime compare clocks of different "
            "processes and are exact only because of that.\n"
            "downtime: kill: until the first step at full size; grey: pause beyond an ordinary "
            "step.[/dim]"
        )
    for incident in outcome.incidents:
        if incident.pace is not None:
            console.print(escape(pace_words(incident.node, incident.pace)))
    if outcome.claims:
        console.print(_proof(outcome))
        console.print(_ordinary(outcome))


def _incidents(outcome: Outcome) -> Table:
    table = Table(title="What each incident cost", title_justify="left")
    table.add_column("phase")
    for incident in outcome.incidents:
        table.add_column(escape(title_of(incident)), justify="right")
    table.add_column("what is measured", style="dim")
    names = list(dict.fromkeys([*PHASES, *_more_phases(outcome)]))
    for name in names:
        values = [milliseconds(incident.phases.get(name)) for incident in outcome.incidents]
        table.add_row(name.replace("_", " "), *values, PHASE_WORDS.get(name, ""))
    table.add_section()
    lost = [str(incident.steps_lost) for incident in outcome.incidents]
    table.add_row("steps lost", *lost, "begun and thrown away")
    down = [milliseconds(incident.downtime_ms) for incident in outcome.incidents]
    table.add_row("[bold]downtime[/bold]", *[f"[bold]{each}[/bold]" for each in down], "see below")
    if outcome.baseline is not None:
        restart = milliseconds(outcome.baseline.restart_ms)
        cells = [restart for _ in outcome.incidents]
        table.add_row("torchrun restart", *cells, "same model, same machine, same run of the demo")
        table.add_row("", *[ratio(outcome, each) for each in outcome.incidents], "")
    return table


def pace_words(node: str, found: PaceOutcome) -> str:
    """Steps before, while and after a node was grey, beside what Guard published of itself."""
    said = [
        f"{name} {milliseconds(part.mean_ms)} +-{part.variation:.0%}"
        for name, part in (("before", found.before), ("grey", found.during), ("after", found.after))
    ]
    return (
        f"steps around {node}: {', '.join(said)}; {found.slowed:.2f}x slower and "
        f"{found.calmed:.1f}x as uneven while it was grey "
        f"(Guard, published: {found.guard_slowed:g}x, {found.guard_calmed:g}x); of Guard's effect "
        f"{found.of_guard:.0%} in the mean{_beside_peers(found)}"
    )


def _beside_peers(found: PaceOutcome) -> str:
    """Own work beside the peers', where it is known at all three times."""
    shares = (found.of_peers_before, found.of_peers_grey, found.of_peers_after)
    known = [f"{share:.2f}x" for share in shares if share is not None]
    if len(known) < len(shares):
        return ""
    return f"; its slot's work beside its peers': {', '.join(known)}"


def _more_phases(outcome: Outcome) -> list[str]:
    return [name for incident in outcome.incidents for name in incident.phases]


def _proof(outcome: Outcome) -> Table:
    table = Table(title="What had to hold", title_justify="left", show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(style="dim", overflow="fold")
    for claim in outcome.claims:
        mark = "[green]yes[/green]" if claim.holds else "[red]NO[/red]"
        table.add_row(mark, escape(claim.claim), escape(claim.detail))
    return table


def _ordinary(outcome: Outcome) -> str:
    parts = [f"ordinary step: {milliseconds(outcome.step_ms)} in this run"]
    if outcome.uninterrupted_step_ms is not None:
        parts.append(f"{milliseconds(outcome.uninterrupted_step_ms)} uninterrupted")
    if outcome.baseline is not None:
        parts.append(f"{milliseconds(outcome.baseline.step_ms)} with torchrun, gloo and DDP")
    return ", ".join(parts)

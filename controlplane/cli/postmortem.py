"""`changeover replay | at | diff | timeline | trace | report`: read an exported log, anywhere.

No store is asked and no setting is needed. What is wrong with a log is said first, on stderr; then
as much as can be trusted; and the exit code is 1.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from controlplane.cli.options import CONTEXT, examples, json_option
from controlplane.cli.tables import span, table, text_of

if TYPE_CHECKING:
    from controlplane.postmortem.logfile import LogFile
    from controlplane.postmortem.telling import Told
    from statemachine.state import FleetState

F = TypeVar("F", bound=Callable[..., Any])

WORTH_AN_INDEX_BYTES = 8 << 20
"""Logs below this are folded from their beginning: that takes less than a second."""


def reading_much() -> None:
    """Have the interpreter look for garbage less often: what a log leaves behind has no cycles, and
    to look for some costs a fifth of the time of a long one.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


def log_options(command: F) -> F:
    """Give a command its LOG and what goes with it."""
    command = click.argument(
        "log", metavar="LOG", type=click.Path(exists=True, path_type=Path, readable=True)
    )(command)
    command = click.option(
        "--fleet", default="", metavar="NAME", help="fleet of an archive folder"
    )(command)
    return click.option(
        "--beyond", is_flag=True, help="read on behind damage; what follows may be wrong"
    )(command)


def opened_log(log: Path, fleet: str, *, beyond: bool) -> LogFile:
    """The log to read."""
    reading_much()
    from controlplane.config import load_settings
    from controlplane.postmortem.logfile import LogFile

    if log.is_dir() and not fleet:
        fleet = load_settings({}).fleet
    return LogFile(log, beyond=beyond, fleet=fleet)


def say_first(log: LogFile) -> None:
    """Say what is wrong with a log, before anything that was read from it."""
    for line in log.notes():
        print(text_of([f"changeover: {line}"]), file=sys.stderr)
    sys.stderr.flush()


def end(log: LogFile) -> None:
    """Exit with 1 if the log was damaged."""
    sys.stdout.flush()
    if not log.is_whole:
        raise SystemExit(1)


def told_of(log: LogFile) -> Told:
    """What a log tells, read under a line of progress; what is wrong with it is said first."""
    from controlplane.cli.progress import Progress
    from controlplane.postmortem.telling import tell

    progress = Progress("events read:")
    told = tell(log, progress=progress.tell)
    progress.done()
    say_first(log)
    return told


def print_json(values: Any) -> None:
    """One JSON object."""
    print(msgspec.json.encode(values).decode())


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover replay runs/demo-1/events.jsonl", "changeover replay incident.jsonl --json"
    ),
)
@log_options
@json_option
def replay(log: Path, *, fleet: str, beyond: bool, as_json: bool) -> None:
    """Fold LOG from its beginning and say in short what happened."""
    from controlplane.postmortem.telling import replay_values

    file = opened_log(log, fleet, beyond=beyond)
    told = told_of(file)
    values = replay_values(told, file)
    if as_json:
        print_json(values)
    else:
        print(text_of(lay_out_replay(values)))
    end(file)


def lay_out_replay(values: dict[str, Any]) -> list[str]:
    """The lines of `replay`."""
    from controlplane.lines import clock

    took_s = (values["last_at_ms"] - values["first_at_ms"]) / 1000
    nodes = ", ".join(f"{count} {name}" for name, count in values["nodes_by_state"].items())
    head = f"{values['entries']} events to position {values['position']}"
    when = f"from {clock(values['first_at_ms'])} over {span(took_s)}"
    lines = [
        f"{head}, {when}; term {values['term']}",
        f"nodes: {nodes or 'none ever joined'}",
    ]
    lines += [
        f"job {job['job']}: {job['slots']} slots, epoch {job['epoch']}"
        + (", finished" if job["finished"] else "")
        for job in values["jobs"]
    ]
    ettr = "" if values["ettr"] is None else f"; {100 * values['ettr']:.2f} % of the time useful"
    lines.append(
        f"incidents: {values['incidents']}, {values['downtime_ms'] / 1000:.3f} s down{ettr}"
    )
    most = sorted(values["kinds"].items(), key=lambda item: (-item[1], item[0]))
    lines += ["", *table(("events", "kind"), [(count, kind) for kind, count in most])]
    return lines


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover timeline runs/demo-1/events.jsonl",
        "changeover timeline incident.jsonl --json | jq .accounting_s",
    ),
)
@log_options
@json_option
@click.option("--chains", is_flag=True, help="also the events that led from cause to effect")
def timeline(log: Path, *, fleet: str, beyond: bool, as_json: bool, chains: bool) -> None:
    """Tell the incidents of LOG with their phases, and where the time went.

    The accounting sums to wall time: useful, repeated, waiting, transition, restart. What standbys
    idled is told apart.
    """
    from controlplane.postmortem.telling import timeline_values

    file = opened_log(log, fleet, beyond=beyond)
    told = told_of(file)
    values = timeline_values(told, file)
    if as_json:
        print_json(values)
    else:
        print(text_of(lay_out_timeline(values) + (lay_out_chains(values) if chains else [])))
    end(file)


def lay_out_chains(values: dict[str, Any]) -> list[str]:
    """The lines of `timeline --chains`."""
    from controlplane.lines import clock

    lines = []
    for each in values["incidents"]:
        lines += ["", f"{each['kind']} of {each['node']}"]
        lines += [
            f"  {link['position']:>6} {clock(link['at_ms'])} {link['type']:<20} {link['words']}"
            for link in each["chain"]
        ]
    return lines


def lay_out_timeline(values: dict[str, Any]) -> list[str]:
    """The lines of `timeline`."""
    from controlplane.lines import clock
    from controlplane.postmortem.telling import PARTS

    head = ("at", "job", "what", "node", "slot", "by", "epoch", "down_s", "lost", "phases (ms)")
    rows = [
        (
            clock(each["began_at_ms"]),
            each["job"],
            each["kind"] + (f" ({each['fault']})" if each["fault"] else ""),
            each["node"],
            each["slot"],
            each["replacement"],
            each["epoch"] or None,
            None if each["downtime_ms"] is None else f"{each['downtime_ms'] / 1000:.3f}",
            each["steps_lost"],
            " ".join(f"{name} {ms:.0f}" for name, ms in each["phases_ms"].items()),
        )
        for each in values["incidents"]
    ]
    lines = table(head, rows) if rows else ["no incident"]
    spent = values["accounting_s"]
    wall = spent["wall"] or 1.0
    lines += ["", f"{'wall':<12}{spent['wall']:>12.3f} s"]
    lines += [
        f"{name:<12}{spent[name]:>12.3f} s {100 * spent[name] / wall:>7.2f} %" for name in PARTS
    ]
    lines.append(f"standbys idled {values['idle_standby_node_s']:.1f} node-seconds beside that")
    return lines


# --- one moment -------------------------------------------------------------------------------


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover at incident.jsonl 17",
        "changeover at incident.jsonl 03:12:07",
        "changeover at incident.jsonl +93.5s --json | jq .jobs",
    ),
)
@log_options
@json_option
@click.argument("moment", metavar="TIME|POSITION")
def at(log: Path, *, fleet: str, beyond: bool, as_json: bool, moment: str) -> None:
    """Show the fleet as LOG says it was at a moment.

    A long log is indexed the first time (LOG.index, beside it), so that the next question is
    answered at once.
    """
    from controlplane.cli.status import lay_out_status
    from controlplane.picture import Picture, as_values

    file = opened_log(log, fleet, beyond=beyond)
    (state,) = states_at(file, (moment,))
    say_first(file)
    leader = (state.controller, state.term) if state.term else None
    picture = Picture(fleet=fleet or log.name, state=state, leader=leader, vitals={})
    values = as_values(picture, state.at_ms) | {"at_ms": state.at_ms}
    if as_json:
        print_json(file.as_values() | values)
    else:
        print(text_of(lay_out_status(values)))
    end(file)


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover diff incident.jsonl 17 42", "changeover diff incident.jsonl 03:12 03:15 --json"
    ),
)
@log_options
@json_option
@click.argument("one", metavar="FROM")
@click.argument("other", metavar="TO")
def diff(log: Path, *, fleet: str, beyond: bool, as_json: bool, one: str, other: str) -> None:
    """Show what differs between two moments of LOG: nodes, jobs, sweeps, policy."""
    from statemachine.difference import diff as difference
    from statemachine.difference import lines_of_difference

    file = opened_log(log, fleet, beyond=beyond)
    before, after = states_at(file, (one, other))
    say_first(file)
    found = difference(before, after)
    if as_json:
        print_json(file.as_values() | msgspec.to_builtins(found))
    else:
        print(f"position {before.position} -> {after.position}")
        print(text_of(lines_of_difference(found) or ["nothing differs"]))
    end(file)


def states_at(file: LogFile, texts: tuple[str, ...]) -> list[FleetState]:
    """The states at some moments, through an index where that pays."""
    from controlplane.cli.progress import Progress, counted
    from controlplane.postmortem.checking import checked
    from controlplane.postmortem.index import SnapshotUnusable, make_index, open_index
    from controlplane.postmortem.logfile import LogFile
    from controlplane.postmortem.moments import moment_of
    from statemachine.errors import NotInHistory
    from statemachine.history import History

    plain = file.path.is_file()
    if plain and file.path.stat().st_size >= WORTH_AN_INDEX_BYTES:
        index = open_index(file.path)
        if index is None:
            progress = Progress("events indexed:")
            index = make_index(LogFile(file.path), progress=progress.tell)
            progress.done()
        if index is not None:
            try:
                return [index.state_at(moment_of(text, *index.span)) for text in texts]
            except SnapshotUnusable as error:
                print(f"changeover: {file.path}.index: {error}: not used", file=sys.stderr)
    history = History(counted(checked(file), "events read:"), keep_every=64)
    first_ms = next(iter(history.entries()), None)
    span_ms = (first_ms.at_ms if first_ms is not None else 0, history.head.at_ms)
    found = []
    try:
        for text in texts:
            moment = moment_of(text, *span_ms)
            found.append(history.state_at(moment.position, at_ms=moment.at_ms))
    except NotInHistory:
        say_first(file)  # it may be damage that keeps us from there
        raise
    return found


# --- files ------------------------------------------------------------------------------------


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover trace incident.jsonl incident.trace.json",
        "changeover trace incident.jsonl - | gzip > incident.trace.json.gz",
    ),
)
@log_options
@click.option("--force", is_flag=True, help="overwrite an existing file")
@click.argument("target", metavar="FILE|-")
def trace(log: Path, *, fleet: str, beyond: bool, force: bool, target: str) -> None:
    """Write LOG as a trace for ui.perfetto.dev or chrome://tracing.

    A track per job and per node, with arrows from cause to effect.
    """
    from controlplane.exporting import appearing
    from controlplane.postmortem.trace import write_trace

    file = opened_log(log, fleet, beyond=beyond)
    if target == "-":
        write_trace(file, sys.stdout.buffer)
        say_first(file)
        end(file)
        return
    with appearing(Path(target), overwrite=force) as sink:
        count = write_trace(file, sink)
    say_first(file)
    print(f"{count} records in {target}: open it in ui.perfetto.dev or chrome://tracing")
    end(file)


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover report incident.jsonl incident.html",
        "changeover report runs/demo-1/events.jsonl demo.html --vitals runs/demo-1/vitals.jsonl",
    ),
)
@log_options
@click.option("--force", is_flag=True, help="overwrite an existing file")
@click.option(
    "--vitals",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="vitals.jsonl of a run folder, for step times and loss (default: beside LOG)",
)
@click.argument("target", metavar="FILE")
def report(
    log: Path, *, fleet: str, beyond: bool, force: bool, vitals: Path | None, target: str
) -> None:
    """Write LOG as one HTML page that needs nothing beside it."""
    from controlplane.exporting import appearing
    from controlplane.postmortem.report import render_report

    file = opened_log(log, fleet, beyond=beyond)
    beside = log.with_name("vitals.jsonl")
    if vitals is None and log.is_file() and beside.is_file():
        vitals = beside
    page = render_report(file, vitals)
    say_first(file)
    with appearing(Path(target), overwrite=force) as sink:
        sink.write(page.encode())
    print(f"{target}: open it in any browser")
    end(file)

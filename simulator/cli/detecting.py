"""The verb that runs the detector on recorded vitals: detect."""

from pathlib import Path

import click
from msgspec import to_builtins

from simulator import recordings
from simulator.cli.logs import read_policy
from simulator.cli.showing import JSON, show_json, show_table
from simulator.detecting import Detected
from simulator.detecting import detect as run_detect
from statemachine.events import VerdictIssued


@click.command(
    epilog="Example: simctl detect runs/vitals.parquet --policy strict.toml  "
    "(a controller keeps lines in the file that CHANGEOVER_VITALS_HISTORY names; "
    "simctl detect runs/vitals.jsonl --parquet runs/vitals.parquet makes a table of them)"
)
@click.argument("vitals", type=click.Path(path_type=Path))
@click.option("--policy", type=click.Path(path_type=Path), help="Knobs, as TOML; else as recorded.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the recording there as well, a row per window; needs changeover[parquet].",
)
@JSON
def detect(vitals: Path, policy: Path | None, parquet: Path | None, *, as_json: bool) -> None:
    """Judge recorded VITALS again, lines or a Parquet file: the same verdicts, or those of another
    policy.
    """
    if parquet is not None:
        recordings.write(recordings.read(vitals), parquet)
    found = run_detect(vitals, read_policy(policy).detector if policy is not None else None)
    if as_json:
        show_json(to_builtins(found))
    else:
        _show(found)


def _show(found: Detected) -> None:
    began_ms = found.said[0].at_ms if found.said else 0
    rows = []
    for said in found.said:
        judged = said.judgement
        verdict = judged.verdict if isinstance(judged, VerdictIssued) else "withdrawn"
        rows.append((f"{(said.at_ms - began_ms) / 1000:.0f}", judged.node, verdict, judged.reason))
    title = f"{found.windows} windows of {found.nodes} nodes, {len(rows)} judgements"
    show_table(title, ("after s", "node", "verdict", "reason"), rows)
    for note in found.notes[:20]:
        click.echo(f"note: {note}")
    if len(found.notes) > 20:
        click.echo(f"note: and {len(found.notes) - 20} more; --json has them all")

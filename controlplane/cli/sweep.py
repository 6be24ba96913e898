"""`changeover sweep`: measure nodes beside the run, one, some, or the whole fleet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from controlplane.cli.acts import act_options, perform
from controlplane.cli.options import CONTEXT, examples
from controlplane.cli.tables import table, text_of
from controlplane.config import Settings
from statemachine import events as e
from statemachine.ids import NodeId

if TYPE_CHECKING:
    from controlplane.health.sweeping import SweepReport


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover sweep n7",
        "changeover sweep n7 n8 --wait",
        "changeover sweep --all --html sweep.html",
    ),
)
@act_options
@click.option("--all", "everybody", is_flag=True, help="every node that holds no slot")
@click.option("--wait", is_flag=True, help="wait for the outcome, as several nodes and --all do")
@click.option(
    "--deadline-s", type=click.FloatRange(min=1), default=600.0, help="how long to wait, s"
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="write the report as a page"
)
@click.argument("nodes", nargs=-1, metavar="NODE...")
def sweep(
    settings: Settings,
    *,
    nodes: tuple[str, ...],
    everybody: bool,
    wait: bool,
    deadline_s: float,
    html: Path | None,
    by: str,
    comment: str,
    as_json: bool,
    **act: Any,
) -> None:
    """Measure NODEs, which must hold no slot: alone, then with a known-good partner.

    Exit code 1 if one of those waited for did not pass.
    """
    if bool(nodes) is everybody:
        raise click.UsageError("name nodes, or ask for --all")
    if len(nodes) == 1 and not (wait or html):
        event = e.SweepAsked(node=NodeId(nodes[0]), by=by, comment=comment)
        perform(settings, by, event, f"sweep of {nodes[0]}", as_json=as_json, **act)
        return
    if act.get("dry_run"):
        raise click.UsageError("--dry-run tells of one node; name it, without --wait and --html")
    from controlplane.health.sweeping import sweep_nodes
    from controlplane.server import opened
    from controlplane.term import unix_ms

    def progress(report: SweepReport) -> None:
        if sys.stderr.isatty():
            over = sum(bool(swept.outcome) for swept in report.nodes)
            print(f"\r{over} of {len(report.nodes)} nodes", end="", file=sys.stderr, flush=True)

    async def run() -> SweepReport:
        async with opened(settings) as log:
            return await sweep_nodes(
                log,
                None if everybody else nodes,
                by,
                comment,
                clock_ms=unix_ms,
                deadline_s=deadline_s,
                heard=progress,
            )

    report = anyio.run(run)
    if html is not None:
        html.write_text(report.as_html(), "utf-8")
    if as_json:
        print(json.dumps(report.as_values()))
    else:
        _show(report)
    passed = report.count(e.SweepOutcome.PASSED)
    raise SystemExit(0 if report.nodes and passed == len(report.nodes) else 1)


def _show(report: SweepReport) -> None:
    rows = [
        (
            str(swept.node),
            swept.outcome or "not over",
            swept.partner + (f", {swept.third}" if swept.third else ""),
            f"{swept.took_s:.1f}",
            swept.reason,
        )
        for swept in report.nodes
    ]
    print("\n".join(table(("node", "outcome", "partner", "s", "why"), rows)))
    for node, why in report.left_out.items():
        print(text_of([f"{node} was not measured: {why}"]))
    print(
        f"{len(report.nodes)} nodes in {report.took_s:.1f} s: {report.count('passed')} passed, "
        f"{report.count('failed')} failed, {report.count('inconclusive')} inconclusive"
    )

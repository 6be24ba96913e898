"""`changeover status` and `changeover nodes`: the fleet now, once or as it changes."""

from collections.abc import Callable
from typing import Any

import anyio
import click
import msgspec

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import span, table, text_of
from controlplane.cli.watching import PERIOD_S, Screen, watch_option
from controlplane.config import Settings

Layout = Callable[[dict[str, Any]], list[str]]


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover status",
        "changeover status --watch",
        "changeover status --json | jq '.jobs[].pending'",
    ),
)
@fleet_options()
@json_option
@watch_option
def status(settings: Settings, *, as_json: bool, watch: bool) -> None:
    """Show the fleet: who leads, jobs with slots and loss, what is pending and who is awaited."""
    _show(settings, lay_out_status, lambda values: values, as_json=as_json, watch=watch)


@click.command(
    context_settings=CONTEXT,
    epilog=examples("changeover nodes", "changeover nodes --json | jq '.[] | select(.slot)'"),
)
@fleet_options()
@json_option
@watch_option
def nodes(settings: Settings, *, as_json: bool, watch: bool) -> None:
    """Show every node that ever joined: state, slot, warm-up, verdict, last step."""
    _show(settings, lay_out_nodes, lambda values: values["nodes"], as_json=as_json, watch=watch)


def _show(
    settings: Settings,
    lay_out: Layout,
    pick: Callable[[dict[str, Any]], Any],
    *,
    as_json: bool,
    watch: bool,
) -> None:
    from controlplane.picture import as_values, look, watching
    from controlplane.server import opened
    from controlplane.term import unix_ms

    async def run() -> None:
        async with opened(settings) as log:
            screen = Screen(as_json=as_json)
            if not watch:
                values = as_values(await look(log), unix_ms())
                screen.show(_json(pick(values)) if as_json else text_of(lay_out(values)))
                return
            async with watching(log) as watcher:
                while True:
                    values = as_values(watcher.picture, unix_ms())
                    screen.show(_json(pick(values)) if as_json else text_of(lay_out(values)))
                    with anyio.move_on_after(1.0):  # durations grow though nothing happens
                        await watcher.wait()
                    await anyio.sleep(PERIOD_S)

    anyio.run(run)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- layout -----------------------------------------------------------------------------------


def lay_out_status(values: dict[str, Any]) -> list[str]:
    """The lines of `status`."""
    leader = f"led by {values['leader']} (term {values['term']})" if values["leader"] else NO_LEADER
    lines = [f"fleet {values['fleet']}, position {values['position']}, {leader}"]
    if values["paused_by"]:
        lines.append(f"PAUSED by {values['paused_by']}: verdicts are not acted upon")
    if values["unknown_events"]:
        lines.append(f"{values['unknown_events']} events of a newer release: upgrade this one")
    counts = ", ".join(f"{count} {name}" for name, count in values["nodes_by_state"].items())
    lines.append(f"nodes: {counts or 'none ever joined'}")
    for job in values["jobs"]:
        lines += ["", *_job_lines(job)]
    if values["verdicts"]:
        lines += ["", "verdicts"]
        lines += [
            f"  {v['node']}/{v['incarnation']} {v['verdict']}: {v['reason']}"
            + (f" (expires in {span(v['expires_s'])})" if v["expires_s"] is not None else "")
            for v in values["verdicts"]
        ]
    if values["sweeps"]:
        lines += ["", "sweeps"]
        lines += [_sweep_line(sweep) for sweep in values["sweeps"]]
    return lines


ANEW = "restart in the policy's on_loss launches it anew: runbook A job is parked and waits"
NO_LEADER = "no controller leads: facts wait in the inbox, training goes on"


def _job_lines(job: dict[str, Any]) -> list[str]:
    axes = " ".join(f"{name}={size}" for name, size in job["axes"].items())
    at = f", step {job['step']}" if job["step"] is not None else ""
    of = f" of {job['steps']}" if job["steps"] and at else ""
    loss = f", loss {job['loss']:.4f}" if job["loss"] is not None else ""
    lines = [f"job {job['job']} ({axes}): {job['state']}, epoch {job['epoch']}{at}{of}{loss}"]
    head = ("slot", "role", "node", "step", "work_ms", "wait_ms", "step_ms", "loss")
    rows = [
        (
            slot["slot"],
            slot["role"],
            f"{slot['node']}/{slot['incarnation']}" if slot["node"] else "vacant",
            *(slot[name] for name in head[3:]),
        )
        for slot in job["slots"]
    ]
    lines += table(head, rows, "  ")
    lines.append(f"  standbys: {', '.join(job['standbys']) or 'none'}")
    if job["stalled"]:
        lines += [f"  stands still: {job['stalled']}", f"    -> {ANEW}"]
    if job["pending"] is not None:
        lines += _pending_lines(job["pending"])
    return lines


def _pending_lines(pending: dict[str, Any]) -> list[str]:
    clock = f"{span(pending['since_s'])} of {span(pending['deadline_s'])}"
    awaited = ", ".join(pending["awaited"])
    wait = f"waiting for {awaited}: {clock}" if awaited else clock
    changes = ", ".join(
        f"slot {c['slot']}: {c['joiner']}" + (f" for {c['leaver']}" if c["leaver"] else "")
        for c in pending["changes"]
    )
    lines = [
        f"  transition {pending['transition']} ({pending['motive']}) is {pending['phase']}, {wait}",
        f"    {changes}; {pending['reason']}",
    ]
    lines += [f"    {who['node']} refused: {who['reason']}" for who in pending["refused"]]
    return lines


def _sweep_line(sweep: dict[str, Any]) -> str:
    partner = f" with {sweep['partner']}" if sweep["partner"] else ""
    rounds = f"done {', '.join(sweep['done']) or 'nothing'}, open {', '.join(sweep['open'])}"
    return f"  {sweep['sweep']}: {sweep['node']}{partner}, {span(sweep['since_s'])}; {rounds}"


def lay_out_nodes(values: dict[str, Any]) -> list[str]:
    """The lines of `nodes`."""
    head = ("node", "state", "since", "job", "slot", "warm", "verdict", "step", "work_ms", "why")
    rows = [
        (
            f"{node['node']}/{node['incarnation']}",
            node["state"],
            span(node["since_s"]),
            node["job"],
            node["slot"],
            node["warm"],
            node["verdict"],
            node["step"],
            node["work_ms"],
            "; ".join(x for x in (node["wanted_out"], node["quarantine"]) if x),
        )
        for node in values["nodes"]
    ]
    return table(head, rows)

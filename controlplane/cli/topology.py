"""`changeover topology`: who is connected to whom, and what a change of epoch touched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import anyio
import click
import msgspec

from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.cli.tables import table, text_of
from controlplane.cli.watching import PERIOD_S, Screen, watch_option
from controlplane.config import Settings
from statemachine.errors import UsageError
from statemachine.ids import JobId, Slot

if TYPE_CHECKING:
    from statemachine.state import FleetState, Job

GROUPS_SHOWN = 24
"""Groups of a kind that are listed; the rest is counted."""


@click.group(context_settings=CONTEXT)
def topology() -> None:
    """Show a job's topology, or what differs between two epochs."""


@topology.command(
    "show",
    context_settings=CONTEXT,
    epilog=examples(
        "changeover topology show",
        "changeover topology show big --groups",
        "changeover topology show --watch",
    ),
)
@fleet_options()
@json_option
@watch_option
@click.option("--groups", is_flag=True, help="list the groups of each kind with their slots")
@click.argument("job", required=False)
def show(settings: Settings, *, as_json: bool, watch: bool, groups: bool, job: str | None) -> None:
    """Show slot by slot who holds it, with coordinates and role."""
    from controlplane.picture import look, watching
    from controlplane.server import opened

    def picture(state: FleetState) -> str:
        found = _chosen(state.jobs, job)
        if as_json:
            return msgspec.json.encode(topology_values(found)).decode()
        return text_of(_topology_lines(found, groups=groups))

    async def run() -> None:
        async with opened(settings) as log:
            screen = Screen(as_json=as_json)
            if not watch:
                screen.show(picture((await look(log)).state))
                return
            async with watching(log) as watcher:
                while True:
                    screen.show(picture(watcher.picture.state))
                    await watcher.wait()
                    await anyio.sleep(PERIOD_S)

    anyio.run(run)


def _topology_lines(job: Job, *, groups: bool) -> list[str]:
    axes = " ".join(f"{name}={size}" for name, size in job.declared.axes.items())
    slots = topology_values(job)["slots"]
    rows = [(s["slot"], s["node"], s["role"], s["coordinates"]) for s in slots]
    lines = [f"job {job.job} ({axes}): epoch {job.epoch}"]
    lines += table(("slot", "node", "role", "coordinates"), rows, "  ")
    return [*lines, *_group_lines(job)] if groups else lines


@topology.command(
    "diff",
    context_settings=CONTEXT,
    epilog=examples("changeover topology diff 41 42", "changeover topology diff 41 42 --job big"),
)
@fleet_options()
@json_option
@click.option("--job", metavar="NAME", help="needed where the fleet has several")
@click.argument("one", type=click.IntRange(0), metavar="EPOCH")
@click.argument("other", type=click.IntRange(0), metavar="EPOCH")
def diff(settings: Settings, *, as_json: bool, job: str | None, one: int, other: int) -> None:
    """Say which slots changed hands between two epochs, and which groups that touched.

    Only these groups were rebuilt; nobody else opened or closed a connection.
    """
    from controlplane.server import opened

    async def run() -> None:
        async with opened(settings) as log:
            holders = await _holders_at(log, job, (one, other))
        values = diff_values(*holders, one, other)
        if as_json:
            print(msgspec.json.encode(values).decode())
            return
        lines = [f"job {values['job']}: epoch {one} -> {other}"]
        rows = [(c["slot"], c["before"], c["after"]) for c in values["changes"]]
        lines += table(("slot", "before", "after"), rows, "  ") if rows else ["  no change"]
        for kind, touched in values["affected_groups"].items():
            shown = " ".join(touched[:GROUPS_SHOWN])
            more = f" and {len(touched) - GROUPS_SHOWN} more" if len(touched) > GROUPS_SHOWN else ""
            of = f"{len(touched)} of {values['groups'][kind]} groups"
            lines.append(f"  {kind}: {of}: {shown}{more}")
        lines.append(f"  slots with a connection to change: {len(values['affected_slots'])}")
        print(text_of(lines))

    anyio.run(run)


def _chosen(jobs: Any, name: str | None) -> Job:
    names = sorted(jobs)
    if name is None and len(names) != 1:
        raise UsageError(
            f"name a job: there are {', '.join(names)}" if names else "no job was declared"
        )
    wanted = name if name is not None else names[0]
    if wanted not in jobs:
        raise UsageError(f"no job {wanted!r}; there are {', '.join(names) or 'none'}")
    found: Job = jobs[wanted]
    return found


def topology_values(job: Job) -> dict[str, Any]:
    """The slots of a job."""
    layout = job.layout
    return {
        "job": job.job,
        "epoch": job.epoch,
        "axes": job.declared.axes,
        "slots": [
            {
                "slot": slot,
                "node": job.holders.get(Slot(slot)) if Slot(slot) not in job.vacant else None,
                "role": layout.role_of(slot),
                "coordinates": _span(layout, slot),
                "ranks": [layout.ranks_of(slot)[0], layout.ranks_of(slot)[-1]],
            }
            for slot in range(layout.slot_count)
        ],
    }


def _span(layout: Any, slot: int) -> str:
    """The coordinates that a slot's ranks cover."""
    ranks = layout.ranks_of(slot)
    first, last = layout.coordinates(ranks[0]), layout.coordinates(ranks[-1])
    return " ".join(
        f"{axis}={at}" if last[axis] == at else f"{axis}={at}-{last[axis]}"
        for axis, at in first.items()
    )


def _group_lines(job: Job) -> Iterable[str]:
    layout = job.layout
    by_kind: dict[str, dict[str, list[int]]] = {}
    for slot in range(layout.slot_count):
        for rank in layout.ranks_of(slot):
            for group in layout.groups_of_rank(rank):
                slots = by_kind.setdefault(group.kind, {}).setdefault(str(group.name), [])
                if not slots or slots[-1] != slot:
                    slots.append(slot)
    for kind, groups in by_kind.items():
        yield f"  {kind}: {len(groups)} groups"
        for name, slots in list(groups.items())[:GROUPS_SHOWN]:
            yield f"    {name}: slots {' '.join(map(str, slots[:GROUPS_SHOWN]))}"


async def _holders_at(log: Any, name: str | None, epochs: tuple[int, int]) -> tuple[Job, Any, Any]:
    """A job, and who held its slots at two epochs."""
    from statemachine.evolve import evolve
    from statemachine.state import FleetState

    state = FleetState()
    seen: dict[str, dict[int, Any]] = {}
    async for recorded in log.read(await log.oldest()):
        state = evolve(state, recorded)
        job = state.jobs.get(getattr(recorded.event, "job", JobId("")))
        if job is not None:
            seen.setdefault(job.job, {})[job.epoch] = job.holders
    chosen = _chosen(state.jobs, name)
    known = seen.get(chosen.job, {})
    for epoch in epochs:
        if epoch not in known:
            have = f"{min(known)} to {max(known)}" if known else "none"
            raise UsageError(f"job {chosen.job}: the log holds no epoch {epoch}; it holds {have}")
    return chosen, known[epochs[0]], known[epochs[1]]


def diff_values(job: Job, before: Any, after: Any, one: int, other: int) -> dict[str, Any]:
    """What differs between two epochs of a job."""
    layout = job.layout
    slots = sorted({*before, *after})
    changed = [slot for slot in slots if before.get(slot) != after.get(slot)]
    touched: dict[str, list[str]] = {}
    for group in layout.affected_groups(changed):
        touched.setdefault(group.kind, []).append(str(group.name))
    return {
        "job": job.job,
        "from_epoch": one,
        "to_epoch": other,
        "changes": [
            {"slot": slot, "before": before.get(slot), "after": after.get(slot)} for slot in changed
        ],
        "affected_groups": touched,
        "affected_slots": list(layout.affected_slots(changed)) if changed else [],
        "groups": {kind: _count(layout, kind) for kind in touched},
    }


def _count(layout: Any, kind: str) -> int:
    """How many groups of a kind there are."""
    if kind not in layout.group_kinds():
        return 1
    axes = dict(layout.axes)
    inside = dict(layout.groups).get(kind, (kind,))
    return int(layout.world_size // _product(axes[axis] for axis in inside))


def _product(sizes: Iterable[int]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found

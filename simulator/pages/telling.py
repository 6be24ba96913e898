"""Pages of what reads a log: replay, whatif, validate. A log happened once: it has no interval."""

from simulator.pages.blocks import Bar, Bars, Block, Page, Stack, Stacks, Table
from simulator.replay import Divergence, Replay, WhatIf
from simulator.validating import Validation, origins
from statemachine.incidents import PHASES, Incident

SHOWN = 60
"""Incidents in a chart; a table has more."""
LISTED = 1000

_PARTS = tuple(name for name in PHASES if name != "quiesce")
"""`quiesce` is a part of `prepare`."""


def page_of_replay(source: str, found: Replay) -> Page:
    """A log in short: the phases of its longest incidents, and all of them."""
    told = sorted(found.incidents, key=_length_ms, reverse=True)
    blocks: list[Block] = []
    if told:
        cut = f" The {SHOWN} longest of {len(told)}." if len(told) > SHOWN else ""
        blocks.append(
            Stacks(
                title="Where the time of each incident went",
                unit="milliseconds",
                parts=_PARTS,
                stacks=tuple(_stack(each) for each in told[:SHOWN]),
                note=f"Each happened once: no interval. What the log lacks is left out.{cut}",
            )
        )
    columns = ("incident", "replaced by", "at, s", "downtime, ms", "steps lost", "reason")
    rows = tuple(_cells(each, found.first_at_ms) for each in found.incidents[:LISTED])
    left = len(found.incidents) - len(rows)
    note = f"and {left} more; --json has them all" if left else ""
    blocks.append(Table(title="Every incident", columns=columns, rows=rows, note=note))
    span_s = (found.last_at_ms - found.first_at_ms) / 1000
    return Page(
        title=f"replay of {source}",
        lead=f"{found.entries:,} entries over {span_s:,.1f} s, {found.nodes:,} nodes, "
        f"{found.jobs} jobs, epoch {found.epoch}; {len(found.incidents)} incidents, "
        f"{found.downtime_ms:,.0f} ms of downtime in all.",
        blocks=tuple(blocks),
    )


def _length_ms(each: Incident) -> float:
    return each.downtime_ms or sum(each.phases_ms.get(name, 0.0) for name in _PARTS)


def _stack(each: Incident) -> Stack:
    took = f"{each.downtime_ms:,.0f} ms down" if each.downtime_ms is not None else "not over"
    return Stack(
        name=f"{each.kind} of {each.node}, slot {each.slot}",
        values=tuple(max(0.0, each.phases_ms.get(name, 0.0)) for name in _PARTS),
        words=took,
    )


def _cells(each: Incident, began_ms: int) -> tuple[str, ...]:
    return (
        f"{each.kind} of {each.node}, slot {each.slot}",
        each.replacement,
        f"{(each.began_at_ms - began_ms) / 1000:,.1f}",
        f"{each.downtime_ms:,.0f}" if each.downtime_ms is not None else "-",
        str(each.steps_lost) if each.steps_lost is not None else "-",
        each.reason,
    )


def page_of_whatif(source: str, policy: str, found: WhatIf) -> Page:
    """The first decision that differs, both reasons, and what the difference is worth."""
    first = found.divergence
    if first is None:
        lead = f"None of {found.compared:,} decisions differs."
        return Page(title=f"{source} under {policy}", lead=lead, blocks=(), notes=found.notes)
    return Page(
        title=f"{source} under {policy}",
        lead=f"{found.agreed:,} decisions agree. The first that differs, from position "
        f"{first.position}: {first.because}",
        blocks=_parting(first),
        notes=found.notes,
    )


def _parting(first: Divergence) -> tuple[Block, ...]:
    rows = (
        ("the log's policy", first.recorded or "waits", ", ".join(first.kinds) or "-"),
        ("the other", first.other or "waits", ", ".join(first.other_kinds) or "-"),
    )
    table = Table(title="The decision that differs", columns=("policy", "why", "events"), rows=rows)
    bars = []
    if first.downtime_ms is not None:
        words = f"{first.downtime_ms:,.0f} ms"
        bars.append(Bar(name="the log's own incident", value=first.downtime_ms, words=words))
    if first.cost_ms is not None:
        words = f"{first.cost_ms:+,.0f} ms"
        name = "costs more" if first.cost_ms >= 0 else "saves"
        bars.append(Bar(name=f"the other policy {name}", value=first.cost_ms, words=words, shade=1))
    about = f" It concerns the {first.incident}." if first.incident else ""
    if not bars:
        worth = Table(
            title="What it is worth", columns=("",), rows=((f"{first.cost_because}.{about}",),)
        )
        return (table, worth)
    chart = Bars(
        title="What it is worth",
        unit="milliseconds of the job",
        bars=tuple(bars),
        note=f"{first.cost_because}.{about} One log: no interval.",
    )
    return (table, chart)


def page_of_validation(source: str, found: Validation) -> Page:
    """Measured and simulated downtimes side by side."""
    bars: list[Bar] = []
    for pair in found.pairs:
        name = f"{pair.kind} of n{pair.machine} at {pair.at_s:.1f} s"
        for shade, (who, value) in enumerate(
            (("measured", pair.measured_ms), ("simulated", pair.simulated_ms))
        ):
            if value is not None:
                words = f"{value:,.0f} ms"
                if who == "simulated" and pair.error is not None:
                    words += f" ({pair.error:+.0%})"
                bars.append(Bar(name=name, value=value, words=words, shade=shade))
    off = found.simulated_ettr / found.measured_ettr - 1
    rows = (
        ("ETTR", f"{found.measured_ettr:.4f}", f"{found.simulated_ettr:.4f} ({off:+.1%})"),
        ("swaps", str(found.measured_swaps), str(found.simulated_swaps)),
        ("the same replacement", f"{found.same_replacements} of {len(found.pairs)}", "-"),
    )
    return Page(
        title=f"{source}: simulated beside measured",
        lead=". ".join((f"Costs from {found.costs_from}", *origins(found))) + ".",
        blocks=(
            Bars(
                title="Downtime of each fault",
                unit="milliseconds",
                bars=tuple(bars),
                shades=("measured", "simulated"),
                note="Each fault happened once: no interval.",
            ),
            Table(title="The whole run", columns=("what", "measured", "simulated"), rows=rows),
        ),
    )

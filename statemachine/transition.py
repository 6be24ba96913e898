"""The rules of the two-phase transition: who must acknowledge, and at which step a run resumes.

Theory of operation. The boundary vote makes a step atomic: a rank that saw the vote of step k
pass knows that every rank held its synchronised gradients of k. So among the survivors of a loss
let K be the highest applied step. Whoever has applied K-1 and not K must hold the gradients of K
(else the vote of K could not have passed anywhere): it applies K now. Everything about K+1 is
discarded, on every rank. A member without state (a joiner, or one that was cut off while it
received) takes the state of K from a replica. The run resumes at K+1.

Where nobody who lives holds the state of some slot, all go back to the newest step of which every
shard was saved: in the memory of a buddy, or on a disk. What was committed since is done again.

What may not be here: time, choice of nodes (`decide`), delivery (`participant`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct

from statemachine.events import (
    Change,
    Drop,
    Giver,
    Handover,
    Motive,
    Report,
    TransitionPlanned,
)
from statemachine.ids import NodeId, Slot
from statemachine.layout import Layout
from statemachine.parts import SOURCES_MAX, WORDS_MAX, brief
from statemachine.replicas import first_replicas

_NONE: Final[Mapping[Slot, tuple[NodeId, Report]]] = MappingProxyType({})


class Resume(Struct, frozen=True):
    """Where a parked job goes on, and what each slot must do before.

    `missing` are slots whose state no live member holds: the run cannot go on from memory. Where it
    `loads`, slots that receive nothing load what was saved of the step before.
    """

    step: int
    apply: tuple[Slot, ...]
    handovers: tuple[Handover, ...]
    missing: tuple[Slot, ...]
    reason: str
    loads: bool = False


def required_members(
    motive: Motive,
    layout: Layout,
    changes: tuple[Change, ...],
    held: Mapping[Slot, NodeId],
    *,
    drops: tuple[Drop, ...] = (),
    givers: tuple[Giver, ...] = (),
) -> tuple[NodeId, ...]:
    """Who must acknowledge: joiners always; planned: affected members and leavers too;
    unplanned: every survivor, since all must agree on the step, and who gave a slot away last.
    """
    changed = {change.slot for change in changes} | {drop.slot for drop in drops}
    joiners = {change.joiner for change in changes}
    if motive is Motive.LAUNCH:
        return tuple(sorted(joiners))
    if motive is Motive.PLANNED:
        affected = [slot for slot in layout.affected_slots(changed) if slot not in changed]
        leavers = {change.leaver for change in changes if change.leaver}
        return tuple(sorted(joiners | leavers | {held[s] for s in affected if s in held}))
    survivors = [node for slot, node in held.items() if slot not in changed]
    everybody = [*survivors, *joiners, *(giver.node for giver in givers)]
    return tuple(dict.fromkeys(sorted(everybody)))  # survivors are nearly sorted; a set is not


def planned_handovers(
    layout: Layout, changes: tuple[Change, ...], held: Mapping[Slot, NodeId]
) -> tuple[Handover, ...]:
    """In a planned transition the leaver hands its state to the joiner at the boundary; into a slot
    that nobody held, its replicas do.
    """
    handovers = []
    for change in changes:
        replicas = layout.replicas_of(change.slot) if not change.leaver else ()
        handover = Handover(
            slot=change.slot,
            joiner=change.joiner,
            sources=some_sources(change.slot, [held[s] for s in replicas if s in held])
            or (change.leaver,),
            kind="leaver" if change.leaver else "replica",
        )
        handovers.append(handover)
    return tuple(handovers)


def resume_point(
    layout: Layout,
    members: Mapping[Slot, NodeId],
    reports: Mapping[Slot, Report],
    givers: Mapping[Slot, tuple[NodeId, Report]] = _NONE,
) -> Resume:
    """Where a parked job resumes, from the reports of all its members, and of those who gave a slot
    away without being seen to have handed its state over.

    A job in which nobody holds state is at its launch: the first replica of every shard gives its
    initial weights to the others, and the job begins at step 0; or it loads a checkpoint, gives
    that, and the job begins behind it, if there is one of every shard.
    """
    holding = {slot: reports[slot] for slot in sorted(reports) if reports[slot].has_state}
    giving = {slot: givers[slot] for slot in sorted(givers) if givers[slot][1].has_state}
    if not holding and not giving:
        return load_point(layout, members, reports) or _initial(layout, members)
    everyone = (*holding.values(), *(report for _, report in giving.values()))
    last = max(report.applied for report in everyone)
    apply = {slot for slot, report in holding.items() if _applies(report, last)}
    current = {slot for slot, report in holding.items() if report.applied == last} | apply
    handovers, missing = [], []
    for slot in sorted(members):
        if slot in current:
            continue
        sources = some_sources(slot, [members[s] for s in layout.replicas_of(slot) if s in current])
        if sources:
            handovers.append(Handover(slot=slot, joiner=members[slot], sources=sources))
            continue
        giver = _giver_of(layout, slot, giving, last)
        if giver is None:
            missing.append(slot)
            continue
        name, report = giving[giver]
        apply |= {giver} if _applies(report, last) else set()
        handovers.append(Handover(slot=slot, joiner=members[slot], sources=(name,), kind="leaver"))
    listed = tuple(sorted(apply))
    return Resume(
        step=last + 1,
        apply=listed,
        handovers=tuple(handovers),
        missing=tuple(missing),
        reason=_resume_reason(last, listed, tuple(handovers), tuple(missing)),
    )


_T = TypeVar("_T")


def some_sources(slot: Slot, replicas: Sequence[_T]) -> tuple[_T, ...]:
    """So many of the replicas of a slot as give its state at once; of many, those that joiners of
    neighbouring slots do not ask as well.
    """
    if len(replicas) <= SOURCES_MAX:
        return tuple(replicas)
    first = slot * SOURCES_MAX % len(replicas)
    return tuple((*replicas[first:], *replicas[:first])[:SOURCES_MAX])


def _applies(report: Report, last: int) -> bool:
    """Whether a report is one step behind, with the gradients of that step."""
    return report.applied == last - 1 and report.pending == last


def _giver_of(
    layout: Layout, slot: Slot, giving: Mapping[Slot, tuple[NodeId, Report]], last: int
) -> Slot | None:
    """The slot whose former holder has the state that `slot` lacks."""
    for other in (slot, *layout.replicas_of(slot)):
        if other in giving:
            report = giving[other][1]
            if report.applied == last or _applies(report, last):
                return other
    return None


def _initial(layout: Layout, members: Mapping[Slot, NodeId]) -> Resume:
    """The first replica of each shard gives its initial weights, and the job begins at step 0."""
    first = first_replicas(layout, members)
    handovers = tuple(
        Handover(slot=slot, joiner=members[slot], sources=(members[lead],), kind="initial")
        for slot, lead in first.items()
        if lead != slot
    )
    reason = "every member holds the initial weights of its first replica"
    return Resume(step=0, apply=(), handovers=handovers, missing=(), reason=reason)


def load_point(
    layout: Layout, members: Mapping[Slot, NodeId], reports: Mapping[Slot, Report]
) -> Resume | None:
    """The newest step of which every shard was saved: of each, the lowest slot that can load it
    does, and gives it to the others. None if there is no such step.
    """
    first = first_replicas(layout, members)
    newest = dict.fromkeys(first.values(), -1)
    for slot, lead in first.items():
        newest[lead] = max(newest[lead], _newest(reports.get(slot)))
    steps = {step for slot in first for step in _saves(reports.get(slot))} | set(newest.values())
    limit = min(newest.values(), default=-1)
    for last in sorted((step for step in steps if 0 <= step <= limit), reverse=True):
        giver: dict[Slot, Slot] = {}
        for slot in sorted(first):
            if _can_load(reports.get(slot), last):
                giver.setdefault(first[slot], slot)
        if len(giver) == len(newest):
            return _loading(members, reports, first, giver, last)
    return None


def _newest(report: Report | None) -> int:
    return report.saved if report is not None else -1


def _saves(report: Report | None) -> tuple[int, ...]:
    return report.saves if report is not None else ()


def _can_load(report: Report | None, step: int) -> bool:
    """Whether a slot said so; one that told the newest alone has the ones before as well."""
    if report is None:
        return False
    return step in report.saves if report.saves else step <= report.saved


def _loading(
    members: Mapping[Slot, NodeId],
    reports: Mapping[Slot, Report],
    first: Mapping[Slot, Slot],
    giver: Mapping[Slot, Slot],
    last: int,
) -> Resume:
    handovers = tuple(
        Handover(
            slot=slot, joiner=members[slot], sources=(members[giver[lead]],), kind="checkpoint"
        )
        for slot, lead in first.items()
        if giver[lead] != slot
    )
    loading = tuple(sorted(giver.values()))
    where = _where(loading, reports, last)
    gives = ", and give it to their replicas" if handovers else ""
    reason = f"slots {_listed(loading)} load the checkpoint of step {last}{where}{gives}"
    return Resume(
        step=last + 1, apply=(), handovers=handovers, missing=(), reason=reason, loads=True
    )


def _where(slots: tuple[Slot, ...], reports: Mapping[Slot, Report], last: int) -> str:
    """From where slots load a step, for those that said so."""
    said = [f"slot {s}: {reports[s].saved_in}" for s in slots if reports[s].saved == last]
    told = [words for words in said if not words.endswith(": ")]
    more = [f"{len(told) - WORDS_MAX} more likewise"] if len(told) > WORDS_MAX else []
    return f" ({'; '.join([*told[:WORDS_MAX], *more])})" if told else ""


def _resume_reason(
    last: int,
    apply: tuple[Slot, ...],
    handovers: tuple[Handover, ...],
    missing: tuple[Slot, ...],
) -> str:
    parts = [f"step {last} is the last that any survivor applied"]
    if apply:
        parts.append(f"slots {_listed(apply)} hold its gradients and apply it now")
    parts += [f"slot {h.slot} receives it from {', '.join(h.sources)}" for h in handovers]
    if len(parts) > WORDS_MAX:
        parts = [*parts[:WORDS_MAX], f"{len(parts) - WORDS_MAX} more receive it likewise"]
    if missing:
        parts.append(f"no live member holds the state of slots {_listed(missing)}")
    return "; ".join(parts)


def _listed(slots: tuple[Slot, ...]) -> str:
    return brief((str(slot) for slot in slots), ", ")


def target_members(held: Mapping[Slot, NodeId], plan: TransitionPlanned) -> dict[Slot, NodeId]:
    """Slot -> node once the plan is committed."""
    dropped = {drop.slot for drop in plan.drops}
    members = {slot: node for slot, node in held.items() if slot not in dropped}
    members.update({change.slot: change.joiner for change in plan.changes})
    return {slot: members[slot] for slot in sorted(members)}

"""What the demo claims, each claim with what it was checked against.

What belongs here: pure judgement over what was seen. A claim that does not hold is the demo's
failure, and its detail is the cause that is printed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.demo.greys import GREYS, Grey
from controlplane.demo.options import DemoOptions
from controlplane.demo.outcome import IncidentOutcome
from controlplane.demo.plot import GREY, KILL, Hurt, incidents_of
from controlplane.demo.steps import JobStep
from statemachine import events as e
from statemachine.ids import NodeId, Slot
from statemachine.incidents import Incident, incidents
from statemachine.layout import Layout

STEPS_LOST_MAX = {KILL: 1, GREY: 0}
"""A planned swap loses no step, an unplanned one at most the step in flight."""

_EDGE_STEPS = 10


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, whether it holds, and the evidence in words."""

    text: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Finish:
    """How a run ended: last step, digest of the weights and loss of each slot, in slot order.

    `shards` are the numbers of the shards that each slot holds; empty: all hold the same.
    """

    step: int
    digests: tuple[str, ...]
    losses: tuple[float | None, ...]
    shards: tuple[tuple[int, ...], ...] = ()

    @property
    def digest(self) -> str:
        """The digest of the weights, of all shards together if there are several; empty if two
        slots that shall hold the same do not.
        """
        shards = self.shards or tuple((0,) for _ in self.digests)
        held: dict[tuple[int, ...], set[str]] = {}
        for shard, digest in zip(shards, self.digests, strict=True):
            held.setdefault(shard, set()).add(digest)
        if not held or any(len(found) > 1 or "" in found for found in held.values()):
            return ""
        whole = [found.pop() for _, found in sorted(held.items())]
        return whole[0] if len(whole) == 1 else hashlib.sha256("".join(whole).encode()).hexdigest()

    @property
    def loss(self) -> float | None:
        """The mean of the last losses of the slots that compute one, added in slot order."""
        known = [loss for loss in self.losses if loss is not None]
        return sum(known) / len(known) if known else None


def finish_of(
    log: Iterable[e.Recorded], holders: dict[Slot, NodeId], layout: Layout | None = None
) -> Finish:
    """How a run ended, from what the nodes in its slots said last."""
    said = {r.event.node: r.event for r in log if isinstance(r.event, e.WorkerFinished)}
    slots = [slot for slot in sorted(holders) if holders[slot] in said]
    last = [said[holders[slot]] for slot in slots]
    return Finish(
        step=min((event.step for event in last), default=-1),
        digests=tuple(event.weights_digest for event in last),
        losses=tuple(event.loss for event in last),
        shards=tuple(layout.shards_of(slot) for slot in slots) if layout is not None else (),
    )


def claims_of_run(
    options: DemoOptions,
    log: list[e.Recorded],
    hurts: Sequence[Hurt],
    steps: Sequence[JobStep],
    finish: Finish,
) -> list[Claim]:
    """What the run that was hurt has to show by itself."""
    claims = [_finished(options, steps, finish), _loss_fell(steps), _only_these(log, hurts)]
    for hurt in hurts:
        claims += _answered(log, hurt)
        if hurt.kind == GREY:
            claims += _told_rightly(log, hurt, GREYS[options.grey_kind])
        claims += _general(log, hurt)
    if hurts:
        claims.append(_survivors(hurts, log))
    return claims


def claims_of_campaign(
    options: DemoOptions,
    log: list[e.Recorded],
    hurts: Sequence[Hurt],
    steps: Sequence[JobStep],
    finish: Finish,
) -> list[Claim]:
    """What a run has to show whatever was done to it: it lost no step, learnt, and every slot that
    a fault emptied was filled again.
    """
    found = [one for hurt in hurts for one in incidents_of(log, hurt)[:1]]
    still = [one.node for one in found if one.downtime_ms is None]
    filled = Claim(
        "every slot that a fault emptied was filled",
        not still,
        f"{len(found)} of {len(hurts)} faults hit a slot; not answered: {', '.join(still) or '-'}",
    )
    return [_finished(options, steps, finish), _loss_fell(steps), filled]


def _finished(options: DemoOptions, steps: Sequence[JobStep], finish: Finish) -> Claim:
    count = finish.step + 1
    gapless = sorted(step.step for step in steps) == list(range(count))
    enough = options.steps <= count <= options.steps_most
    return Claim(
        f"all {count} steps were committed in all {options.nodes} slots",
        gapless and enough and len(finish.digests) == options.nodes,
        f"last step {finish.step}, reported by {len(finish.digests)} slots; {len(steps)} steps in "
        f"the diaries; asked for {options.steps}",
    )


def _loss_fell(steps: Sequence[JobStep]) -> Claim:
    losses = [step.loss for step in steps if step.loss is not None]
    first, last = losses[:_EDGE_STEPS], losses[-_EDGE_STEPS:]
    if len(losses) < 2 * _EDGE_STEPS:
        return Claim("the loss fell", holds=False, detail=f"{len(losses)} losses were noted")
    begin, end = sum(first) / len(first), sum(last) / len(last)
    return Claim(
        "the loss fell", end < begin, f"{begin:.3f} at the beginning, {end:.3f} at the end"
    )


def _only_these(log: list[e.Recorded], hurts: Sequence[Hurt]) -> Claim:
    found = incidents(log)
    hurt = [each.node for each in hurts]
    return Claim(
        "nobody was replaced who was not hurt",
        sorted(found_one.node for found_one in found) == sorted(hurt),
        f"hurt: {', '.join(hurt) or 'nobody'}; replaced: "
        f"{', '.join(one.node for one in found) or 'nobody'}",
    )


def _answered(log: list[e.Recorded], hurt: Hurt) -> list[Claim]:
    found = incidents_of(log, hurt)
    if not found:
        return [Claim(f"{hurt.node} was replaced after {hurt.kind}", holds=False, detail="no swap")]
    incident = found[0]
    planned = incident.motive is e.Motive.PLANNED
    claims = [
        Claim(
            f"{hurt.node} was replaced after {hurt.kind}, by a transition that was "
            f"{'planned' if hurt.kind == GREY else 'not planned'}",
            planned == (hurt.kind == GREY) and incident.downtime_ms is not None,
            f"{incident.motive} transition {incident.transition} to {incident.replacement}",
        ),
        Claim(
            f"at most {STEPS_LOST_MAX[hurt.kind]} step was lost to it",
            incident.steps_lost is not None and incident.steps_lost <= STEPS_LOST_MAX[hurt.kind],
            f"{incident.steps_lost} lost, resumed at step {incident.resume_step}",
        ),
    ]
    if hurt.kind == GREY:
        way = f"by a certificate, after {hurt.failed_sweeps} sweep that it did not pass"
        claims.append(Claim(f"{hurt.node} came back as standby", hurt.came_back, way))
    return claims


def _told_rightly(log: list[e.Recorded], hurt: Hurt, grey: Grey) -> list[Claim]:
    """The verdict named the cause, and the sweep found what was slow of the node, or nothing where
    nothing of it was.
    """
    causes: list[str] = []
    swept: list[e.SweepFinished] = []
    for entry in log:
        match entry.event:
            case e.FaultLifted(node=node) if node == hurt.node:
                break
            case e.VerdictIssued(node=node, detector=by) as said if node == hurt.node and by:
                causes.append(said.cause)
            case e.SweepFinished(node=node) as sweep if node == hurt.node:
                swept.append(sweep)
            case _:
                pass
    told = [sweep for sweep in swept if sweep.outcome is not e.SweepOutcome.INCONCLUSIVE]
    right = [
        sweep.outcome is grey.outcome
        and (not grey.metrics or any(name in sweep.reason for name in grey.metrics))
        for sweep in told
    ]
    found = f"by {grey.metrics[0].rstrip('_')}" if grey.metrics else "since nothing of it is slow"
    return [
        Claim(
            f"the verdict on {hurt.node} named the cause: {grey.cause}",
            bool(causes) and causes[-1].startswith(grey.cause),
            "; ".join(dict.fromkeys(causes)) or "no verdict",
        ),
        Claim(
            f"its sweep, while it was grey, {grey.outcome} {found}",
            bool(right) and all(right),
            "; ".join(f"{sweep.outcome}: {sweep.reason}" for sweep in swept) or "no sweep",
        ),
    ]


STANDS_OUT: Final = 1.1
"""Ratio of a slot's work beside its peers' while its holder was grey, to that before and after."""


def claims_of_work(incidents: Sequence[IncidentOutcome], kind: str) -> list[Claim]:
    """That the slot's work stood out of its peers' while its holder was grey, and only then.

    It holds whatever else the machine does, which is not so of the steps' own pace. Of a slow link
    no work is slow, and nothing is claimed.
    """
    claims = []
    for pace in [found.pace for found in incidents if found.pace is not None]:
        before, grey, after = pace.of_peers_before, pace.of_peers_grey, pace.of_peers_after
        if kind == "link" or before is None or grey is None or after is None:
            continue
        claims.append(
            Claim(
                "the slot's work stood out of its peers' while its holder was grey, and only then",
                holds=grey >= STANDS_OUT * max(before, after),
                detail=f"before {before:.2f}x, grey {grey:.2f}x, after {after:.2f}x",
            )
        )
    return claims


def _general(log: list[e.Recorded], hurt: Hurt) -> list[Claim]:
    """Whoever took the slot had rehearsed every role, with what was recorded of each."""
    found = incidents_of(log, hurt)
    if not found:
        return []
    name = found[0].replacement
    made: dict[str, str] = {}
    passed: dict[str, str] = {}
    for entry in log[: found[0].planned]:  # positions count from 1
        match entry.event:
            case e.RecordingMade(role=role, recording=recording):
                made[role] = recording
            case e.WarmupPassed(node=node, role=role, recording=recording) if node == name:
                passed[role] = recording
            case _:
                pass
    return [
        Claim(
            f"{name}, which took its slot, had rehearsed every role with what was recorded of it",
            bool(made) and passed == made and all(made.values()),
            f"rehearsed: {', '.join(sorted(passed)) or 'nothing'}; "
            f"recorded: {', '.join(sorted(made)) or 'nothing'}",
        )
    ]


def _survivors(hurts: Sequence[Hurt], log: list[e.Recorded]) -> Claim:
    return Claim(
        "no survivor was restarted",
        survivors_unchanged(hurts, log),
        "; ".join(_pids(hurt, found) for hurt in hurts for found in incidents_of(log, hurt)[:1]),
    )


def survivors_unchanged(hurts: Sequence[Hurt], log: list[e.Recorded]) -> bool:
    """Whether every survivor of every fault is the same process as before it."""
    for hurt in hurts:
        found = incidents_of(log, hurt)
        if not found or not found[0].survivors:
            return False
        for node in found[0].survivors:
            before, after = hurt.before.get(node), hurt.after.get(node)
            if before is None or before.born_at_s is None or before != after:
                return False
    return True


def _pids(hurt: Hurt, incident: Incident) -> str:
    said = [
        f"{node} {hurt.before[node].pid}->{hurt.after[node].pid}"
        for node in incident.survivors
        if node in hurt.before and node in hurt.after
    ]
    return f"pids around {hurt.kind} of {hurt.node}: {', '.join(said) or 'unknown'}"


def claims_of_sameness(hurt_run: Finish, plain: Finish) -> list[Claim]:
    """What comparing with the uninterrupted run of the same seed has to show."""
    same = bool(hurt_run.digest) and hurt_run.digest == plain.digest
    return [
        Claim(
            "the final weights equal those of an uninterrupted run, bit for bit",
            same,
            f"{_short(hurt_run)} against {_short(plain)}",
        ),
        Claim(
            "so does the final loss of every slot that computes one",
            hurt_run.loss is not None and hurt_run.losses == plain.losses,
            f"{hurt_run.loss!r} against {plain.loss!r}",
        ),
    ]


def _short(finish: Finish) -> str:
    if finish.digest:
        return finish.digest[:16]
    return "slots differ: " + ", ".join(digest[:8] or "none" for digest in finish.digests)

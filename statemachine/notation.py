"""States and events in one line each, for scripts, logs and people.

What belongs here: words. No colour, no columns, no clock (times are the reader's), no rule about
what follows. A line never holds a line break, whatever a name or a reason holds. Notation:

- a node is ``n1``, an incarnation of it ``n1.2``, a transition ``t4``, a sweep ``s3``;
- a job is ``job epoch 3: n0 n4 (n2) n5? -``: one word per slot, in parentheses when its holder is
  no more, with ``?`` when its holder was not yet heard from inside its group, ``-`` when it is left
  empty on purpose.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from statemachine import events as e
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import NodeState, Phase
from statemachine.parts import brief
from statemachine.state import FleetState, Job, Node, Transition

NAMES_MAX: Final = 16
"""Names beyond which a list in a line is cut."""


def flat(text: str) -> str:
    """A text from outside as part of one line: nothing in it moves a cursor or ends a line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def listed(names: Iterable[object]) -> str:
    """Names with spaces between; the first of them, and how many follow, if they are many."""
    words = [str(name) for name in names]
    if len(words) <= NAMES_MAX:
        return " ".join(words) or "nobody"
    return f"{' '.join(words[:NAMES_MAX])} and {len(words) - NAMES_MAX} more"


# --- states -----------------------------------------------------------------------------------


def lines_of_state(state: FleetState) -> list[str]:
    """A whole state: one line per job, then the nodes without a slot by where they stand."""
    lines = [line for name in sorted(state.jobs) for line in lines_of_job(state.jobs[name])]
    for at in NodeState:
        if at is NodeState.ACTIVE:
            continue
        names = sorted(n for n in state.nodes if state.nodes[n].state is at)
        if names:
            lines.append(f"{at}: {listed(_with_notes(state.nodes[name]) for name in names)}")
    noted = [n for n in sorted(state.unsettled) if state.nodes[n].state is NodeState.ACTIVE]
    lines += [f"active: {_with_notes(state.nodes[name])}" for name in noted]
    if state.paused_by:
        lines.append(f"paused by {flat(state.paused_by)}")
    return lines


def lines_of_job(job: Job) -> list[str]:
    """A job: its topology, and what is pending."""
    lines = [line_of_topology(job)]
    if job.pending is not None:
        lines.append(f"  {line_of_transition(job.pending)}")
    if job.stalled:
        lines.append(f"  stalled: {flat(job.stalled)}")
    return lines


def line_of_topology(job: Job) -> str:
    """``job epoch 3: n0 n4 (n2) n5? -``."""
    if job.finished:
        return f"{job.job} finished at epoch {job.epoch}"
    if not job.launched:
        return f"{job.job} epoch {job.epoch}: not launched"
    slots = (Slot(slot) for slot in range(job.layout.slot_count))
    return f"{job.job} epoch {job.epoch}: {listed(_holder(job, slot) for slot in slots)}"


def _holder(job: Job, slot: Slot) -> str:
    if slot in job.idle:
        return "-"
    name = job.holders.get(slot)
    if slot in job.vacant:
        return f"({name})"
    return f"{name}?" if slot in job.unproven else str(name)


def line_of_transition(pending: Transition) -> str:
    """``t4 unplanned preparing 1->2: slot 1 <- n3; awaits n0 n2``."""
    plan = pending.plan
    head = f"t{plan.transition} {plan.motive} {pending.phase} {plan.from_epoch}"
    parts = [f"{head}->{plan.from_epoch + 1}: {_changes(plan)}"]
    if pending.gone:
        parts.append(f"gone {listed(sorted(pending.gone))}")
    word = "awaits" if pending.phase is Phase.PREPARING else "awaits from inside"
    parts.append(f"{word} {listed(pending.awaited())}")
    return "; ".join(parts)


def _with_notes(node: Node) -> str:
    notes = []
    if node.state is NodeState.WARMING:
        notes += [f"role {r.role}" for r in node.rehearsals if r.warmth == "warming"]
    if node.wanted_out:
        notes.append(f"{node.wanted_out} by {node.wanted_out_by}")
    if node.verdict is not None:
        notes.append(str(node.verdict.verdict))
    if node.sweep:
        notes.append(f"s{node.sweep}")
    return flat(f"{node.node}[{', '.join(notes)}]") if notes else str(node.node)


# --- events -----------------------------------------------------------------------------------


def line_of_entry(recorded: e.Recorded) -> str:
    """``12 n0 PeerReset n0 lost n1.1 in dp[0]``: position, writer, event."""
    return f"{recorded.position} {flat(recorded.writer)} {line_of_event(recorded.event)}"


def line_of_event(event: e.AnyEvent) -> str:
    """``TransitionPlanned job t2 unplanned: slot 1 <- n3; n3 takes slot 1 ...``."""
    return f"{type(event).__name__} {words_of(event)}".rstrip()


def words_of(event: e.AnyEvent) -> str:
    """What an event says, without its name."""
    return flat(_words_of(event))


def _words_of(event: e.AnyEvent) -> str:
    match event:
        case e.TransitionPlanned():
            head = f"{event.job} t{event.transition} {event.motive}: {_changes(event)}"
            needs = "whom it concerns" if event.implied else listed(event.required)
            return _joined(head, f"needs {needs}", event.reason)
        case e.ChangesDrafted():
            return _joined(f"{event.job} t{event.transition} {_changes(event)}", event.reason)
        case e.SourcesChosen():
            head = f"{event.job} t{event.transition}"
            return _joined(head, brief(_handover(h) for h in event.handovers), event.reason)
        case e.TransitionPrepared():
            head = f"{event.job} t{event.transition} {event.node}.{event.incarnation}"
            return _joined(head, _report(event.report))
        case e.TransitionCommitted():
            step = f"resume at {event.resume_step}" if event.resume_step >= 0 else ""
            head = f"{event.job} t{event.transition} epoch {event.epoch}"
            told = brief(_handover(h) for h in event.handovers)
            return _joined(head, step, told, event.reason)
        case e.TransitionAborted():
            pause = f"pause of {event.retry_after_ms} ms" if event.retry_after_ms else ""
            return _joined(f"{event.job} t{event.transition}", pause, event.reason)
        case e.PeerReset():
            return f"{event.node} lost {event.peer}.{event.peer_incarnation} in {event.group}"
        case e.JobDeclared():
            axes = " ".join(f"{name}={size}" for name, size in event.axes.items())
            return _joined(f"{event.job} {axes}", f"standbys {event.standbys}", _by(event.by))
        case e.SweepRequested():
            partner = f"with {event.partner}" if event.partner else "without partner"
            head = f"s{event.sweep} {event.node}.{event.incarnation} {' '.join(event.rounds)}"
            return _joined(f"{head} {partner}", event.reason)
        case e.SweepRoundFinished():
            numbers = " ".join(f"{name}={v:.4g}" for name, v in event.measurements.items())
            return _joined(f"s{event.sweep} {event.node} {event.round}", event.failure or numbers)
        case e.PolicyChanged():
            knobs = msgspec.json.encode(event.knobs, order="sorted").decode()
            return _joined(f"version {event.version} {knobs}", _by(event.by), event.comment)
        case e.UnknownEvent():
            return f"{event.tag}: of a newer release"
        case _:
            return _generic(event)


_HEADS: Final = ("job", "transition", "epoch", "sweep", "controller", "term")
_TAILS: Final = ("role", "verdict", "act", "cause", "outcome", "step", "kind", "detail", "reason")
_MARKS: Final = {"transition": "t", "sweep": "s", "term": "term ", "epoch": "epoch "}


def _generic(event: Any) -> str:
    """Identities first, then the node with its incarnation, then what is said of it."""
    heads = [_field(event, name) for name in _HEADS]
    node, incarnation = _field(event, "node"), _field(event, "incarnation")
    heads.append(f"{node}.{incarnation}" if incarnation else node)
    tails = [_field(event, name) for name in _TAILS]
    forced = "with force" if getattr(event, "force", False) else ""
    aimed = f"to {event.to}" if getattr(event, "to", "") else ""
    by, comment = _by(str(getattr(event, "by", ""))), _field(event, "comment")
    return _joined(" ".join(x for x in heads if x), *tails, aimed, forced, by, comment)


def _field(event: Any, name: str) -> str:
    value = getattr(event, name, "")
    if value in ("", None):
        return ""
    mark = "step " if name == "step" else _MARKS.get(name, "")
    return f"{mark}{value}"


def _changes(plan: e.TransitionPlanned | e.ChangesDrafted) -> str:
    words = [_change(change) for change in plan.changes]
    words += [f"slot {drop.slot} left empty" for drop in plan.drops]
    if isinstance(plan, e.TransitionPlanned) and plan.parts:
        words.append(f"what {plan.parts} parts say")
    return brief(words, ", ") or "nobody moves"


def _change(change: e.Change) -> str:
    leaver = f" for {change.leaver}" if change.leaver else ""
    return f"slot {change.slot} <- {change.joiner}{leaver}"


def _handover(handover: e.Handover) -> str:
    return f"slot {handover.slot} from {handover.kind} {listed(handover.sources)}"


def _report(report: e.Report | None) -> str:
    if report is None:
        return ""
    if not report.has_state:
        return "holds no state"
    pending = f", holds gradients of {report.pending}" if report.pending >= 0 else ""
    return f"applied step {report.applied}{pending}"


def _by(name: str) -> str:
    return f"by {name}" if name else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def names_in(event: e.AnyEvent) -> frozenset[NodeId]:
    """Nodes that an event names."""
    plain: Any = event
    names = {getattr(plain, field, "") for field in ("node", "peer", "partner", "blames")}
    match event:
        case e.TransitionPlanned() | e.ChangesDrafted():
            names |= {name for c in event.changes for name in (c.joiner, c.leaver)}
            names |= {drop.node for drop in event.drops}
        case e.TransitionCommitted() | e.SourcesChosen():
            names |= {h.joiner for h in event.handovers}
        case e.TransitionAborted():
            names |= set(event.blockers)
        case _:
            pass
    return frozenset(NodeId(name) for name in names if name)

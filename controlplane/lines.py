"""One event, one line: how the log reads to people, in `log tail` and in the controller's own log.

What belongs here: words for facts. No colour, no columns, no rule about what follows.
"""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from statemachine import events as e
from statemachine.parts import brief

REASON_CHARS_MAX: Final = 160
"""Length at which a reason is cut in a line; the log has it whole."""


def clock(at_ms: float) -> str:
    """Unix ms as local time of day with ms."""
    local = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone()
    return local.strftime("%H:%M:%S.") + f"{int(at_ms) % 1000:03d}"


def line_of(recorded: e.Recorded) -> str:
    """``position time writer event ...`` of one entry of the log."""
    return (
        f"{recorded.position:>6} {clock(recorded.at_ms)} {flat(recorded.writer):<12} "
        f"{type(recorded.event).__name__:<20} {words_of(recorded.event)}"
    ).rstrip()


def words_of(event: e.AnyEvent) -> str:
    """What an event says, without its name."""
    return flat(_words_of(event))


def flat(text: str) -> str:
    """A text from outside as part of one line: nothing in it moves a cursor or ends a line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _words_of(event: e.AnyEvent) -> str:
    match event:
        case e.TransitionPlanned():
            head = f"{event.job} t{event.transition}"
            told = f"{_changes(event)}, what {event.parts} parts say" if event.parts else ""
            changes = (told or _changes(event)).removeprefix(", ")
            return _joined(head, event.motive, changes, event.reason)
        case e.ChangesDrafted():
            return _joined(f"{event.job} t{event.transition}", _changes(event), event.reason)
        case e.TransitionCommitted():
            step = f"resume at {event.resume_step}" if event.resume_step >= 0 else ""
            head = f"{event.job} t{event.transition} epoch {event.epoch}"
            return _joined(head, step, event.reason)
        case e.TransitionPrepared():
            return _joined(
                f"{event.job} t{event.transition} {event.node}",
                _report(event.report),
                f"{event.links_opened} links" if event.links_opened else "",
                f"{event.took_ms:.0f} ms",
            )
        case e.TransitionApplied():
            phases = ", ".join(f"{name} {ms:.0f}" for name, ms in event.phases_ms.items())
            head = f"{event.job} t{event.transition} {event.node} step {event.step}"
            return _joined(head, f"ms: {phases}" if phases else "")
        case e.StepResumed():
            return f"{event.job} t{event.transition} {event.node} step {event.step}"
        case e.PeerReset():
            return f"{event.node} lost {event.peer}/{event.peer_incarnation} in {event.group}"
        case e.GroupBroken():
            return f"{event.node} is parked at epoch {event.epoch}: {event.cause}"
        case e.PeerWaited():
            if not event.silent_ms:
                return f"{event.peer}/{event.peer_incarnation} answers {event.node} again"
            waited = f"{event.node} waits for {event.peer}/{event.peer_incarnation}"
            return f"{waited}, which has been silent for {event.silent_ms / 1000:.1f} s"
        case e.JobDeclared():
            axes = " ".join(f"{name}={size}" for name, size in event.axes.items())
            return _joined(f"{event.job} {axes}", f"standbys {event.standbys}", _by(event.by))
        case e.SweepRequested():
            partner = f"with {event.partner}" if event.partner else "without partner"
            head = f"s{event.sweep} {event.node}"
            return _joined(head, ", ".join(event.rounds), partner, event.reason)
        case e.SweepRoundFinished():
            numbers = " ".join(f"{name}={v:.4g}" for name, v in event.measurements.items())
            head = f"s{event.sweep} {event.node} {event.round}"
            return _joined(head, event.failure or numbers)
        case e.CertificateIssued():
            return f"s{event.sweep} {event.node}"
        case e.UnknownEvent():
            return f"{event.tag}: of a newer release"
        case e.PolicyChanged():
            knobs = msgspec.json.encode(event.knobs).decode()
            return _joined(f"version {event.version} {knobs}", _by(event.by), event.comment)
        case _:
            return _generic(event)


_HEADS: Final = ("job", "transition", "sweep", "controller", "term", "role", "kind")
_TAILS: Final = ("verdict", "outcome", "step", "detail", "reason", "comment")
_MARKS: Final = {"transition": "t", "sweep": "s", "term": "term ", "step": "step "}


def _generic(event: Any) -> str:
    """Identities first, then the node with its incarnation, then what is said of it."""
    heads = [_field(event, name) for name in _HEADS]
    node, incarnation = _field(event, "node"), _field(event, "incarnation")
    node = f"{node}/{incarnation}" if incarnation else node
    tails = [_field(event, name) for name in _TAILS]
    by = _by(str(getattr(event, "by", "")))
    return _joined(" ".join(x for x in (*heads, node) if x), *tails, by)


def _field(event: Any, name: str) -> str:
    value = getattr(event, name, "")
    if value in ("", None):
        return ""
    return f"{_MARKS.get(name, '')}{value}"


def _changes(plan: e.TransitionPlanned | e.ChangesDrafted) -> str:
    words = [_change(change) for change in plan.changes]
    words += [f"slot {drop.slot} left empty" for drop in plan.drops]
    return brief(words, ", ")


def _change(change: e.Change) -> str:
    leaver = f" for {change.leaver}" if change.leaver else ""
    return f"slot {change.slot}: {change.joiner}{leaver}"


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
    kept = [_cut(part) for part in parts if part]
    return "; ".join(kept)


def _cut(part: str) -> str:
    return part if len(part) <= REASON_CHARS_MAX else part[: REASON_CHARS_MAX - 3] + "..."

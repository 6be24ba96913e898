"""What, why, what else was considered, what was waited for: a node, a transition or an epoch.

What belongs here: choosing entries of a log and reading from them what its decisions already say.
No reason is made up here: each stands in an event, and each number in the evidence that the event
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from controlplane.errors import NothingToExplain
from controlplane.lines import line_of, words_of
from statemachine import events as e
from statemachine.ids import Position
from statemachine.notation import names_in


class Explanation(Struct, frozen=True, kw_only=True):
    """The story of one subject. Each part may be empty; `entries` are what it is told from."""

    subject: str
    kind: str
    """``node``, ``transition`` or ``epoch``."""
    what: tuple[str, ...]
    why: tuple[str, ...]
    considered: tuple[str, ...]
    awaited: tuple[str, ...]
    entries: tuple[e.Recorded, ...]

    def as_values(self) -> dict[str, Any]:
        """For `--json`; entries by position, type and words."""
        return {
            "subject": self.subject,
            "kind": self.kind,
            "what": list(self.what),
            "why": list(self.why),
            "considered": list(self.considered),
            "awaited": list(self.awaited),
            "entries": [
                {
                    "position": entry.position,
                    "at_ms": entry.at_ms,
                    "writer": entry.writer,
                    "type": type(entry.event).__name__,
                    "words": words_of(entry.event),
                    "decided_from": entry.decided_from,
                    "policy_version": entry.policy_version,
                }
                for entry in self.entries
            ],
        }

    def lines(self) -> list[str]:
        """For people: the parts that there are, then the entries."""
        found = []
        for title, lines in (
            ("what", self.what),
            ("why", self.why),
            ("considered and not chosen", self.considered),
            ("waited for", self.awaited),
        ):
            if lines:
                found += [title, *(f"  {line}" for line in lines), ""]
        return [*found, "from the log", *(f"  {line_of(entry)}" for entry in self.entries)]


def explain(log: Sequence[e.Recorded], subject: str, fleet: str) -> Explanation:
    """Explain ``NODE``, ``[JOB/]TRANSITION`` or ``[JOB/]eEPOCH`` from a log.

    Raises:
        NothingToExplain: the log does not know the subject.
    """
    transition, kind = _transition_of(log, subject)
    entries = story_of(log, transition or subject, fleet)
    if transition:
        return _of_transition(entries, subject, kind)
    return _of_node(entries, subject)


def _transition_of(log: Sequence[e.Recorded], subject: str) -> tuple[str, str]:
    """The transition that a subject means, as ``JOB/NUMBER``; empty if it is a node."""
    job, _, last = subject.rpartition("/")
    if last.isdigit():
        return subject, "transition"
    if not (last.startswith("e") and last[1:].isdigit()):
        return "", "node"
    for recorded in log:
        event = recorded.event
        if not isinstance(event, e.TransitionCommitted) or event.epoch != int(last[1:]):
            continue
        if not job or event.job == job:
            return f"{event.job}/{event.transition}", "epoch"
    return "", "node"  # a node may be called e7


def _of_transition(entries: list[e.Recorded], subject: str, kind: str) -> Explanation:
    plans = [r for r in entries if isinstance(r.event, e.TransitionPlanned)]
    why, considered = [], []
    for entry in plans:
        plan = entry.event
        assert isinstance(plan, e.TransitionPlanned)
        why.append(f"{plan.reason} ({_decided(entry)})")
        why += _evidence_lines(entries, plan.evidence)
        considered += list(plan.considered)
    endings = (e.TransitionCommitted, e.TransitionFinished, e.TransitionAborted)
    for entry in entries:
        event = entry.event
        if isinstance(event, endings):
            why.append(f"{type(event).__name__}: {event.reason} ({_decided(entry)})")
    return Explanation(
        subject=subject,
        kind=kind,
        what=tuple(words_of(entry.event) for entry in plans),
        why=tuple(why),
        considered=tuple(considered),
        awaited=tuple(_waits(entries)),
        entries=tuple(entries),
    )


def _decided(entry: e.Recorded) -> str:
    rests_on = ", ".join(str(at) for at in getattr(entry.event, "evidence", ()))
    decided = f"decided from position {entry.decided_from} under policy {entry.policy_version}"
    return f"{decided}; rests on {rests_on}" if rests_on else decided


def _evidence_lines(entries: Iterable[e.Recorded], wanted: Iterable[Position]) -> list[str]:
    positions = set(wanted)
    return [
        f"evidence at {entry.position}: {type(entry.event).__name__} {_with_numbers(entry.event)}"
        for entry in entries
        if entry.position in positions
    ]


def _with_numbers(event: e.AnyEvent) -> str:
    """What an event says, with the numbers that spoke for it."""
    words = words_of(event)
    if not isinstance(event, e.VerdictIssued):
        return words
    numbers = [
        f"{i.metric} {i.value:.4g} against {i.peers_median:.4g} of {i.peers} peers, score "
        f"{i.score:.3g}, {i.windows} windows"
        for i in event.indicators
    ]
    return "; ".join([words, *numbers])


def _waits(entries: Iterable[e.Recorded]) -> list[str]:
    """Who answered how long after it was asked, the last one last."""
    found: list[str] = []
    asked_ms: int | None = None
    for entry in entries:
        event = entry.event
        match event:
            case e.TransitionPlanned() | e.TransitionCommitted():
                asked_ms = entry.at_ms
            case e.TransitionPrepared() | e.TransitionApplied() if asked_ms is not None:
                verb = "prepared" if isinstance(event, e.TransitionPrepared) else "applied"
                found.append(f"{event.node} {verb} after {entry.at_ms - asked_ms} ms")
            case e.TransitionRefused():
                found.append(f"{event.node} refused: {event.reason}")
            case _:
                pass
    return found


def _of_node(entries: list[e.Recorded], subject: str) -> Explanation:
    why, considered = [], []
    moves = (
        e.NodeLost,
        e.NodeQuarantined,
        e.NodeDrained,
        e.NodePooled,
        e.NodeRetired,
        e.NodeAssigned,
        e.WarmupFailed,
        e.SweepRequested,
        e.SweepExtended,
        e.SweepFinished,
        e.CertificateIssued,
        e.RemedyRequested,
        e.ActRefused,
        e.ActWithheld,
        e.VerdictWithdrawn,
    )
    for entry in entries:
        event = entry.event
        match event:
            case e.VerdictIssued() if event.node == subject:
                why.append(f"VerdictIssued {_with_numbers(event)}")
            case e.TransitionPlanned():
                why.append(f"t{event.transition}: {event.reason} ({_decided(entry)})")
                considered += [line for line in event.considered if line.startswith(subject)]
            case _ if isinstance(event, moves) and event.node == subject:
                said = f"{type(event).__name__}: {event.reason}"
                why.append(f"{said} ({_decided(entry)})" if entry.decided_from else said)
            case _:
                pass
    last = next((r for r in reversed(entries) if subject in names_in(r.event)), None)
    what = f"last heard at position {last.position}: {type(last.event).__name__}" if last else ""
    return Explanation(
        subject=subject,
        kind="node",
        what=(what,) if what else (),
        why=tuple(why),
        considered=tuple(considered),
        awaited=(),
        entries=tuple(entries),
    )


# --- choosing entries -------------------------------------------------------------------------


def story_of(log: Sequence[e.Recorded], subject: str, fleet: str) -> list[e.Recorded]:
    """Entries about ``NODE``, ``TRANSITION`` or ``JOB/TRANSITION``, with their evidence, in order.

    Raises:
        NothingToExplain: the log does not know the subject.
    """
    job, _, number = subject.rpartition("/")
    if number.isdigit():
        chosen = [r for r in log if _is_of_transition(r.event, job, int(number))]
    else:
        chosen = [r for r in log if subject in names_in(r.event)]
        chosen += _plans_of(log, chosen)
    if not chosen:
        raise NothingToExplain(
            f"fleet {fleet}: the log knows no node or transition {subject!r}; "
            "see 'changeover nodes' and 'changeover status'"
        )
    wanted = {r.position for r in chosen} | set(_evidence(r.event for r in chosen))
    return [r for r in log if r.position in wanted]


def _plans_of(log: Sequence[e.Recorded], chosen: Sequence[e.Recorded]) -> list[e.Recorded]:
    """The plans that belong to chosen parts of one."""
    parts = {(d.job, d.transition) for r in chosen if isinstance(d := r.event, e.ChangesDrafted)}
    if not parts:
        return []
    plans = ((r, r.event) for r in log if isinstance(r.event, e.TransitionPlanned))
    return [r for r, plan in plans if (plan.job, plan.transition) in parts]


def _is_of_transition(event: e.AnyEvent, job: str, number: int) -> bool:
    named = getattr(event, "transition", None)
    return named == number and (not job or getattr(event, "job", "") == job)


def _evidence(events: Iterable[e.AnyEvent]) -> Iterable[Position]:
    for event in events:
        yield from getattr(event, "evidence", ())


def encoded(explanation: Explanation) -> str:
    """As one JSON object."""
    return msgspec.json.encode(explanation.as_values()).decode()

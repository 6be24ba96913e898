"""What differs between two states of a fleet, in words: for `diff`, and for whoever compares.

What belongs here: comparing records and saying what a person can read. No rule about what follows,
no columns. Theory of operation. States of one log share every record in which they agree, so two
records are first compared by identity: what costs is only what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct
from rpds import HashTrieMap, HashTrieSet

from statemachine import events as e
from statemachine.ids import Position
from statemachine.notation import flat, line_of_transition, listed
from statemachine.policy import Policy
from statemachine.state import Accusation, FleetState, Rehearsal, Sweep, Transition

NOT_SHOWN: Final = frozenset(
    {
        "declared",
        "declared_at_ms",
        "indexed",
        "joined_at_ms",
        "last_sweep",
        "last_transition",
        "layout",
        "open_jobs",
        "pool",
        "accused",
        "accusers",
        "unsettled",
        "unready",
        "present",
        "position",
        "at_ms",
        "reference",
        "since_at_ms",
        "vacant_since_ms",
        "verdict_position",
        "wanted_position",
        "broken_position",
        "ended_position",
    }
)
"""Fields that follow from others, or say only when: they would hide what happened."""


class FieldChange(Struct, frozen=True, kw_only=True):
    """One field before and after, in words; empty where it holds nothing."""

    field: str
    before: str
    after: str


class RecordChange(Struct, frozen=True, kw_only=True):
    """What differs in one record. `kind` is ``fleet``, ``job``, ``node`` or ``sweep``; `name` is
    empty for the fleet. `how` is ``changed``, ``new`` or ``gone``.
    """

    kind: str
    name: str
    how: str
    fields: tuple[FieldChange, ...]


class Difference(Struct, frozen=True, kw_only=True):
    """What differs between the states at two positions; times in Unix ms."""

    from_position: Position
    to_position: Position
    from_at_ms: int
    to_at_ms: int
    records: tuple[RecordChange, ...]


def diff(before: FleetState, after: FleetState) -> Difference:
    """What differs between two states, the fleet first, then jobs, nodes and sweeps by name."""
    found = list(_fleet(before, after))
    found += _records("job", before.jobs, after.jobs)
    found += _records("node", before.nodes, after.nodes)
    found += _records("sweep", before.sweeps, after.sweeps)
    return Difference(
        from_position=before.position,
        to_position=after.position,
        from_at_ms=before.at_ms,
        to_at_ms=after.at_ms,
        records=tuple(found),
    )


def lines_of_difference(found: Difference) -> list[str]:
    """One line per field: ``node n3: state: standby -> active``."""
    lines = []
    for record in found.records:
        head = f"{record.kind} {record.name}".rstrip()
        if record.how != "changed":
            lines.append(f"{head}: {record.how}")
        lines += [
            f"{head}: {field.field}: {field.before or '-'} -> {field.after or '-'}"
            for field in record.fields
        ]
    return lines


def _fleet(before: FleetState, after: FleetState) -> Iterator[RecordChange]:
    fields = [
        change
        for name in FleetState.__struct_fields__
        if name not in ("jobs", "nodes", "sweeps")
        for change in _field(name, getattr(before, name), getattr(after, name))
    ]
    if fields:
        yield RecordChange(kind="fleet", name="", how="changed", fields=tuple(fields))


def _records(
    kind: str, before: HashTrieMap[Any, Any], after: HashTrieMap[Any, Any]
) -> Iterator[RecordChange]:
    if before is after:
        return
    names = [name for name, record in after.items() if before.get(name) is not record]
    names += [name for name in before if name not in after]
    for name in sorted(names):
        old, new = before.get(name), after.get(name)
        if new is None:
            yield RecordChange(kind=kind, name=str(name), how="gone", fields=())
        elif old is None:
            said = (field for field in _fields(None, new) if field.after not in ("0", str(name)))
            yield RecordChange(kind=kind, name=str(name), how="new", fields=tuple(said))
        elif fields := tuple(_fields(old, new)):
            yield RecordChange(kind=kind, name=str(name), how="changed", fields=fields)


def _fields(before: Any, after: Any) -> Iterator[FieldChange]:
    """What differs; of a new record, what differs from one of which nothing was said yet."""
    begins = _begins(type(after)) if before is None else {}
    for name in type(after).__struct_fields__:
        yield from _field(name, getattr(before, name, begins.get(name)), getattr(after, name))


def _begins(kind: Any) -> dict[str, Any]:
    """What a record's fields begin with; its annotations cannot be evaluated: maps are no types."""
    given = kind.__struct_defaults__
    names = kind.__struct_fields__[len(kind.__struct_fields__) - len(given) :]
    return {
        name: value.factory() if hasattr(value, "factory") else value
        for name, value in zip(names, given, strict=True)
        if value is not msgspec.NODEFAULT
    }


def _field(name: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if name in NOT_SHOWN or before is after or before == after:
        return
    if isinstance(after, Policy):
        yield from _knobs("policy", before, after)
    elif isinstance(after, HashTrieMap):
        yield from _entries(name, before if before is not None else HashTrieMap(), after)
    else:
        was, now = shown(before), shown(after)
        if was != now:
            yield FieldChange(field=name, before=was, after=now)


def _entries(
    name: str, before: HashTrieMap[Any, Any], after: HashTrieMap[Any, Any]
) -> Iterator[FieldChange]:
    keys = [key for key, value in after.items() if before.get(key) != value]
    keys += [key for key in before if key not in after]
    for key in sorted(keys):
        was, now = shown(before.get(key)), shown(after.get(key))
        yield FieldChange(field=f"{name}[{key}]", before=was, after=now)


def _knobs(name: str, before: Any, after: Struct) -> Iterator[FieldChange]:
    for knob in after.__struct_fields__:
        was, now = getattr(before, knob, None), getattr(after, knob)
        if was == now:
            continue
        if isinstance(now, Struct):
            yield from _knobs(f"{name}.{knob}", was, now)
        else:
            yield FieldChange(field=f"{name}.{knob}", before=shown(was), after=shown(now))


def shown(value: Any) -> str:
    """A field's value in words; empty for what holds nothing."""
    return flat(_words(value))


def _words(value: Any) -> str:
    match value:
        case None | "" | () | -1 | False:
            return ""
        case True:
            return "yes"
        case float():
            return f"{value:.6g}"
        case tuple():
            return ", ".join(_words(each) for each in value)
        case HashTrieSet():
            return listed(sorted(value)) if len(value) else ""
        case Transition():
            return line_of_transition(value)
        case Sweep():
            return f"of {value.request.node}"
        case Struct():
            return _words_of_record(value)
        case _:
            return str(value)


def _words_of_record(value: Struct) -> str:
    match value:
        case Rehearsal():
            return f"{value.role} of {value.job} {value.warmth}"
        case Accusation():
            return f"{value.kind} by {value.by}"
        case e.VerdictIssued():
            return f"{value.verdict}: {value.reason}"
        case e.WorkerReady():
            return f"process {value.pid} at {value.host}:{value.port}"
        case e.CertificateIssued():
            return f"s{value.sweep} until {value.expires_at_ms}"
        case e.GroupBroken():
            return f"{value.node}: {value.cause}"
        case e.SweepRequested():
            return f"s{value.sweep} of {value.node}: {' '.join(value.rounds)}"
        case e.SweepRoundFinished():
            return f"{value.round} {'failed' if value.failure else 'done'}"
        case _:
            return type(value).__name__

"""What stands in the store, as its readers get it: key and value taken apart.

Reading is total: a key that nobody of ours can have put there yields None and is passed over; a
value that nobody of ours can have put under one of our own keys is named, in a `LogCorrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from controlplane.eventlog.errors import LogCorrupt
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.store import KeyValue
from statemachine.codec import decode_fact, decode_recorded
from statemachine.errors import CodecError
from statemachine.events import Fact, Recorded
from statemachine.ids import Incarnation, JobId, NodeId, Position

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log as it stands in the store."""

    position: Position
    raw: bytes

    def recorded(self) -> Recorded:
        """Decode it.

        Raises:
            LogCorrupt: it does not decode, or claims another position.
        """
        try:
            recorded = decode_recorded(self.raw)
        except CodecError as error:
            raise LogCorrupt(self.position, str(error)) from error
        if recorded.position != self.position:
            raise LogCorrupt(self.position, f"the entry says position {recorded.position}")
        return recorded


def entries_of(keys: Keys, kvs: Iterable[KeyValue]) -> tuple[Entry, ...]:
    """Read entries of the log, in the order given."""
    placed = ((keys.position(kv.key), kv.value) for kv in kvs)
    return tuple(Entry(position, value) for position, value in placed if position is not None)


class InboxItem(msgspec.Struct, frozen=True):
    """A fact that waits for its place in the log. `revision` tells its arrival among others."""

    writer: str
    incarnation: Incarnation
    counter: int
    revision: int
    raw: bytes

    def fact(self) -> Fact:
        """Decode it. Raises EventCorrupt."""
        return decode_fact(self.raw)


class NodeItem(msgspec.Struct, frozen=True):
    """A live incarnation. `record` is what it joined with."""

    node: NodeId
    incarnation: Incarnation
    revision: int
    record: bytes


class VitalsItem(msgspec.Struct, frozen=True):
    """What an incarnation measured last."""

    node: NodeId
    incarnation: Incarnation
    revision: int
    value: bytes


class DesiredItem(msgspec.Struct, frozen=True):
    """The topology that a job should have, as projected."""

    job: JobId
    revision: int
    value: bytes


class OrdersItem(msgspec.Struct, frozen=True):
    """What one node shall do, as projected."""

    node: NodeId
    revision: int
    value: bytes


def _reader(
    keys: Keys, kind: str, build: Callable[[tuple[str, ...], KeyValue], T]
) -> Callable[[KeyValue], T | None]:
    def read(kv: KeyValue) -> T | None:
        try:
            found, *parts = keys.parts(kv.key)
            return build(tuple(parts), kv) if found == kind else None
        except (ValueError, IndexError):
            return None

    return read


def inbox_reader(keys: Keys) -> Callable[[KeyValue], InboxItem | None]:
    """Read facts that wait."""

    def build(parts: tuple[str, ...], kv: KeyValue) -> InboxItem:
        writer, incarnation, counter = parts[0], Incarnation(int(parts[1])), int(parts[2])
        if kv.key != keys.inbox(writer, incarnation, counter):
            raise ValueError(kv.key)  # deleting what was sequenced would not hit it
        return InboxItem(writer, incarnation, counter, kv.mod_revision, kv.value)

    return _reader(keys, "inbox", build)


def node_reader(keys: Keys) -> Callable[[KeyValue], NodeItem | None]:
    """Read live incarnations."""

    def build(parts: tuple[str, ...], kv: KeyValue) -> NodeItem:
        node, incarnation = parts
        return NodeItem(NodeId(node), Incarnation(int(incarnation)), kv.create_revision, kv.value)

    return _reader(keys, "nodes", build)


def vitals_reader(keys: Keys) -> Callable[[KeyValue], VitalsItem | None]:
    """Read what nodes measured last."""

    def build(parts: tuple[str, ...], kv: KeyValue) -> VitalsItem:
        node, incarnation = parts
        return VitalsItem(NodeId(node), Incarnation(int(incarnation)), kv.mod_revision, kv.value)

    return _reader(keys, "vitals", build)


def desired_reader(keys: Keys) -> Callable[[KeyValue], DesiredItem | None]:
    """Read projected topologies."""

    def build(parts: tuple[str, ...], kv: KeyValue) -> DesiredItem:
        (job,) = parts
        return DesiredItem(JobId(job), kv.mod_revision, kv.value)

    return _reader(keys, "desired", build)


def orders_reader(keys: Keys) -> Callable[[KeyValue], OrdersItem | None]:
    """Read projected orders."""

    def build(parts: tuple[str, ...], kv: KeyValue) -> OrdersItem:
        (node,) = parts
        return OrdersItem(NodeId(node), kv.mod_revision, kv.value)

    return _reader(keys, "orders", build)


def read_count(node: NodeId, found: Sequence[KeyValue]) -> Incarnation:
    """Read the last incarnation given out for a node, 0 if none was. Raises LogCorrupt."""
    value = found[0].value if found else b"0"
    if not value.isdigit():
        raise LogCorrupt(0, f"the count of incarnations of node {node} says {value[:40]!r}")
    return Incarnation(int(value))


def read_mark(node: NodeId, value: bytes) -> tuple[Incarnation, int]:
    """Read which fact a node stated last: incarnation and counter. Raises LogCorrupt."""
    parts = value.split(b".")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise LogCorrupt(0, f"the counter of the facts of node {node} says {value[:40]!r}")
    return Incarnation(int(parts[0])), int(parts[1])

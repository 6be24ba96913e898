"""A desired topology of thousands of members in few bytes: each of them reads it at every change.

What belongs here: leaving out of a key's value what follows from the rest of it, and putting it
back. No rule about topologies. Members are written as columns, since the values of a column are
alike; the members after a transition as what differs from those before; names that are everybody
as that word; handovers from the same sources once. What is left is compressed. A value that begins
with a brace is plain JSON, as small ones are; both are read forever.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from statemachine.errors import EventCorrupt
from statemachine.events import Handover

PACKED_FROM: Final = 128
"""Members from which on a value is packed."""

PACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What no packed value unfolds to; a larger one is not ours."""


class Columns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holders, field by field, in slot order; `slots` is empty where they are 0, 1, 2 and so on."""

    nodes: tuple[str, ...] = ()
    incarnations: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    transfer_ports: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()


class Names(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A list of nodes: as it is, or all members, in slot order or sorted, but for some and with
    others.
    """

    listed: tuple[str, ...] = ()
    all_in_order: bool = False
    all_sorted: bool = False
    plus: tuple[str, ...] = ()
    minus: tuple[str, ...] = ()


class Giving(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Handovers with the same sources: each slot's member receives."""

    sources: tuple[str, ...]
    kind: str
    slots: tuple[int, ...]


class PackedPending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was left out of the pending transition. `plus` hold slots anew, `minus` are empty."""

    plus: Columns
    minus: tuple[int, ...]
    required: Names
    joiners: Names
    givings: tuple[Giving, ...] = ()


class Packed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value without its members, and the members."""

    rest: Raw
    members: Columns
    pending: PackedPending | None = None


_PACKED: Final = msgspec.json.Decoder(Packed)


def is_packed(raw: bytes) -> bool:
    """Whether a value is not plain JSON."""
    return not raw.startswith(b"{")


def pack(desired: Any) -> bytes:
    """Write a desired topology; `unpack` gives an equal one."""
    rest, pending, told = desired, desired.pending, None
    if pending is not None:
        told = _pack_pending(desired.members, pending)
        handovers = () if told.givings else pending.handovers
        bare = replace(pending, members=(), required=(), joiners=(), handovers=handovers)
        rest = replace(desired, pending=bare)
    rest = replace(rest, members=())
    packed = Packed(
        rest=Raw(msgspec.json.encode(rest)), members=columns_of(desired.members), pending=told
    )
    return zlib.compress(msgspec.json.encode(packed), 6)


def unpack(raw: bytes, decode: Callable[[bytes], Any], holder: Callable[..., Any]) -> Any:
    """Read what `pack` wrote: `decode` reads a plain value, `holder` makes a member.

    Raises:
        EventCorrupt: not compressed, cut off, too much of it, or in contradiction to itself.
        msgspec.MsgspecError: not a packed value.
    """
    plain = zlib.decompressobj()
    try:
        text = plain.decompress(raw, PACKED_BYTES_MAX)
    except zlib.error as error:
        raise EventCorrupt(f"no packed value: {error}") from error
    if not plain.eof:
        raise EventCorrupt(f"no packed value: {len(raw)} bytes, cut off or without end")
    packed = _PACKED.decode(text)
    rest = decode(bytes(packed.rest))
    pending = rest.pending
    try:
        members = _holders(packed.members, holder)
        if packed.pending is not None and pending is not None:
            pending = _unpack_pending(packed.pending, pending, members, holder)
    except (KeyError, ValueError) as error:
        raise EventCorrupt(f"no packed value: it contradicts itself: {error!r}") from error
    return replace(rest, members=members, pending=pending)


def _pack_pending(members: Sequence[Any], pending: Any) -> PackedPending:
    before = {each.slot: each for each in members}
    slots = {each.slot for each in pending.members}
    plus = [each for each in pending.members if before.get(each.slot) != each]
    return PackedPending(
        plus=columns_of(plus, dense=False),
        minus=tuple(slot for slot in before if slot not in slots),
        required=_names(pending.required, pending.members),
        joiners=_names(pending.joiners, pending.members),
        givings=_givings(pending),
    )


def _unpack_pending(
    packed: PackedPending, pending: Any, before: Sequence[Any], holder: Callable[..., Any]
) -> Any:
    gone = set(packed.minus)
    held = {each.slot: each for each in before if each.slot not in gone}
    held |= {each.slot: each for each in _holders(packed.plus, holder)}
    members = tuple(held[slot] for slot in sorted(held))
    handovers = pending.handovers
    if packed.givings:
        told = [
            Handover(slot=slot, joiner=held[slot].node, sources=giving.sources, kind=giving.kind)  # type: ignore[arg-type]
            for giving in packed.givings
            for slot in giving.slots
        ]
        handovers = tuple(sorted(told, key=lambda handover: handover.slot))
    return replace(
        pending,
        members=members,
        required=_listed(packed.required, members),
        joiners=_listed(packed.joiners, members),
        handovers=handovers,
    )


# --- members ----------------------------------------------------------------------------------


def columns_of(holders: Sequence[Any], *, dense: bool = True) -> Columns:
    """Holders as columns; `dense` leaves the slots out where they count from 0."""
    slots = tuple(each.slot for each in holders)
    return Columns(
        nodes=tuple(each.node for each in holders),
        incarnations=tuple(each.incarnation for each in holders),
        hosts=tuple(each.host for each in holders),
        ports=tuple(each.port for each in holders),
        transfer_ports=tuple(each.transfer_port for each in holders),
        slots=() if dense and slots == tuple(range(len(slots))) else slots,
    )


def _holders(columns: Columns, holder: Callable[..., Any]) -> tuple[Any, ...]:
    slots: Iterable[int] = columns.slots or range(len(columns.nodes))
    rows = zip(
        slots,
        columns.nodes,
        columns.incarnations,
        columns.hosts,
        columns.ports,
        columns.transfer_ports,
        strict=True,
    )
    return tuple(
        holder(slot=s, node=n, incarnation=i, host=h, port=p, transfer_port=t)
        for s, n, i, h, p, t in rows
    )


# --- names ------------------------------------------------------------------------------------


def _names(names: Sequence[str], members: Sequence[Any]) -> Names:
    in_order = tuple(each.node for each in members)
    if tuple(names) == in_order:
        return Names(all_in_order=True)
    known = set(in_order)
    plus = tuple(name for name in names if name not in known)
    minus = tuple(sorted(known.difference(names)))
    is_sorted = list(names) == sorted(set(names))
    if is_sorted and len(plus) + len(minus) < len(names):
        return Names(all_sorted=True, plus=plus, minus=minus)
    return Names(listed=tuple(names))


def _listed(names: Names, members: Sequence[Any]) -> tuple[str, ...]:
    if names.all_in_order:
        return tuple(each.node for each in members)
    if names.all_sorted:
        known = {each.node for each in members}
        return tuple(sorted((known | set(names.plus)).difference(names.minus)))
    return names.listed


# --- handovers --------------------------------------------------------------------------------


def _givings(pending: Any) -> tuple[Giving, ...]:
    """The handovers by sources, if they are in slot order and each to its slot's member."""
    joiners = {each.slot: each.node for each in pending.members}
    slots = [handover.slot for handover in pending.handovers]
    if slots != sorted(set(slots)):
        return ()
    found: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for handover in pending.handovers:
        if joiners.get(handover.slot) != handover.joiner:
            return ()
        found.setdefault((handover.sources, handover.kind), []).append(handover.slot)
    return tuple(
        Giving(sources=sources, kind=kind, slots=tuple(given))
        for (sources, kind), given in found.items()
    )

"""Bytes <-> facts. JSON, in declaration order, so that equal facts are equal bytes.

Rules of schema evolution, which hold forever:
1. A field is added with a default and never removed, renamed or given another meaning.
2. A tag (class name) is never reused.
3. An unknown field is skipped when folding and survives sequencing: `sequence` splices the
   writer's own bytes into the log, it never re-encodes them.
4. An unknown tag decodes as `UnknownEvent`, is reported, and encodes to the bytes it came from.
5. A codec version above `CODEC_VERSION` (key ``schema`` of the log) is refused as `SchemaTooNew`.
"""

from typing import Final

import msgspec

from statemachine.errors import EventCorrupt, EventTooLarge
from statemachine.events import AnyEvent, Event, Fact, Recorded, UnknownEvent
from statemachine.ids import Incarnation, Position

CODEC_VERSION: Final = 1
"""Version of the layout of values in the log."""

EVENT_BYTES_MAX: Final = 64 * 1024
"""Upper limit of one encoded event (design: one event is at most 64 KiB)."""

TAGS: Final = frozenset(cls.__name__ for cls in Event.__subclasses__())
"""Every tag this release knows."""


class _RawFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    event: msgspec.Raw
    at_ms: int
    writer: str
    incarnation: Incarnation = Incarnation(0)
    counter: int = 0


class _RawRecorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    position: Position
    at_ms: int
    writer: str
    event: msgspec.Raw
    stated_at_ms: int = 0
    incarnation: Incarnation = Incarnation(0)
    counter: int = 0
    decided_from: Position = Position(0)
    policy_version: int = 0


class _Tag(msgspec.Struct, frozen=True):
    type: str


_ENCODER: Final = msgspec.json.Encoder()
_EVENT: Final = msgspec.json.Decoder(AnyEvent)
_FACT: Final = msgspec.json.Decoder(Fact)
_RECORDED: Final = msgspec.json.Decoder(Recorded)
_RAW_FACT: Final = msgspec.json.Decoder(_RawFact)
_RAW_RECORDED: Final = msgspec.json.Decoder(_RawRecorded)
_TAG: Final = msgspec.json.Decoder(_Tag)


def encode_event(event: AnyEvent) -> bytes:
    """Encode one event.

    Raises:
        EventTooLarge: over `EVENT_BYTES_MAX`.
    """
    raw = event.raw if isinstance(event, UnknownEvent) else _ENCODER.encode(event)
    if len(raw) > EVENT_BYTES_MAX:
        kind = type(event).__name__
        raise EventTooLarge(f"{kind} is {len(raw)} bytes; an event is at most {EVENT_BYTES_MAX}")
    return raw


def decode_event(raw: bytes) -> AnyEvent:
    """Decode one event; a tag of a newer version gives `UnknownEvent`.

    Raises:
        EventCorrupt: not an event at all, or a known tag with impossible fields.
    """
    try:
        return _EVENT.decode(raw)
    except msgspec.MsgspecError as error:
        try:
            tag = _TAG.decode(raw).type
        except msgspec.MsgspecError:
            raise EventCorrupt(f"no event: {error}: {raw[:80]!r}") from error
        if tag in TAGS:
            raise EventCorrupt(f"{tag}: {error}: {raw[:80]!r}") from error
        return UnknownEvent(tag=tag, raw=bytes(raw))


def encode_fact(fact: Fact) -> bytes:
    """Encode what a writer puts into its inbox.

    Raises:
        EventTooLarge: the event is over `EVENT_BYTES_MAX`.
    """
    return _ENCODER.encode(
        _RawFact(
            event=msgspec.Raw(encode_event(fact.event)),
            at_ms=fact.at_ms,
            writer=fact.writer,
            incarnation=fact.incarnation,
            counter=fact.counter,
        )
    )


def decode_fact(raw: bytes) -> Fact:
    """Decode what a writer put into its inbox.

    Raises:
        EventCorrupt: not a fact.
    """
    try:
        return _FACT.decode(raw)
    except msgspec.MsgspecError:
        shell = _decode_raw_fact(raw)
    return Fact(
        event=decode_event(bytes(shell.event)),
        at_ms=shell.at_ms,
        writer=shell.writer,
        incarnation=shell.incarnation,
        counter=shell.counter,
    )


def sequence(raw_fact: bytes, position: Position, at_ms: int) -> bytes:
    """Give a fact its place in the log without re-encoding what its writer said.

    Raises:
        EventCorrupt: not a fact.
    """
    shell = _decode_raw_fact(raw_fact)
    return _ENCODER.encode(
        _RawRecorded(
            position=position,
            at_ms=at_ms,
            writer=shell.writer,
            event=shell.event,
            stated_at_ms=shell.at_ms,
            incarnation=shell.incarnation,
            counter=shell.counter,
        )
    )


def encode_recorded(recorded: Recorded) -> bytes:
    """Encode one entry of the log.

    Raises:
        EventTooLarge: the event is over `EVENT_BYTES_MAX`.
    """
    if not isinstance(recorded.event, UnknownEvent):
        raw = _ENCODER.encode(recorded)
        if len(raw) <= EVENT_BYTES_MAX:
            return raw
    return _ENCODER.encode(
        _RawRecorded(
            position=recorded.position,
            at_ms=recorded.at_ms,
            writer=recorded.writer,
            event=msgspec.Raw(encode_event(recorded.event)),
            stated_at_ms=recorded.stated_at_ms,
            incarnation=recorded.incarnation,
            counter=recorded.counter,
            decided_from=recorded.decided_from,
            policy_version=recorded.policy_version,
        )
    )


def decode_recorded(raw: bytes) -> Recorded:
    """Decode one entry of the log; a tag of a newer version gives `UnknownEvent`.

    Raises:
        EventCorrupt: not an entry of a log.
    """
    try:
        return _RECORDED.decode(raw)
    except msgspec.MsgspecError:
        try:
            shell = _RAW_RECORDED.decode(raw)
        except msgspec.MsgspecError as error:
            raise EventCorrupt(f"no entry of a log: {error}: {raw[:80]!r}") from error
    return Recorded(
        position=shell.position,
        at_ms=shell.at_ms,
        writer=shell.writer,
        event=decode_event(bytes(shell.event)),
        stated_at_ms=shell.stated_at_ms,
        incarnation=shell.incarnation,
        counter=shell.counter,
        decided_from=shell.decided_from,
        policy_version=shell.policy_version,
    )


def _decode_raw_fact(raw: bytes) -> _RawFact:
    try:
        return _RAW_FACT.decode(raw)
    except msgspec.MsgspecError as error:
        raise EventCorrupt(f"no fact: {error}: {raw[:80]!r}") from error

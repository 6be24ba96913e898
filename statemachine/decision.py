"""The shape of a decision."""

from msgspec import Struct

from statemachine.events import AnyEvent


class Decision(Struct, frozen=True):
    """Events to append, and the reason in words that an operator can act on."""

    events: tuple[AnyEvent, ...]
    reason: str

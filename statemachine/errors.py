"""The exception tree of the core. A leaf says whose fault it is and what to do next.

ChangeoverError
 +-- UsageError               the caller's input is wrong: correct it; nothing was changed
 |    +-- BadName             a name from outside holds what a key may not hold
 |    +-- BadPolicy           a knob, or the lattice of timeouts, is unsafe
 |    +-- BadLayout           a layout that no fleet could fill
 |    +-- NotInHistory        a position or a time that the log at hand does not reach
 +-- CodecError               bytes that are not what they claim to be
 |    +-- EventTooLarge       one event over 64 KiB: the writer must put less into it
 |    +-- EventCorrupt        a value under our prefix that does not decode: name it, keep it
 |    +-- SchemaTooNew        a codec version that this release does not know: upgrade
 +-- InvariantBroken          a fault of ours: the log tells a story that cannot be
"""


class ChangeoverError(Exception):
    """Root of every error that Changeover raises on purpose."""


class UsageError(ChangeoverError):
    """The caller's input is wrong; nothing was changed. Commands exit with 2."""


class BadName(UsageError):
    """A name from outside that may not become part of a key."""

    def __init__(self, kind: str, value: str) -> None:
        self.kind = kind
        self.value = value
        super().__init__(
            f"{kind} name {value!r}: use 1 to 63 of a-z 0-9 . _ - beginning with a letter or digit"
        )


class BadPolicy(UsageError):
    """A knob out of its range, or two knobs that are unsafe together."""


class BadLayout(UsageError):
    """A layout that is contradictory, such as an axis of size zero."""


class NotInHistory(UsageError):
    """A position or a time that the log at hand does not reach."""


class CodecError(ChangeoverError):
    """Bytes that are not what they claim to be."""


class EventTooLarge(CodecError):
    """One encoded event is over the limit; the writer must put less into it."""


class EventCorrupt(CodecError):
    """A value that does not decode as an event; it is kept where it is and named."""


class SchemaTooNew(CodecError):
    """The log was written by a newer codec version than this release knows."""


class InvariantBroken(ChangeoverError):
    """A numbered safety property does not hold. Always a fault of ours; holds the story.

    Attributes:
        number: which invariant of `statemachine.invariants`.
        position: position of the event after which it was seen broken.
        story: the events that led to it, one line each.
    """

    def __init__(
        self, number: int, title: str, position: int, detail: str, story: tuple[str, ...] = ()
    ) -> None:
        self.number = number
        self.position = position
        self.story = story
        told = "".join(f"\n  {line}" for line in story)
        super().__init__(
            f"invariant {number} ({title}) broken at position {position}: {detail}{told}"
        )

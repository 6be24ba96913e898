"""A campaign: what is done to a live fleet, and when, as its three parties hand it on.

What belongs here: the records alone. The simulator draws a campaign from a scenario, the local
fleet's injector plays it, and the simulator reads what was really done; neither knows the other.
"""

from msgspec import Struct


class Injection(Struct, frozen=True, kw_only=True):
    """One thing that is done, `at_s` seconds after the launch; `away_s` later it is undone.

    `slot` is of drains, `machine` of the others.
    """

    at_s: float
    kind: str
    """``kill``, ``grey`` or ``drain``."""
    machine: int = -1
    slot: int = -1
    factor: float = 1.0
    away_s: float = 0.0


class Campaign(Struct, frozen=True, kw_only=True):
    """What is to be done, as `simctl campaign --json` prints it."""

    name: str
    seed: int
    axes: dict[str, int]
    standbys: int
    seconds: float
    injections: tuple[Injection, ...]


class Played(Struct, frozen=True, kw_only=True):
    """What was done, as `campaign.json` of a run: injections have the times at which it was."""

    launched_at_ms: float
    ended_at_ms: float
    step_ms: float
    steps: int
    injections: tuple[Injection, ...]

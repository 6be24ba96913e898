"""Decide: `decide(state, now_ms, policy) -> Decision`, the only place where a next step is chosen.

A decision is a few events and one reason; `settle` folds it and decides again until nothing
follows, so that a loss and the plan that answers it are one append to the log. Nothing here
performs anything: the shell appends the events, and fencing is part of the same transaction.

Order matters and is a literal list: who is lost, then what is pending, then what is wanted.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from statemachine import events as e
from statemachine.decide_capacity import grow_back
from statemachine.decide_health import (
    answer_acts,
    expire_verdicts,
    judge_sweeps,
    place_leavers,
    start_sweeps,
)
from statemachine.decide_launch import finish_job, launch
from statemachine.decide_lending import lend_standbys
from statemachine.decide_losses import declare_losses, next_deadline
from statemachine.decide_slots import mend_groups, replace_lost
from statemachine.decide_swaps import swap_unwanted, withhold_acts
from statemachine.decide_transitions import advance_transition
from statemachine.decide_triage import ask_third_party, mend
from statemachine.decide_warmups import start_rehearsals
from statemachine.decision import Decision
from statemachine.errors import InvariantBroken
from statemachine.evolve import evolve
from statemachine.ids import Incarnation, NodeId, Position
from statemachine.policy import Policy
from statemachine.state import FleetState

__all__ = ["Decision", "Rule", "Settled", "decide", "next_deadline", "settle"]

Rule = Callable[[FleetState, int, Policy], Decision | None]

RULES: Final[tuple[Rule, ...]] = (
    declare_losses,
    advance_transition,
    replace_lost,
    mend_groups,
    lend_standbys,
    launch,
    finish_job,
    answer_acts,
    place_leavers,
    expire_verdicts,
    ask_third_party,
    judge_sweeps,
    mend,
    swap_unwanted,
    grow_back,
    withhold_acts,
    start_sweeps,
    start_rehearsals,
)

SETTLE_ROUNDS_MAX: Final = 1000
"""Rounds of deciding after which a rule must be contradicting another."""


class Settled(Struct, frozen=True):
    """What followed from a state: the state after, the events to append, and whom they fence."""

    state: FleetState
    recorded: tuple[e.Recorded, ...]
    fences: tuple[tuple[NodeId, Incarnation], ...]


def decide(state: FleetState, now_ms: int, policy: Policy) -> Decision | None:
    """The next step, or None when nothing is to be done until the next event or deadline."""
    for rule in RULES:
        decision = rule(state, now_ms, policy)
        if decision is not None:
            return decision
    return None


def settle(
    state: FleetState,
    now_ms: int,
    writer: str,
    policy: Policy | None = None,
    own: Rule | None = None,
) -> Settled:
    """Decide and fold until nothing follows; positions continue those of the state.

    `policy` overrides the one in the state (for what-if). `own` is a rule of whoever embeds us: it
    is asked before ours, and where it says None, ours decide.

    Raises:
        InvariantBroken: two rules answer each other without end.
    """
    recorded: list[e.Recorded] = []
    fences: list[tuple[NodeId, Incarnation]] = []
    for _ in range(SETTLE_ROUNDS_MAX):
        knobs = policy or state.policy
        decision = own(state, now_ms, knobs) if own is not None else None
        decision = decision or decide(state, now_ms, knobs)
        if decision is None:
            return Settled(state, tuple(recorded), tuple(fences))
        decided_from = state.position
        for event in decision.events:
            entry = e.Recorded(
                position=Position(state.position + 1),
                at_ms=max(now_ms, state.at_ms),
                writer=writer,
                event=event,
                decided_from=decided_from,
                policy_version=state.policy_version,
            )
            state = evolve(state, entry)
            recorded.append(entry)
            if isinstance(event, e.NodeLost):
                fences.append((event.node, event.incarnation))
    last = ", ".join(type(r.event).__name__ for r in recorded[-6:])
    raise InvariantBroken(0, "decisions come to rest", state.position, f"endless: {last}")

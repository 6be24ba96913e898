"""Repeating a guarded write until its outcome is known.

Rule: only transactions that come out right when tried twice are settled here: those whose guards
fail once they were applied, with a `failure` branch that reads enough to tell "applied by an
earlier try" from "refused", and those that overwrite with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio

from controlplane.eventlog.errors import (
    NoSpace,
    OutcomeUnknown,
    PermissionDenied,
    StoreUnavailable,
)
from controlplane.eventlog.store import Compare, Op, Store, TxnResult

WRITE_BUDGET_S = 5.0
"""Seconds during which a guarded write is repeated."""

PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between tries; the last one repeats."""


class Settled(TxnResult, frozen=True):
    """The answer of the last try; `unsure` if an earlier try was not answered."""

    unsure: bool = False


def pause_s(tries: int) -> float:
    """Seconds to wait after the given number of failed tries, counted from 0."""
    return PAUSES_S[min(tries, len(PAUSES_S) - 1)]


async def settle(
    store: Store,
    compares: Sequence[Compare],
    success: Sequence[Op],
    failure: Sequence[Op] = (),
) -> Settled:
    """Try a guarded transaction until it is answered.

    Raises:
        StoreUnavailable: no try can have been applied.
        OutcomeUnknown: some try may have been, and the budget is used up, or the store refuses by
            now, as when it has become full in between.
    """
    give_up_at = anyio.current_time() + WRITE_BUDGET_S
    unknown: OutcomeUnknown | None = None
    tries = 0
    while True:
        try:
            answer = await store.txn(compares, success, failure)
            unsure = unknown is not None
            return Settled(answer.succeeded, answer.revision, answer.responses, unsure=unsure)
        except OutcomeUnknown as lost:
            unknown = lost
            error: OutcomeUnknown | StoreUnavailable = lost
        except StoreUnavailable as refused:
            error = unknown or refused
        except (NoSpace, PermissionDenied) as refused:
            if unknown is None:
                raise
            raise OutcomeUnknown(f"{unknown}; then: {refused}") from refused
        if anyio.current_time() + pause_s(tries) >= give_up_at:
            raise error
        await anyio.sleep(pause_s(tries))
        tries += 1

"""What a log says, as plain values: for `--json`, for pages, and for the lines of a terminal.

What belongs here: shapes that programs may rely on (docs/reference/json.md names every field), and
one reading of a log that gathers all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from controlplane.postmortem.chains import LINKS, Chains
from controlplane.postmortem.checking import checked
from controlplane.postmortem.logfile import LogFile
from statemachine.accounting import Account, Accounts, Ledger
from statemachine.events import Recorded
from statemachine.incidents import Incident
from statemachine.lifecycle import NodeState

PARTS: Final = ("useful", "repeated", "waiting", "transition", "restart")
"""Parts of `accounting_s` that sum to its ``wall``."""


LOOK_EVERY: Final = 4096
"""Entries between two words of progress."""


class Told(Struct, frozen=True, kw_only=True):
    """A log read once."""

    accounts: Accounts
    kinds: dict[str, int]
    chains: Chains


def tell(
    log: LogFile,
    *,
    also: Callable[[Recorded], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Told:
    """Read a log once. `also` hears each entry; `progress` now and then how many there were.

    Raises:
        UsageError: the file cannot be read.
    """
    ledger, kinds = Ledger(), defaultdict[type, int](int)
    chains = Chains(ledger.telling)
    links, hear, follow = LINKS, ledger.hear, chains.hear
    for recorded in checked(log):
        kind = type(recorded.event)
        kinds[kind] += 1
        if kind in links:
            follow(recorded)
        hear(recorded)
        if also is not None:
            also(recorded)
        if progress is not None and ledger.entries % LOOK_EVERY == 0:
            progress(ledger.entries)
    names = {kind.__name__: count for kind, count in kinds.items()}
    return Told(accounts=ledger.told(), kinds=dict(sorted(names.items())), chains=chains)


def account_values(account: Account) -> dict[str, float]:
    """``wall`` and its parts, in seconds."""
    return {name: round(getattr(account, name), 6) for name in ("wall", *PARTS)}


def incident_values(incident: Incident) -> dict[str, Any]:
    """One incident; times in Unix ms, durations in ms, unknown ones null."""
    values = {
        name: msgspec.to_builtins(getattr(incident, name)) for name in incident.__struct_fields__
    }
    values["survivors"] = len(incident.survivors)
    return values


def timeline_values(told: Told, log: LogFile) -> dict[str, Any]:
    """What `timeline --json` prints."""
    accounts = told.accounts
    return {
        **log.as_values(),
        "entries": accounts.entries,
        "first_at_ms": accounts.first_at_ms,
        "last_at_ms": accounts.last_at_ms,
        "incidents": [
            incident_values(each)
            | {"chain": msgspec.to_builtins(told.chains.of(each.job, each.transition))}
            for each in accounts.incidents
        ],
        "accounting_s": account_values(accounts.total),
        "ettr": accounts.total.ettr,
        "idle_standby_node_s": round(accounts.idle_standby_s, 3),
        "jobs": {
            name: {"accounting_s": account_values(job), "ettr": job.ettr}
            for name, job in sorted(accounts.jobs.items())
        },
    }


def replay_values(told: Told, log: LogFile) -> dict[str, Any]:
    """What `replay --json` prints."""
    accounts, state = told.accounts, told.accounts.state
    by_state = Counter(str(state.nodes[name].state) for name in state.nodes)
    done = [each.downtime_ms for each in accounts.incidents if each.downtime_ms is not None]
    return {
        **log.as_values(),
        "entries": accounts.entries,
        "position": state.position,
        "first_at_ms": accounts.first_at_ms,
        "last_at_ms": accounts.last_at_ms,
        "kinds": told.kinds,
        "term": state.term,
        "policy_version": state.policy_version,
        "nodes": len(state.nodes),
        "nodes_by_state": {str(s): by_state[s] for s in NodeState if by_state[s]},
        "jobs": [
            {
                "job": name,
                "epoch": state.jobs[name].epoch,
                "slots": state.jobs[name].layout.slot_count,
                "finished": state.jobs[name].finished,
            }
            for name in sorted(state.jobs)
        ],
        "incidents": len(accounts.incidents),
        "downtime_ms": round(sum(done), 3),
        "ettr": accounts.total.ettr,
    }

"""From what etcd answers to what the caller does next. Pure: codes and texts in, errors out.

The one subtle question is whether a write that got no answer may have been applied. Only three
answers prove that it was not: the call never left this machine, the server knew no leader before
it proposed, or it refused for load. Everything else that is not a plain refusal is unknown.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.eventlog.errors import (
    Compacted,
    EventLogError,
    LeaseLost,
    NoSpace,
    OutcomeUnknown,
    PermissionDenied,
    Refused,
    StoreUnavailable,
    TooLarge,
)

_NEVER_PROPOSED: Final = (
    "failed to connect to all addresses",
    "etcdserver: no leader",
    "etcdserver: too many requests",
)

_RIGHTS_CHANGED: Final = "revision of auth store is old"
"""Users or roles changed between a request's arrival and its turn: it was refused, and may be made
again. etcd calls that an invalid argument, as if asking again could not help."""

_PLAIN: Final[dict[str, type[EventLogError]]] = {
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": PermissionDenied,
    "NOT_FOUND": LeaseLost,
    "INVALID_ARGUMENT": Refused,
    "UNIMPLEMENTED": Refused,
    "FAILED_PRECONDITION": Refused,
}

_TEXTS: Final[tuple[tuple[str, type[EventLogError]], ...]] = (
    ("database space exceeded", NoSpace),
    ("message larger than max", TooLarge),
    ("larger message than max", TooLarge),
    ("request is too large", TooLarge),
    ("too many operations", TooLarge),
    ("user name is empty", PermissionDenied),
    ("permission denied", PermissionDenied),  # maintenance calls say it with code UNKNOWN
)


def to_error(code: str, text: str, where: str, *, is_write: bool) -> EventLogError:
    """Return the error for a gRPC status `code` and its `text`; `where` names the server."""
    for part, kind in _TEXTS:
        if part in text.lower():
            return kind(f"{where}: {text}")
    if _RIGHTS_CHANGED in text:
        return StoreUnavailable(f"{where} changed its users meanwhile: {text}")
    if code == "OUT_OF_RANGE" and "compacted" in text:
        return Compacted(_number(text))
    plain = _PLAIN.get(code)
    if plain is not None:
        return plain(f"{where}: {text}")
    if not is_write or any(part in text for part in _NEVER_PROPOSED):
        return StoreUnavailable(f"{where} does not answer ({code.lower()}): {text}")
    return OutcomeUnknown(f"{where}: the answer to a write was lost ({code.lower()}): {text}")


def _number(text: str) -> int:
    found = re.search(r"\d+", text)
    return int(found.group()) if found else 0

"""From etcd's answers to what the caller does next."""

import pytest

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
from controlplane.eventlog.etcd_errors import to_error

CASES = [
    ("UNAVAILABLE", "etcdserver: leader changed", OutcomeUnknown, StoreUnavailable),
    ("UNAVAILABLE", "Socket closed", OutcomeUnknown, StoreUnavailable),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", OutcomeUnknown, StoreUnavailable),
    ("UNKNOWN", "Stream removed", OutcomeUnknown, StoreUnavailable),
    ("UNAVAILABLE", "etcdserver: request timed out", OutcomeUnknown, StoreUnavailable),
    ("UNAVAILABLE", "failed to connect to all addresses; x", StoreUnavailable, StoreUnavailable),
    ("UNAVAILABLE", "etcdserver: no leader", StoreUnavailable, StoreUnavailable),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", StoreUnavailable, StoreUnavailable),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", NoSpace, NoSpace),
    (
        "RESOURCE_EXHAUSTED",
        "CLIENT: Received message larger than max (9 vs. 4)",
        TooLarge,
        TooLarge,
    ),
    ("INVALID_ARGUMENT", "etcdserver: request is too large", TooLarge, TooLarge),
    ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", TooLarge, TooLarge),
    ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", Refused, Refused),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", PermissionDenied, PermissionDenied),
    ("NOT_FOUND", "etcdserver: requested lease not found", LeaseLost, LeaseLost),
    ("PERMISSION_DENIED", "etcdserver: permission denied", PermissionDenied, PermissionDenied),
    (
        "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision has been compacted",
        Compacted,
        Compacted,
    ),
]


@pytest.mark.parametrize(("code", "text", "write", "read"), CASES)
def test_an_answer_has_one_meaning(
    code: str, text: str, write: type[EventLogError], read: type[EventLogError]
) -> None:
    """Only a write can be of unknown outcome, and only if nothing proves that it was not made."""
    told = to_error(code, text, "etcd at here", is_write=True)
    asked = to_error(code, text, "etcd at here", is_write=False)

    assert (type(told), type(asked)) == (write, read)


def test_a_message_names_the_server_once() -> None:
    """What an operator reads is one line that names the server."""
    message = str(to_error("UNAVAILABLE", "Socket closed", "etcd at a:1", is_write=False))

    assert message == "etcd at a:1 does not answer (unavailable): Socket closed"

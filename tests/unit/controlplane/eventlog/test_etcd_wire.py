"""What we send to etcd, byte by byte, and that nobody else's protobuf notices us."""

from google.protobuf import descriptor_pool

from controlplane.eventlog import etcd_wire as wire
from controlplane.eventlog.store import (
    Change,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    absent,
    created_at,
    exists,
    modified_at,
    value_is,
)

M = wire.MESSAGES


def test_guards_are_etcds_bytes() -> None:
    """Each guard encodes to result, target, key and operand under etcd's field numbers."""
    cases = {
        exists(b"k"): b"\x08\x03\x10\x01\x1a\x01k\x28\x00",
        absent(b"k"): b"\x10\x01\x1a\x01k\x28\x00",
        created_at(b"k", 5): b"\x10\x01\x1a\x01k\x28\x05",
        modified_at(b"k", 5): b"\x10\x02\x1a\x01k\x30\x05",
        value_is(b"k", b"v"): b"\x10\x03\x1a\x01k\x3a\x01v",
    }

    assert {guard: wire.to_compare(guard).SerializeToString() for guard in cases} == cases


def test_operations_are_etcds_bytes() -> None:
    """Each operation encodes as the member of the oneof that etcd expects."""
    cases: dict[Op, bytes] = {
        Put(b"k", b"v", 7): b"\x12\x08\x0a\x01k\x12\x01v\x18\x07",
        Delete(b"k", b"l"): b"\x1a\x06\x0a\x01k\x12\x01l",
        Get(b"k"): b"\x0a\x03\x0a\x01k",
    }

    assert {op: wire.to_op(op).SerializeToString() for op in cases} == cases


def test_a_watch_event_is_read() -> None:
    """A delete event carries its key and the revision of the deletion."""
    raw = b"\x08\x01\x12\x05\x0a\x01k\x18\x09"

    change = wire.from_event(M["Event"].FromString(raw))

    assert change == Change(KeyValue(b"k", b"", 0, 9, 0), deleted=True)


def test_unknown_fields_do_no_harm() -> None:
    """An answer with fields that we leave out, as a newer server sends, is read all the same."""
    known = M["StatusResponse"](version="3.5.16", leader=4)

    read = M["StatusResponse"].FromString(known.SerializeToString() + b"\xfa\x07\x03new")

    assert (read.version, read.leader) == ("3.5.16", 4)


def test_the_pool_is_our_own() -> None:
    """Protobuf's default pool does not know our messages, so no other etcd package clashes."""
    found = descriptor_pool.Default().FindMessageTypeByName

    try:
        known = found("etcdserverpb.TxnRequest").file.name == "changeover/etcd_wire.proto"
    except KeyError:
        known = False

    assert not known

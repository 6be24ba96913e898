"""The part of etcd's v3 wire format that we speak, built in code.

What belongs here: message descriptions, the classes made from them, and the translation to and
from the store port's values. No I/O.

The messages live in a descriptor pool of their own. A process may hold only one description per
name in protobuf's default pool, and training processes bring protobuf users that we do not know;
building the descriptions at run time also frees us from any particular protobuf release. Field
numbers are etcd's; fields that we neither send nor read are left out, which protobuf allows.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from controlplane.eventlog.store import Change, Compare, Delete, Get, KeyValue, Op, Put, Target

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "etcdserverpb"

_SCALARS: Final = {
    "bytes": _Field.TYPE_BYTES,
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "enum": _Field.TYPE_INT32,
}

# One message a key. A field reads "name number type"; a leading `*` on the type means repeated, a
# trailing `?` that presence matters (it is a member of a oneof). Enumerations are sent as int32,
# which is the same on the wire.
_MESSAGES: Final[dict[str, str]] = {
    "ResponseHeader": "cluster_id 1 uint64, member_id 2 uint64, revision 3 int64",
    "KeyValue": "key 1 bytes, create_revision 2 int64, mod_revision 3 int64, version 4 int64,"
    " value 5 bytes, lease 6 int64",
    "Event": "type 1 enum, kv 2 KeyValue",
    "RangeRequest": "key 1 bytes, range_end 2 bytes, limit 3 int64, revision 4 int64,"
    " keys_only 8 bool",
    "RangeResponse": "header 1 ResponseHeader, kvs 2 *KeyValue, more 3 bool, count 4 int64",
    "PutRequest": "key 1 bytes, value 2 bytes, lease 3 int64",
    "PutResponse": "header 1 ResponseHeader",
    "DeleteRangeRequest": "key 1 bytes, range_end 2 bytes",
    "DeleteRangeResponse": "header 1 ResponseHeader, deleted 2 int64",
    "RequestOp": "request_range 1 RangeRequest?, request_put 2 PutRequest?,"
    " request_delete_range 3 DeleteRangeRequest?",
    "ResponseOp": "response_range 1 RangeResponse?, response_put 2 PutResponse?,"
    " response_delete_range 3 DeleteRangeResponse?",
    "Compare": "result 1 enum, target 2 enum, key 3 bytes, version 4 int64?,"
    " create_revision 5 int64?, mod_revision 6 int64?, value 7 bytes?",
    "TxnRequest": "compare 1 *Compare, success 2 *RequestOp, failure 3 *RequestOp",
    "TxnResponse": "header 1 ResponseHeader, succeeded 2 bool, responses 3 *ResponseOp",
    "CompactionRequest": "revision 1 int64, physical 2 bool",
    "CompactionResponse": "header 1 ResponseHeader",
    "WatchCreateRequest": "key 1 bytes, range_end 2 bytes, start_revision 3 int64,"
    " progress_notify 4 bool, fragment 8 bool",
    "WatchRequest": "create_request 1 WatchCreateRequest?",
    "WatchResponse": "header 1 ResponseHeader, watch_id 2 int64, created 3 bool, canceled 4 bool,"
    " compact_revision 5 int64, cancel_reason 6 string, fragment 7 bool, events 11 *Event",
    "LeaseGrantRequest": "TTL 1 int64, ID 2 int64",
    "LeaseGrantResponse": "header 1 ResponseHeader, ID 2 int64, TTL 3 int64, error 4 string",
    "LeaseRevokeRequest": "ID 1 int64",
    "LeaseRevokeResponse": "header 1 ResponseHeader",
    "LeaseKeepAliveRequest": "ID 1 int64",
    "LeaseKeepAliveResponse": "header 1 ResponseHeader, ID 2 int64, TTL 3 int64",
    "DefragmentRequest": "",
    "DefragmentResponse": "header 1 ResponseHeader",
    "AlarmRequest": "action 1 enum, memberID 2 uint64, alarm 3 enum",
    "AlarmMember": "memberID 1 uint64, alarm 2 enum",
    "AlarmResponse": "header 1 ResponseHeader, alarms 2 *AlarmMember",
    "MoveLeaderRequest": "targetID 1 uint64",
    "MoveLeaderResponse": "header 1 ResponseHeader",
    "StatusRequest": "",
    "StatusResponse": "header 1 ResponseHeader, version 2 string, dbSize 3 int64, leader 4 uint64",
    "Permission": "permType 1 enum, key 2 bytes, range_end 3 bytes",
    "UserAddOptions": "no_password 1 bool",
    "AuthEnableRequest": "",
    "AuthEnableResponse": "header 1 ResponseHeader",
    "AuthUserAddRequest": "name 1 string, options 3 UserAddOptions",
    "AuthUserAddResponse": "header 1 ResponseHeader",
    "AuthUserGrantRoleRequest": "user 1 string, role 2 string",
    "AuthUserGrantRoleResponse": "header 1 ResponseHeader",
    "AuthRoleAddRequest": "name 1 string",
    "AuthRoleAddResponse": "header 1 ResponseHeader",
    "AuthRoleGetRequest": "role 1 string",
    "AuthRoleGetResponse": "header 1 ResponseHeader, perm 2 *Permission",
    "AuthRoleGrantPermissionRequest": "name 1 string, perm 2 Permission",
    "AuthRoleGrantPermissionResponse": "header 1 ResponseHeader",
    "AuthRoleRevokePermissionRequest": "role 1 string, key 2 bytes, range_end 3 bytes",
    "AuthRoleRevokePermissionResponse": "header 1 ResponseHeader",
}

# A oneof is named after what etcd calls it; of the fields with `?`, one message has one oneof.
_ONEOF_NAME: Final = "choice"

EVENT_DELETE: Final = 1
ALARM_GET: Final = 0
ALARM_DEACTIVATE: Final = 2
COMPARE_EQUAL: Final = 0
COMPARE_NOT_EQUAL: Final = 3

KV_TXN: Final = "/etcdserverpb.KV/Txn"
KV_RANGE: Final = "/etcdserverpb.KV/Range"
KV_COMPACT: Final = "/etcdserverpb.KV/Compact"
WATCH: Final = "/etcdserverpb.Watch/Watch"
LEASE_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
MAINTENANCE_DEFRAGMENT: Final = "/etcdserverpb.Maintenance/Defragment"
MAINTENANCE_ALARM: Final = "/etcdserverpb.Maintenance/Alarm"
MAINTENANCE_STATUS: Final = "/etcdserverpb.Maintenance/Status"
MAINTENANCE_MOVE_LEADER: Final = "/etcdserverpb.Maintenance/MoveLeader"
AUTH: Final = "/etcdserverpb.Auth/"


def _add_field(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    name, number, kind = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
    if kind.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF_NAME)
        field.oneof_index = 0
    kind = kind.strip("*?")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


def _build() -> dict[str, Any]:
    described = descriptor_pb2.FileDescriptorProto(
        name="changeover/etcd_wire.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = described.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _add_field(message, text.strip())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


MESSAGES: Final[dict[str, Any]] = _build()
"""Message classes by name. Typed `Any`: they do not exist before run time."""


def from_kv(message: Any) -> KeyValue:
    """Read a key from its message."""
    return KeyValue(
        message.key,
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def to_compare(compare: Compare) -> Any:
    """Write a guard as a message."""
    result = COMPARE_NOT_EQUAL if compare.negated else COMPARE_EQUAL
    message = MESSAGES["Compare"](result=result, target=int(compare.target), key=compare.key)
    match compare.target:
        case Target.CREATE_REVISION:
            message.create_revision = compare.operand
        case Target.MOD_REVISION:
            message.mod_revision = compare.operand
        case Target.VALUE:
            message.value = compare.operand
    return message


def to_op(op: Op) -> Any:
    """Write an operation as a message."""
    match op:
        case Put(key, value, lease):
            put = MESSAGES["PutRequest"](key=key, value=value, lease=lease)
            return MESSAGES["RequestOp"](request_put=put)
        case Delete(key, end):
            delete = MESSAGES["DeleteRangeRequest"](key=key, range_end=end)
            return MESSAGES["RequestOp"](request_delete_range=delete)
        case Get(key, end):
            return MESSAGES["RequestOp"](
                request_range=MESSAGES["RangeRequest"](key=key, range_end=end)
            )


def from_event(event: Any) -> Change:
    """Read a change from a watch event."""
    return Change(from_kv(event.kv), event.type == EVENT_DELETE)

"""The event log: the one thing that the control plane and the training side share.

Reading order: `store` (the port) and its two implementations `etcd` and `memory`; `keys`; `log`
(the façade) and behind it `session` (a node), `leadership` (the controller), `reading` and `view`.

What belongs here: facts in, log out, membership, leadership, projections, on any store. What does
not: the meaning of any event.
"""

from controlplane.eventlog.errors import (
    Archived,
    ClientMissing,
    Compacted,
    Deposed,
    EventLogError,
    Fenced,
    HeadMoved,
    LeaseLost,
    LogCorrupt,
    NodeAlreadyAlive,
    NoSpace,
    OutcomeUnknown,
    PermissionDenied,
    Refused,
    Reread,
    Retry,
    Stop,
    StoreUnavailable,
    TooLarge,
    UnsupportedServer,
    WatchLost,
)
from controlplane.eventlog.items import (
    DesiredItem,
    Entry,
    InboxItem,
    NodeItem,
    OrdersItem,
    VitalsItem,
)
from controlplane.eventlog.leadership import BATCH_OPS_MAX, Batch, Leadership
from controlplane.eventlog.log import EventLog
from controlplane.eventlog.opening import CLIENTS, open_store
from controlplane.eventlog.reading import Follower
from controlplane.eventlog.retention import Manifest, Mark
from controlplane.eventlog.session import FACTS_MAX, NodeSession
from controlplane.eventlog.store import ServerInfo, Store
from controlplane.eventlog.view import Delta, View

__all__ = [
    "BATCH_OPS_MAX",
    "CLIENTS",
    "FACTS_MAX",
    "Archived",
    "Batch",
    "ClientMissing",
    "Compacted",
    "Delta",
    "Deposed",
    "DesiredItem",
    "Entry",
    "EventLog",
    "EventLogError",
    "Fenced",
    "Follower",
    "HeadMoved",
    "InboxItem",
    "Leadership",
    "LeaseLost",
    "LogCorrupt",
    "Manifest",
    "Mark",
    "NoSpace",
    "NodeAlreadyAlive",
    "NodeItem",
    "NodeSession",
    "OrdersItem",
    "OutcomeUnknown",
    "PermissionDenied",
    "Refused",
    "Reread",
    "Retry",
    "ServerInfo",
    "Stop",
    "Store",
    "StoreUnavailable",
    "TooLarge",
    "UnsupportedServer",
    "View",
    "VitalsItem",
    "WatchLost",
    "open_store",
]

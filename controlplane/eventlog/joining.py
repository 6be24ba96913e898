"""How a node gets its incarnation.

Theory of operation. `incarnations/` counts; only its last value can be alive, since the next one is
given out in a transaction that compares both: the count unchanged, the key of the last incarnation
gone. So at most one incarnation of a node is alive, however many agents try.
"""

from __future__ import annotations

from controlplane.eventlog.errors import NodeAlreadyAlive
from controlplane.eventlog.holding import revoked_on_failure
from controlplane.eventlog.items import node_reader, read_count
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.lease import LeaseKeeper
from controlplane.eventlog.session import NodeSession, mark
from controlplane.eventlog.settle import settle
from controlplane.eventlog.store import Delete, Get, Put, Store, absent, modified_at
from statemachine.ids import Incarnation, NodeId, check_name


async def join(
    store: Store, keys: Keys, node: NodeId, record: bytes, keeper: LeaseKeeper
) -> NodeSession:
    """Take the next incarnation of a node under a fresh lease. See `EventLog.join`."""
    check_name("node", node)
    async with revoked_on_failure(store, keeper.lease):
        taken = None
        while taken is None:
            taken = await _take_next(store, keys, node, record, keeper.lease)
    incarnation, token = taken
    return NodeSession(
        store, keys, node=node, incarnation=incarnation, record=record, keeper=keeper, token=token
    )


async def _take_next(
    store: Store, keys: Keys, node: NodeId, record: bytes, lease: int
) -> tuple[Incarnation, int] | None:
    """Try once; return incarnation and token, or None if another came and went meanwhile."""
    counted = (await store.range(keys.incarnations(node))).kvs
    last = read_count(node, counted)
    taken = Incarnation(last + 1)
    result = await settle(
        store,
        (
            modified_at(keys.incarnations(node), counted[0].mod_revision if counted else 0),
            absent(keys.node(node, last)),
        ),
        (
            Put(keys.incarnations(node), b"%d" % taken),
            Put(keys.node(node, taken), record, lease),
            Put(keys.counter(node), mark(taken, 0, b"")),
            Delete(*keys.fenced_all(node)),
        ),
        (Get(*keys.node_all(node)),),
    )
    if result.succeeded:
        return taken, result.revision
    read = node_reader(keys)
    for kv in result.responses[0]:
        alive = read(kv)
        if alive is None:
            continue
        if kv.lease != lease:
            raise NodeAlreadyAlive(node, alive.incarnation)
        return alive.incarnation, kv.create_revision  # an earlier, unanswered try of ours
    return None

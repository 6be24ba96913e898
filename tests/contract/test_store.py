"""The store port: what the log may rely on, whichever store it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from controlplane.eventlog import Compacted, LeaseLost, Refused, TooLarge
from controlplane.eventlog.store import (
    REQUEST_BYTES_MAX,
    TXN_OPS_MAX,
    Compare,
    Delete,
    Get,
    Put,
    Store,
    absent,
    created_at,
    exists,
    modified_at,
    prefix_end,
    value_is,
)

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from tests.contract.conftest import Eventually


async def put(store: Store, key: bytes, value: bytes = b"v", lease: int = 0) -> int:
    """Write a key; return the revision."""
    return (await store.txn((), (Put(key, value, lease),))).revision


async def test_a_key_is_created_once(store: Store, root: bytes) -> None:
    """Of two creations of one key, guarded by its absence, the second is refused."""
    key = root + b"a"

    first = await store.txn((absent(key),), (Put(key, b"1"),))
    second = await store.txn((absent(key),), (Put(key, b"2"),), (Get(key),))

    assert first.succeeded
    assert not second.succeeded
    assert second.responses[0][0].value == b"1"


async def test_every_guard_tells_true_from_false(store: Store, root: bytes) -> None:
    """Each kind of guard holds exactly when it should, on a live key and on a missing one."""
    key, missing = root + b"a", root + b"b"
    created = await put(store, key, b"1")
    modified = await put(store, key, b"2")
    cases: list[tuple[Compare, bool]] = [
        (exists(key), True),
        (exists(missing), False),
        (absent(key), False),
        (absent(missing), True),
        (created_at(key, created), True),
        (created_at(key, modified), False),
        (modified_at(key, modified), True),
        (modified_at(key, created), False),
        (modified_at(missing, 0), True),
        (value_is(key, b"2"), True),
        (value_is(key, b"1"), False),
        (value_is(missing, b""), False),
    ]

    results = [(await store.txn((guard,), ())).succeeded for guard, _ in cases]

    assert results == [expected for _, expected in cases]


async def test_a_recreated_key_is_another_key(store: Store, root: bytes) -> None:
    """Deleting and re-creating a key ends every guard on its old create revision."""
    key = root + b"a"
    old = await put(store, key)
    await store.txn((), (Delete(key),))
    new = await put(store, key)

    result = await store.txn((created_at(key, old),), (), (Get(key),))

    assert not result.succeeded
    kv = result.responses[0][0]
    assert (kv.create_revision, kv.mod_revision, kv.version) == (new, new, 1)


async def test_versions_count_writes(store: Store, root: bytes) -> None:
    """A key knows when it was created, when it was last written, and how often."""
    key = root + b"a"
    created = await put(store, key, b"1")
    modified = await put(store, key, b"2")

    kv = (await store.range(key)).kvs[0]

    assert (kv.value, kv.create_revision, kv.mod_revision, kv.version) == (
        b"2",
        created,
        modified,
        2,
    )


async def test_a_transaction_is_one_revision(store: Store, root: bytes) -> None:
    """All that a transaction writes shares one revision, and a refused one makes none."""
    result = await store.txn((), (Put(root + b"a", b""), Put(root + b"b", b"")))
    refused = await store.txn((exists(root + b"z"),), (Put(root + b"c", b""),))

    kvs = (await store.range(root, prefix_end(root))).kvs

    assert [kv.mod_revision for kv in kvs] == [result.revision] * 2
    assert not refused.succeeded


async def test_a_range_is_ordered_and_half_open(store: Store, root: bytes) -> None:
    """A range holds its start, not its end, in order; a limit says that there is more."""
    for name in (b"c", b"a", b"b", b"d"):
        await put(store, root + name)

    whole = await store.range(root + b"a", root + b"d")
    cut = await store.range(root + b"a", root + b"d", limit=2, keys_only=True)

    assert [kv.key for kv in whole.kvs] == [root + b"a", root + b"b", root + b"c"]
    assert not whole.more
    assert [(kv.key, kv.value) for kv in cut.kvs] == [(root + b"a", b""), (root + b"b", b"")]
    assert cut.more


async def test_the_past_can_be_read(store: Store, root: bytes) -> None:
    """A range at an older revision shows what stood there then, deleted keys included."""
    first = await put(store, root + b"a", b"1")
    await put(store, root + b"a", b"2")
    await store.txn((), (Delete(root + b"a"),))

    then = await store.range(root, prefix_end(root), revision=first)
    now = await store.range(root, prefix_end(root))

    assert [kv.value for kv in then.kvs] == [b"1"]
    assert now.kvs == ()


async def test_a_range_delete_takes_the_range(store: Store, root: bytes) -> None:
    """Deleting `[start, end)` leaves what lies outside."""
    for name in (b"a", b"b", b"c"):
        await put(store, root + name)

    await store.txn((), (Delete(root + b"a", root + b"c"),))

    assert [kv.key for kv in (await store.range(root, prefix_end(root))).kvs] == [root + b"c"]


async def test_limits_are_kept(store: Store, root: bytes) -> None:
    """A transaction holds 128 operations and 1.5 MiB, not more, and a refusal writes nothing."""
    ops = [Put(root + b"%d" % number, b"") for number in range(TXN_OPS_MAX + 1)]

    assert (await store.txn((), ops[:-1])).succeeded
    with pytest.raises(TooLarge):
        await store.txn((), ops)
    with pytest.raises(TooLarge):
        await store.txn((), (Put(root + b"big", bytes(REQUEST_BYTES_MAX + 1)),))

    assert (await store.range(root + b"big")).kvs == ()


async def test_a_malformed_transaction_is_refused(store: Store, root: bytes) -> None:
    """Writing a key twice, or writing and deleting it, in one transaction is refused whole."""
    key = root + b"a"

    with pytest.raises(Refused):
        await store.txn((), (Put(key, b"1"), Put(key, b"2")))
    with pytest.raises(Refused):
        await store.txn((), (Put(key, b"1"), Delete(root, prefix_end(root))))

    assert (await store.range(key)).kvs == ()


async def test_a_watch_misses_nothing(store: Store, root: bytes) -> None:
    """A watch from a past revision delivers what happened since, then what happens, in order."""
    first = await put(store, root + b"a", b"1")
    await put(store, root + b"b", b"2")
    seen: list[tuple[bytes, bytes, bool]] = []

    async with store.watch(root, prefix_end(root), first) as batches:
        await put(store, root + b"a", b"3")
        await store.txn((), (Delete(root + b"b"),))
        with anyio.fail_after(5):
            async for batch in batches:
                seen += [(each.kv.key, each.kv.value, each.deleted) for each in batch.changes]
                if len(seen) == 4:
                    break

    assert seen == [
        (root + b"a", b"1", False),
        (root + b"b", b"2", False),
        (root + b"a", b"3", False),
        (root + b"b", b"", True),
    ]


async def test_a_watch_keeps_to_its_range(store: Store, root: bytes) -> None:
    """A watch of one key is not told of its neighbours."""
    start = await put(store, root + b"a0")

    async with store.watch(root + b"a", b"", start) as batches:
        await put(store, root + b"a1")
        await put(store, root + b"a", b"mine")
        with anyio.fail_after(5):
            batch = await anext(batches)

    assert [each.kv.value for each in batch.changes] == [b"mine"]


async def test_compaction_takes_the_past_only(store: Store, root: bytes) -> None:
    """After compaction live keys are readable; reading or watching the past says Compacted."""
    first = await put(store, root + b"a", b"1")
    last = await put(store, root + b"a", b"2")

    await store.compact(last)
    await store.compact(last)

    assert (await store.range(root + b"a")).kvs[0].value == b"2"
    with pytest.raises(Compacted):
        await store.range(root + b"a", revision=first)
    with pytest.raises(Compacted) as caught:
        async with store.watch(root + b"a", b"", first) as batches:
            await anext(batches)
    assert caught.value.revision >= last


async def test_a_revoked_lease_takes_its_keys(store: Store, root: bytes) -> None:
    """Revoking a lease deletes what hangs on it, and only that; doing it twice is no error."""
    lease = await store.grant(30)
    start = await put(store, root + b"bound", lease=lease)
    await put(store, root + b"free")

    async with store.watch(root, prefix_end(root), start + 2) as batches:
        await store.revoke(lease)
        with anyio.fail_after(5):
            batch = await anext(batches)
    await store.revoke(lease)

    assert [(each.kv.key, each.deleted) for each in batch.changes] == [(root + b"bound", True)]
    assert [kv.key for kv in (await store.range(root, prefix_end(root))).kvs] == [root + b"free"]


async def test_a_lease_runs_out(store: Store, root: bytes, eventually: Eventually) -> None:
    """A lease that nobody renews ends: its keys go, it cannot be renewed, nor written under."""
    lease = await store.grant(1)
    await put(store, root + b"a", lease=lease)

    async def gone() -> bool:
        return not (await store.range(root + b"a")).kvs

    await eventually(gone)

    assert await store.keep_alive(lease) == 0.0
    with pytest.raises(LeaseLost):
        await put(store, root + b"b", lease=lease)


async def test_a_waiting_watch_sees_a_lease_end(store: Store, root: bytes) -> None:
    """A watch that was waiting before a lease was taken is told when that lease runs out."""
    start = await put(store, root + b"other")
    seen: list[tuple[bytes, bool]] = []

    async def wait(*, task_status: TaskStatus[None]) -> None:
        async with store.watch(root, prefix_end(root), start + 1) as batches:
            task_status.started()
            async for batch in batches:
                seen.extend((each.kv.key, each.deleted) for each in batch.changes)
                if len(seen) == 2:
                    return

    with anyio.fail_after(8):
        async with anyio.create_task_group() as group:
            await group.start(wait)
            await anyio.sleep(0.05)
            await put(store, root + b"a", lease=await store.grant(1))

    assert seen == [(root + b"a", False), (root + b"a", True)]


async def test_a_renewed_lease_lives(store: Store, root: bytes) -> None:
    """Renewing a lease of 1 s keeps its key for longer than that, and tells what is left."""
    lease = await store.grant(1)
    await put(store, root + b"a", lease=lease)

    for _ in range(6):
        await anyio.sleep(0.3)
        assert await store.keep_alive(lease) >= 1.0

    assert (await store.range(root + b"a")).kvs != ()


async def test_a_key_can_change_its_lease(store: Store, root: bytes) -> None:
    """A key overwritten under another lease outlives its first one."""
    first, second = await store.grant(30), await store.grant(30)
    await put(store, root + b"a", lease=first)
    await put(store, root + b"a", lease=second)

    await store.revoke(first)

    assert (await store.range(root + b"a")).kvs[0].lease == second


async def test_the_server_says_what_it_is(store: Store) -> None:
    """A store tells its version, its size, and that there is a leader."""
    info = await store.server_info()

    assert info.version
    assert info.leader
    assert info.revision >= 1

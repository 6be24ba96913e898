"""The store port on etcd v3, over `grpc.aio`.

What belongs here: channels, calls, deadlines, and the translation of messages. What does not:
keys, events, repeating of writes, resuming of watches (see `store` for why).

Theory of operation.
- Every call has a deadline; a call without one hangs as long as a frozen server does. A proposal
  that is sent while the cluster has no leader is dropped in silence, so the deadline of one try is
  also the time a fail-over takes.
- gRPC notices a dead peer by pings. Of its two timeouts core obeys only `http2.ping_timeout_ms`;
  and etcd hangs up on clients that ping more often than every five seconds.
- Every watch has a stream of its own: etcd could starve watches that share one. `hasleader` makes
  a member that is cut off from its cluster end the stream instead of falling silent. The position
  of a watch is the last event's revision; a header's revision runs ahead during catch-up.
- Bulk reads have a channel, that is a TCP connection, of their own: big answers delayed small ones.
  Channels of one process share connections unless told not to.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is raised, not printed as well

import grpc
import grpc.aio

from controlplane.eventlog import etcd_wire as wire
from controlplane.eventlog.errors import (
    Compacted,
    LeaseLost,
    Refused,
    StoreUnavailable,
    WatchLost,
)
from controlplane.eventlog.etcd_errors import to_error
from controlplane.eventlog.etcd_url import Endpoints, TlsFiles, resolve
from controlplane.eventlog.store import (
    Change,
    Compare,
    Op,
    RangeResult,
    ServerInfo,
    TxnResult,
    Watch,
    WatchBatch,
)

T = TypeVar("T")

TRY_S: Final = 1.0
"""Seconds one try of a call may take."""

REPLAY_TRY_S: Final = 10.0
"""Seconds one window of a bulk read may take."""

RECLAIM_TRY_S: Final = 120.0
"""Seconds that giving back the space of one member may take."""

READ_BUDGET_S = 5.0
"""Seconds during which a read repeats itself."""

GREETING_BUDGET_S: Final = 2.5
"""Seconds during which the question who the server is repeats itself."""

_PAUSE_S: Final = (0.05, 0.1, 0.2, 0.4)

_CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.http2.ping_timeout_ms", 2_500),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # which is how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_M: Final = wire.MESSAGES


def channel_terms(
    endpoints: Endpoints, tls: TlsFiles | None
) -> tuple[list[tuple[str, Any]], grpc.ChannelCredentials | None]:
    """Options and credentials (None: without TLS) of a channel.

    Raises ValueError for TLS files that cannot be read.
    """
    options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
    host, port = endpoints.hosts[0]
    if not endpoints.tls:
        return [*options, ("grpc.default_authority", f"{host}:{port}")], None
    files = tls or TlsFiles()
    ca, cert, key = files.read()
    options.append(("grpc.ssl_target_name_override", files.server_name or host))
    return options, grpc.ssl_channel_credentials(ca, key, cert)


async def _answer(call: Any, waiting: Awaitable[T], where: str, *, is_write: bool = False) -> T:
    """Wait for a call's answer; raise errors of ours.

    gRPC answers a cancelled wait with a cancellation of its own making, which no cancel scope takes
    for its own; so the wait that can be cancelled is not gRPC's.
    """
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        call.cancel()
        task.cancel()
        raise
    if task.cancelled():
        raise StoreUnavailable(f"{where}: this store was closed")
    try:
        return task.result()
    except grpc.aio.AioRpcError as error:
        text = error.details() or ""
        raise to_error(error.code().name, text, where, is_write=is_write) from error
    except asyncio.InvalidStateError as error:
        raise StoreUnavailable(f"{where}: the stream ended at once") from error


class _WatchStream:
    """The answers of one watch stream, fragments put together."""

    def __init__(self, call: Any, where: str) -> None:
        self._call = call
        self._where = where

    async def open(self, create: Any) -> None:
        """Send the request and wait until the server has made the watch."""
        with anyio.move_on_after(2 * TRY_S):
            request = _M["WatchRequest"](create_request=create)
            try:
                await _answer(self._call, self._call.write(request), self._where)
            except StoreUnavailable as error:
                raise WatchLost(str(error)) from error
            first = await self._next_response()
            if not first.created:
                raise WatchLost(f"{self._where}: a watch began without being created")
            return
        raise WatchLost(f"{self._where} did not accept a watch within {2 * TRY_S:g} s")

    async def _next_response(self) -> Any:
        """Read one message; raise if it, or the stream, ends the watch."""
        try:
            response = await _answer(self._call, self._call.read(), self._where)
            if response is grpc.aio.EOF:
                raise WatchLost(f"{self._where} closed a watch")
            if response.compact_revision:
                raise Compacted(response.compact_revision)
            if response.canceled:
                reason = response.cancel_reason
                code = "PERMISSION_DENIED" if "permission" in reason else "UNAVAILABLE"
                raise to_error(code, reason, self._where, is_write=False)
        except StoreUnavailable as error:
            raise WatchLost(str(error)) from error
        return response

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    async def __anext__(self) -> WatchBatch:
        changes: list[Change] = []
        while True:
            response = await self._next_response()
            changes.extend(map(wire.from_event, response.events))
            if not response.fragment:
                break
        revision = changes[-1].kv.mod_revision if changes else response.header.revision
        return WatchBatch(revision, tuple(changes))


class EtcdStore:
    """The store port on one etcd cluster. Make it inside a running event loop."""

    def __init__(self, endpoints: Endpoints, target: str, tls: TlsFiles | None = None) -> None:
        """Prepare channels to a gRPC target; nothing is sent yet. See `opening.open_store`.

        Raises ValueError for TLS files that cannot be read.
        """
        self._endpoints = endpoints
        self._where = str(endpoints)
        self._tls = tls
        self._channel = self._open(target, tls)
        self._replay_channel = self._open(target, tls)
        self._txn = self._unary(self._channel, wire.KV_TXN, "TxnResponse")
        self._range = self._unary(self._channel, wire.KV_RANGE, "RangeResponse")
        self._replay = self._unary(self._replay_channel, wire.KV_RANGE, "RangeResponse")
        self._compact = self._unary(self._channel, wire.KV_COMPACT, "CompactionResponse")
        self._grant = self._unary(self._channel, wire.LEASE_GRANT, "LeaseGrantResponse")
        self._revoke = self._unary(self._channel, wire.LEASE_REVOKE, "LeaseRevokeResponse")
        self._status = self._unary(self._channel, wire.MAINTENANCE_STATUS, "StatusResponse")
        self._keep_alive = self._stream(wire.LEASE_KEEP_ALIVE, "LeaseKeepAliveResponse")
        self._watch = self._stream(wire.WATCH, "WatchResponse")

    def _open(self, target: str, tls: TlsFiles | None) -> grpc.aio.Channel:
        options, credentials = channel_terms(self._endpoints, tls)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    @staticmethod
    def _unary(channel: grpc.aio.Channel, path: str, answer: str) -> Any:
        return channel.unary_unary(
            path,
            request_serializer=_serialize,
            response_deserializer=_M[answer].FromString,
        )

    def _stream(self, path: str, answer: str) -> Any:
        return self._channel.stream_stream(
            path,
            request_serializer=_serialize,
            response_deserializer=_M[answer].FromString,
        )

    def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except grpc.aio.UsageError as error:
            raise StoreUnavailable(f"{self._where}: this store was closed") from error

    async def _once(self, method: Any, request: Any, try_s: float, *, is_write: bool) -> Any:
        call = self._call(method, request, timeout=try_s)
        return await _answer(call, call, self._where, is_write=is_write)

    async def _read(
        self, method: Any, request: Any, try_s: float = TRY_S, budget_s: float | None = None
    ) -> Any:
        """Repeat a call that changes nothing, or nothing more when repeated, within a budget."""
        budget_s = READ_BUDGET_S if budget_s is None else budget_s
        give_up_at = time.monotonic() + max(budget_s, try_s)
        tries = 0
        while True:
            try:
                return await self._once(method, request, try_s, is_write=False)
            except StoreUnavailable:
                if time.monotonic() >= give_up_at:
                    raise
            await anyio.sleep(_PAUSE_S[min(tries, len(_PAUSE_S) - 1)])
            tries += 1

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()
    ) -> TxnResult:
        """See `Store.txn`."""
        request = _M["TxnRequest"](
            compare=map(wire.to_compare, compares),
            success=map(wire.to_op, success),
            failure=map(wire.to_op, failure),
        )
        answer = await self._once(self._txn, request, TRY_S, is_write=True)
        return TxnResult(
            answer.succeeded,
            answer.header.revision,
            tuple(tuple(map(wire.from_kv, each.response_range.kvs)) for each in answer.responses),
        )

    async def range(
        self,
        start: bytes,
        end: bytes = b"",
        *,
        revision: int = 0,
        limit: int = 0,
        keys_only: bool = False,
        replay: bool = False,
    ) -> RangeResult:
        """See `Store.range`."""
        request = _M["RangeRequest"](
            key=start, range_end=end, revision=revision, limit=limit, keys_only=keys_only
        )
        method, try_s = (self._replay, REPLAY_TRY_S) if replay else (self._range, TRY_S)
        answer = await self._read(method, request, try_s)
        return RangeResult(
            answer.header.revision, tuple(map(wire.from_kv, answer.kvs)), answer.more
        )

    def watch(self, start: bytes, end: bytes, from_revision: int) -> Watch:
        """See `Store.watch`."""
        if from_revision < 1:
            msg = f"a watch starts at a definite revision, not {from_revision}"
            raise ValueError(msg)
        return self._watching(
            _M["WatchCreateRequest"](
                key=start,
                range_end=end,
                start_revision=from_revision,
                progress_notify=True,
                fragment=True,
            )
        )

    @asynccontextmanager
    async def _watching(self, create: Any) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        call = self._call(self._watch, metadata=(("hasleader", "true"),))
        stream = _WatchStream(call, self._where)
        try:
            await stream.open(create)
            yield stream
        finally:
            call.cancel()

    async def grant(self, ttl_s: float) -> int:
        """See `Store.grant`. etcd counts whole seconds and may give more than was asked for."""
        request = _M["LeaseGrantRequest"](TTL=math.ceil(ttl_s))
        answer = await self._read(self._grant, request)  # a lease nobody knows of just runs out
        if answer.error:
            raise Refused(f"{self._where}: {answer.error}")
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        call = self._call(self._keep_alive, timeout=TRY_S)
        request = _M["LeaseKeepAliveRequest"](ID=lease)
        try:
            await _answer(call, call.write(request), self._where)
            answer = await _answer(call, call.read(), self._where)
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise StoreUnavailable(f"{self._where} closed the renewal of a lease")
        return float(answer.TTL)

    async def revoke(self, lease: int) -> None:
        """See `Store.revoke`."""
        try:
            await self._read(self._revoke, _M["LeaseRevokeRequest"](ID=lease))
        except LeaseLost:
            return

    async def server_info(self) -> ServerInfo:
        """See `Store.server_info`."""
        request = _M["StatusRequest"]()
        answer = await self._read(self._status, request, budget_s=GREETING_BUDGET_S)
        return ServerInfo(
            version=answer.version,
            db_bytes=answer.dbSize,
            member=answer.header.member_id,
            leader=answer.leader,
            revision=answer.header.revision,
        )

    async def compact(self, revision: int) -> None:
        """See `Store.compact`."""
        try:
            await self._read(self._compact, _M["CompactionRequest"](revision=revision))
        except Compacted:
            return

    async def reclaim(self) -> None:
        """See `Store.reclaim`."""
        for host in self._endpoints.hosts:
            member = Endpoints((host,), self._endpoints.tls)
            target = await anyio.to_thread.run_sync(resolve, member)
            channel = self._open(target, self._tls)
            try:
                await _reclaim(channel, str(member))
            finally:
                await channel.close()

    async def ask(self, path: str, request: Any, answer: str) -> Any:
        """Make a call that is not of the port, for whoever administers etcd. Tried once."""
        return await self._once(
            self._unary(self._channel, path, answer), request, TRY_S, is_write=True
        )

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._channel.close()
        await self._replay_channel.close()


async def _reclaim(channel: grpc.aio.Channel, where: str) -> None:
    """Defragment one member, then lift every alarm that it knows of."""

    async def ask(path: str, answer: str, request: Any, try_s: float) -> Any:
        method = EtcdStore._unary(channel, path, answer)  # noqa: SLF001 - our own class
        call = method(request, timeout=try_s)
        return await _answer(call, call, where, is_write=True)

    defragment = _M["DefragmentRequest"]()
    await ask(wire.MAINTENANCE_DEFRAGMENT, "DefragmentResponse", defragment, RECLAIM_TRY_S)
    raised = await ask(wire.MAINTENANCE_ALARM, "AlarmResponse", _M["AlarmRequest"](), TRY_S)
    for alarm in raised.alarms:
        lift = _M["AlarmRequest"](
            action=wire.ALARM_DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm
        )
        await ask(wire.MAINTENANCE_ALARM, "AlarmResponse", lift, TRY_S)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())

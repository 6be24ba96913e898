"""The store port on the `etcd3` package (`client = "etcd3"`, extra `changeover[etcd3]`).

What belongs here: everything that this package needs so that it loses nothing. What is sent, what
an answer means and what may be repeated is `etcd.EtcdStore`'s; only the way there differs. The
package written against is `cslab-etcd3` 0.12, the maintained one of that module name.

Theory of operation.
- It is blocking. Unary calls go through its stubs as futures, so that no thread waits for one, a
  cancelled one is cancelled, and its own 300 s refusal after one failed call never begins.
- All its watches share one stream and one thread, and a watch whose stream broke does not come
  back; so every watch here has a client, that is a connection, of its own, closed with the watch.
- It takes no notice of a watch that the server cancels (an expired token, a missing right): such a
  watch would wait for ever. `_Watcher` reads that; it also asks for `hasleader`.
- Its callback must not be slower than its thread can bear: it waits while `_BACKLOG` answers are
  not yet taken, and the connection's flow control does the rest.
Missing in the package: fragments; a catch-up of more than 64 MiB in one answer ends the watch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import etcd3
import etcd3.events
import etcd3.exceptions
import etcd3.watch
import grpc
from anyio import to_thread
from etcd3 import etcdrpc

from controlplane.eventlog.errors import (
    Compacted,
    EventLogError,
    Refused,
    StoreUnavailable,
    WatchLost,
)
from controlplane.eventlog.etcd import TRY_S, EtcdStore, channel_terms
from controlplane.eventlog.etcd_errors import to_error
from controlplane.eventlog.etcd_url import Endpoints, TlsFiles
from controlplane.eventlog.store import Change, KeyValue, WatchBatch

_BACKLOG: Final = 64
"""Answers of one watch that may wait to be taken."""

_Method = tuple[Callable[[], Any], Any]
"""Gives the call, and the class of its request."""


class _Watcher(etcd3.watch.Watcher):  # type: ignore[misc]
    """The package's watcher; hears of cancellation, and wants a member that has a leader."""

    def __init__(self, stub: Any, where: str) -> None:
        super().__init__(stub, timeout=2 * TRY_S, metadata=(("hasleader", "true"),))
        self._where = where

    def _handle_response(self, rs: Any) -> None:
        if not rs.canceled or rs.compact_revision:
            super()._handle_response(rs)
            return
        code = "PERMISSION_DENIED" if "permission" in rs.cancel_reason else "UNAVAILABLE"
        error = to_error(code, rs.cancel_reason, self._where, is_write=False)
        with self._lock:
            if self._new_watch:
                self._new_watch.err = error
                self._new_watch_cond.notify_all()
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback(error)


class _Answers:
    """From the watch's thread to the event loop: what it said, at most `_BACKLOG` at a time."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._room = threading.Semaphore(_BACKLOG)
        self._is_closed = False

    def put(self, answer: Any) -> None:
        """Take an answer or an error; called in the watch's thread, which may have to wait."""
        self._room.acquire()
        if not self._is_closed:
            with suppress(RuntimeError):  # the loop has ended before the thread
                self._loop.call_soon_threadsafe(self._queue.put_nowait, answer)

    def close(self) -> None:
        """Let the thread go."""
        self._is_closed = True
        self._room.release()

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    async def __anext__(self) -> WatchBatch:
        answer = await self._queue.get()
        self._room.release()
        if not isinstance(answer, etcd3.watch.WatchResponse):
            raise watch_error(answer, self._where)
        changes = tuple(map(_change, answer.events))
        revision = changes[-1].kv.mod_revision if changes else answer.header.revision
        return WatchBatch(revision, changes)


def watch_error(error: object, where: str) -> EventLogError:
    """Return the error that ends a watch."""
    match error:
        case etcd3.exceptions.RevisionCompactedError():
            return Compacted(int(error.compacted_revision))
        case StoreUnavailable():
            return WatchLost(str(error))
        case EventLogError():
            return error
        case grpc.RpcError():
            found = _to_error(error, where, is_write=False)
            return WatchLost(str(found)) if isinstance(found, StoreUnavailable) else found
        case etcd3.exceptions.WatchTimedOut():
            return WatchLost(f"{where} did not accept a watch within {2 * TRY_S:g} s")
        case _:
            return WatchLost(f"{where} closed a watch")


def _to_error(error: Any, where: str, *, is_write: bool) -> EventLogError:
    return to_error(error.code().name, error.details() or "", where, is_write=is_write)


def _change(event: Any) -> Change:
    kv = KeyValue(
        event.key,
        event.value,
        event.create_revision,
        event.mod_revision,
        event.version,
        event.lease,
    )
    return Change(kv, isinstance(event, etcd3.events.DeleteEvent))


class Etcd3Store(EtcdStore):
    """The store port on one etcd cluster, spoken by the `etcd3` package."""

    def __init__(self, endpoints: Endpoints, target: str, tls: TlsFiles | None = None) -> None:
        """Prepare clients; nothing is sent yet. See `opening.open_store`.

        Raises ValueError for TLS files that cannot be read.
        """
        self._endpoints = endpoints
        self._where = str(endpoints)
        self._tls = tls
        self._options, self._credentials = channel_terms(endpoints, tls)
        self._target = target
        client, replay = self._new_client(), self._new_client()
        self._clients = [client, replay]
        self._txn = _unary(lambda: client.kvstub.Txn, etcdrpc.TxnRequest)
        self._range = _unary(lambda: client.kvstub.Range, etcdrpc.RangeRequest)
        self._replay = _unary(lambda: replay.kvstub.Range, etcdrpc.RangeRequest)
        self._compact = _unary(lambda: client.kvstub.Compact, etcdrpc.CompactionRequest)
        self._grant = _unary(lambda: client.leasestub.LeaseGrant, etcdrpc.LeaseGrantRequest)
        self._revoke = _unary(lambda: client.leasestub.LeaseRevoke, etcdrpc.LeaseRevokeRequest)
        self._status = _unary(lambda: client.maintenancestub.Status, etcdrpc.StatusRequest)

    def _new_client(self) -> Any:
        """All endpoints are one target of gRPC's; the package itself fails over on request only."""
        host, _, port = self._target.rpartition(":")
        endpoint = etcd3.Endpoint(
            host,
            port,
            secure=self._credentials is not None,
            creds=self._credentials,
            time_retry=0.0,
            opts=self._options,
        )
        return etcd3.MultiEndpointEtcd3Client(endpoints=[endpoint], timeout=TRY_S)

    async def _once(self, method: Any, request: Any, try_s: float, *, is_write: bool) -> Any:
        call, kind = method
        try:
            asked = kind.FromString(request.SerializeToString())
            return await self._outcome(call().future(asked, timeout=try_s), is_write=is_write)
        except ValueError as error:
            raise StoreUnavailable(f"{self._where}: this store was closed") from error

    async def _outcome(self, future: Any, *, is_write: bool) -> Any:
        """Wait for a future of gRPC's threads."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(done.set)

        future.add_done_callback(tell)
        try:
            await done.wait()
        except asyncio.CancelledError:
            future.cancel()
            raise
        try:
            return future.result()
        except grpc.FutureCancelledError as error:
            raise StoreUnavailable(f"{self._where}: this store was closed") from error
        except grpc.RpcError as error:
            raise _to_error(error, self._where, is_write=is_write) from error

    async def keep_alive(self, lease: int) -> float:
        """See `Store.keep_alive`."""
        try:
            stub = self._clients[0].leasestub
            request = etcdrpc.LeaseKeepAliveRequest(ID=lease)
            stream = stub.LeaseKeepAlive(iter((request,)), timeout=TRY_S)
            answer = await to_thread.run_sync(next, stream, None, abandon_on_cancel=True)
        except ValueError as error:
            raise StoreUnavailable(f"{self._where}: this store was closed") from error
        except grpc.RpcError as error:
            raise _to_error(error, self._where, is_write=False) from error
        if answer is None:
            raise StoreUnavailable(f"{self._where} closed the renewal of a lease")
        stream.cancel()
        return float(answer.TTL)

    @asynccontextmanager
    async def _watching(self, create: Any) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        client = self._new_client()
        self._clients.append(client)
        answers = _Answers(self._where)
        try:
            client.watcher = _Watcher(etcdrpc.WatchStub(client.channel), self._where)
            begin = partial(
                client.watcher.add_callback,
                create.key,
                answers.put,
                range_end=create.range_end or None,
                start_revision=create.start_revision,
                progress_notify=True,
            )
            try:
                await to_thread.run_sync(begin, abandon_on_cancel=True)
            except (etcd3.exceptions.Etcd3Exception, grpc.RpcError, EventLogError) as error:
                raise watch_error(error, self._where) from error
            yield answers
        finally:
            answers.close()
            self._clients.remove(client)
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(client.close)

    async def ask(self, path: str, request: Any, answer: str) -> Any:
        """Etcd is administered by our own client, whichever speaks otherwise. Raises Refused."""
        raise Refused(f'{self._where}: {path} needs client = "thin"')

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        for client in list(self._clients):
            await to_thread.run_sync(client.close)


def _unary(call: Callable[[], Any], kind: Any) -> _Method:
    return call, kind

"""From a URL to a store whose server was asked for its version.

gRPC is imported only when an etcd store is opened: reading an exported log needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from controlplane.eventlog.versions import judge_version

if TYPE_CHECKING:
    from controlplane.eventlog.etcd import EtcdStore
    from controlplane.eventlog.etcd_url import TlsFiles


async def open_store(url: str, tls: TlsFiles | None = None, *, demo: bool = False) -> EtcdStore:
    """Connect to etcd at `http[s]://host:port[,host:port...]` and check its version.

    Raises:
        ValueError: the URL or a TLS file is wrong; the message is fit for an operator.
        StoreUnavailable: nobody answers there.
        UnsupportedServer: too old; 3.5.0 to 3.5.2 are allowed with `demo`.
    """
    from controlplane.eventlog.etcd import EtcdStore
    from controlplane.eventlog.etcd_url import parse_url, resolve

    endpoints = parse_url(url)
    target = await anyio.to_thread.run_sync(resolve, endpoints)  # may ask a name server
    store = EtcdStore(endpoints, target, tls)
    try:
        judge_version((await store.server_info()).version, demo=demo)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await store.aclose()
        raise
    return store

"""From a URL to a store whose server was asked for its version.

gRPC is imported only when an etcd store is opened: reading an exported log needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio.to_thread

from controlplane.eventlog.errors import ClientMissing
from controlplane.eventlog.versions import judge_version

if TYPE_CHECKING:
    from controlplane.eventlog.etcd import EtcdStore
    from controlplane.eventlog.etcd_url import TlsFiles


CLIENTS: Final = ("thin", "etcd3")
"""Who speaks to etcd: our own client, or the `etcd3` package of the extra of that name."""


async def open_store(
    url: str, tls: TlsFiles | None = None, *, demo: bool = False, client: str = "thin"
) -> EtcdStore:
    """Connect to etcd at `http[s]://host:port[,host:port...]` and check its version.

    `client` is one of `CLIENTS`.

    Raises:
        ClientMissing: the package of that client is not installed.
        ValueError: the URL or a TLS file is wrong; the message is fit for an operator.
        StoreUnavailable: nobody answers there.
        UnsupportedServer: too old; 3.5.0 to 3.5.2 are allowed with `demo`.
    """
    from controlplane.eventlog.etcd_url import parse_url, resolve

    endpoints = parse_url(url)
    target = await anyio.to_thread.run_sync(resolve, endpoints)  # may ask a name server
    store = store_class(client)(endpoints, target, tls)
    try:
        judge_version((await store.server_info()).version, demo=demo)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await store.aclose()
        raise
    return store


def store_class(client: str) -> type[EtcdStore]:
    """Import a client. Takes a second or more on a slow machine: not to be put under a deadline.

    Raises ClientMissing, and ValueError for a client that there is not.
    """
    if client == "thin":
        from controlplane.eventlog.etcd import EtcdStore

        return EtcdStore
    if client not in CLIENTS:
        msg = f"client {client!r}: must be one of {', '.join(CLIENTS)}"
        raise ValueError(msg)
    try:
        from controlplane.eventlog.etcd3_api import Etcd3Store
    except ImportError as error:
        raise ClientMissing(
            'client "etcd3" needs a package that is not installed: '
            f"pip install 'changeover[etcd3]' ({error})"
        ) from error
    return Etcd3Store

"""Bringing users and roles about in a running etcd.

What belongs here: the order. Users and roles first, asking who one is last, so that a run that was
cut off has locked nobody out; it is to be run again. Before that, etcd must be seen to turn away
whoever shows no certificate: one that does not ask for them knows nobody, and would refuse all.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from controlplane.access import ROOT, User
from controlplane.errors import BadConfig
from controlplane.eventlog import PermissionDenied, Refused, Store, StoreUnavailable, open_store
from controlplane.eventlog.etcd import EtcdStore
from controlplane.eventlog.etcd_auth import Rights
from controlplane.eventlog.etcd_url import TlsFiles


def check_speaks_tls(url: str) -> None:
    """Refuse an etcd that cannot know anybody. Raises BadConfig."""
    if not url.startswith("https://"):
        raise BadConfig("--etcd", url, "must be https://...: etcd knows users by certificates")


async def check_asks(url: str, ca: str, server_name: str = "") -> None:
    """Make sure that an etcd turns away whoever shows no certificate.

    Raises:
        BadConfig: it does not; the message says how to start it.
        ValueError: a file cannot be read.
    """
    check_speaks_tls(url)
    with suppress(StoreUnavailable, PermissionDenied):
        store = await open_store(url, TlsFiles(ca=ca, server_name=server_name))
        await store.aclose()
        allowed = "must ask for certificates: start it with --client-cert-auth --trusted-ca-file"
        raise BadConfig("--etcd", url, allowed)


async def grant_all(store: Store, users: Iterable[User]) -> None:
    """Have these users, each with its role and that role with its rights and no others.

    Raises:
        Refused: the store has no users, or etcd was not told to ask for certificates.
        PermissionDenied: by anybody but a user with the role `root`.
        StoreUnavailable, OutcomeUnknown: run it again.
    """
    if not isinstance(store, EtcdStore):
        raise Refused("only etcd, spoken to by our own client, has users")
    rights = Rights(store)
    await rights.add_user(ROOT)
    await rights.add_role(ROOT)
    await rights.give_role(ROOT, ROOT)
    for user in users:
        await rights.add_role(user.name)
        grants = [(grant.start, grant.end, int(grant.level)) for grant in user.grants]
        await rights.set_rights(user.name, grants)
        await rights.add_user(user.name)
        await rights.give_role(user.name, user.name)
    await rights.enable()

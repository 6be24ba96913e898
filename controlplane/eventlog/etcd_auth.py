"""Users and roles of etcd, brought about: what `controlplane.access` says, and nothing else.

What belongs here: the calls. They need a user with the role `root` once etcd asks who one is. Each
may be made again, so an interrupted run is simply repeated; rights that a role has beyond those
asked for are taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio

from controlplane.eventlog import etcd_wire as wire
from controlplane.eventlog.errors import OutcomeUnknown, Refused, StoreUnavailable
from controlplane.eventlog.etcd import EtcdStore
from controlplane.eventlog.settle import pause_s

Right = tuple[bytes, bytes, int]
"""A range of keys and how far the right to it goes: 0 to read, 2 to read and write."""

_M: Final = wire.MESSAGES
_TRIES: Final = 8
_IS_THERE: Final = ("already exists", "already granted")


class Rights:
    """The users of one etcd. Works with a user of the role `root`, or before there are users."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store

    async def add_user(self, name: str) -> None:
        """Have a user without a password: known by the common name of a certificate."""
        options = _M["UserAddOptions"](no_password=True)
        await self._ask("UserAdd", "AuthUserAdd", name=name, options=options)

    async def add_role(self, name: str) -> None:
        """Have a role."""
        await self._ask("RoleAdd", "AuthRoleAdd", name=name)

    async def give_role(self, user: str, role: str) -> None:
        """Let a user have a role."""
        await self._ask("UserGrantRole", "AuthUserGrantRole", user=user, role=role)

    async def set_rights(self, role: str, rights: Sequence[Right]) -> None:
        """Let a role have these rights and no others."""
        for start, end, level in rights:
            right = _M["Permission"](permType=level, key=start, range_end=end)
            await self._ask("RoleGrantPermission", "AuthRoleGrantPermission", name=role, perm=right)
        wanted = {(start, end) for start, end, _ in rights}
        for start, end, _ in await self.rights_of(role):
            if (start, end) not in wanted:
                kind = "AuthRoleRevokePermission"
                span = {"key": start, "range_end": end}
                await self._ask("RoleRevokePermission", kind, role=role, **span)

    async def rights_of(self, role: str) -> list[Right]:
        """The rights that a role has."""
        answer = await self._ask("RoleGet", "AuthRoleGet", role=role)
        return [(each.key, each.range_end, each.permType) for each in answer.perm]

    async def enable(self) -> None:
        """Have etcd ask everybody who they are; from now on no key is anybody's."""
        await self._ask("AuthEnable", "AuthEnable")

    async def _ask(self, method: str, kind: str, **fields: Any) -> Any:
        """Ask until it is answered; what is there already is no error.

        Raises:
            PermissionDenied: by a user without the role `root`.
            StoreUnavailable, OutcomeUnknown, Refused.
        """
        request = _M[f"{kind}Request"](**fields)
        for tries in range(_TRIES):
            try:
                return await self._store.ask(wire.AUTH + method, request, f"{kind}Response")
            except (StoreUnavailable, OutcomeUnknown):
                if tries == _TRIES - 1:
                    raise
                await anyio.sleep(pause_s(tries))
            except Refused as refused:
                if not any(words in str(refused) for words in _IS_THERE):
                    raise
                return None
        raise AssertionError

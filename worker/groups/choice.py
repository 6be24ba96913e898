"""Which backend a run's groups have inside: `delta`, or `rebuild` with a store to meet at.

What belongs here: reading the choice, and making backends by it. What each can do is its own.

`rebuild://HOST:PORT` has torch's own gloo groups, built anew in the background for each change.
They meet at a torch TCPStore that whoever chooses them keeps alive: no training process may, since
any may die.
"""

import os
from collections.abc import Callable
from typing import Final

from statemachine.errors import UsageError
from worker.groups.backend import GroupBackend
from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint
from worker.groups.port import PeerReset

GROUPS_VARIABLE: Final = "CHANGEOVER_GROUPS"
"""Environment variable: the choice, where the script makes none."""

DELTA: Final = "delta"
_REBUILD: Final = "rebuild://"
_MEET_S: Final = 10.0

MakeBackend = Callable[[str, LinkEndpoint, PeerReset, float], GroupBackend]
"""From a kind of group, this process's links, whom to tell of a peer's end, the hang deadline."""


class BadChoice(UsageError):
    """No backend has this name, or its store cannot be met at."""


def chosen(words: str | None = None) -> MakeBackend:
    """What makes the backends of a run; `words` are the script's, else the environment's.

    Raises:
        BadChoice: they say nothing that there is, or nobody answers at the store.
    """
    words = words or os.environ.get(GROUPS_VARIABLE, "") or DELTA
    if words == DELTA:
        return DeltaBackend
    host, separator, port = words.removeprefix(_REBUILD).rpartition(":")
    if not words.startswith(_REBUILD) or not separator or not host or not port.isdigit():
        raise BadChoice(
            f"{GROUPS_VARIABLE}={words}: must be delta, or rebuild://HOST:PORT of a torch TCPStore"
        )
    return _rebuilt(words, host, int(port))


def _rebuilt(words: str, host: str, port: int) -> MakeBackend:
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistError

    from worker.groups.rebuild import RebuildBackend

    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_MEET_S))
    except (RuntimeError, DistError) as error:
        reason = str(error).splitlines()[0]
        raise BadChoice(f"{GROUPS_VARIABLE}={words}: no store answers there: {reason}") from None

    def make(
        name: str, endpoint: LinkEndpoint, _tell: PeerReset, hang_deadline_s: float
    ) -> GroupBackend:
        return RebuildBackend(name, store, hang_deadline_s, endpoint.address[0])

    return make

"""How much of a fleet's log is where, how old, and how full its store is.

What belongs here: numbers, their one alarm, and its cure. A full store refuses leases too, so the
alarm comes while there is room to act.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from controlplane.eventlog import EventLog

QUOTA_BYTES: Final = 2 * 1024**3
"""What etcd's store may grow to unless it was told otherwise."""

ALARM_SHARE: Final = 0.6
"""Part of the quota from which on somebody should act: a full store refuses leases too."""


class Stats(Struct, frozen=True, kw_only=True):
    """Size and age of what a fleet has in the store. Ages in seconds, None if there is none."""

    fleet: str
    head: int
    oldest: int
    live_entries: int
    waiting_facts: int
    snapshot_position: int
    snapshot_bytes: int
    snapshot_age_s: float | None
    entries_since_snapshot: int
    archived_to: int
    store_version: str
    store_bytes: int
    quota_bytes: int

    @property
    def quota_share(self) -> float:
        """Part of the quota that is in use."""
        return self.store_bytes / self.quota_bytes

    @property
    def alarm(self) -> str:
        """What somebody should do now; empty if nothing."""
        if self.quota_share < ALARM_SHARE:
            return ""
        return (
            f"the store holds {self.quota_share:.0%} of its quota; when it is full it refuses "
            "leases too: changeover log archive DIR --reclaim"
        )

    def lines(self) -> tuple[str, ...]:
        """For people."""
        age = "" if self.snapshot_age_s is None else f", {self.snapshot_age_s:.0f} s old"
        at, size = self.snapshot_position, f"{self.store_bytes / 2**20:.1f} MiB"
        snapshot = f"at position {at}, {self.snapshot_bytes} bytes{age}" if at else "none"
        return (
            f"fleet      {self.fleet}",
            f"log        {self.live_entries} events in the store, {self.oldest} to {self.head}",
            f"archived   up to position {self.archived_to}",
            f"snapshot   {snapshot}; {self.entries_since_snapshot} events since",
            f"inbox      {self.waiting_facts} facts wait",
            f"store      {self.store_version}, {size}, {self.quota_share:.0%} of its quota",
        )

    def as_values(self) -> dict[str, Any]:
        """For `--json` and metrics."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return fields | {"quota_share": self.quota_share, "alarm": self.alarm}


async def stats_of(log: EventLog, *, now_ms: int, quota_bytes: int = QUOTA_BYTES) -> Stats:
    """Ask the store what it holds. Raises StoreUnavailable."""
    info = await log.server_info()
    head, mark = await log.head(), await log.mark()
    snapshots = await log.snapshots()
    newest = snapshots[-1] if snapshots else None
    return Stats(
        fleet=log.fleet,
        head=head,
        oldest=mark.position + 1,
        live_entries=head - mark.position,
        waiting_facts=len(await log.inbox()),
        snapshot_position=newest.position if newest else 0,
        snapshot_bytes=newest.size if newest else 0,
        snapshot_age_s=(now_ms - newest.written_at_ms) / 1000 if newest else None,
        entries_since_snapshot=head - (newest.position if newest else 0),
        archived_to=mark.position,
        store_version=info.version,
        store_bytes=info.db_bytes,
        quota_bytes=quota_bytes,
    )

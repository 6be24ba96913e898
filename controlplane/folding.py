"""From the store to what the log folds to: the newest snapshot that serves, and the tail behind it.

What belongs here: choosing where to begin. A snapshot that is damaged, or of a release that folds
otherwise, costs time and nothing else as long as the entries before it are in the store.
"""

from __future__ import annotations

from anyio import to_thread
from msgspec import Struct

from controlplane import journal
from controlplane.eventlog import EventLog, LogCorrupt, Manifest
from controlplane.imaging import Image, SnapshotUnusable, decode_image
from controlplane.turn import Ledger, count
from statemachine.evolve import evolve
from statemachine.ids import Position
from statemachine.state import FleetState

BLANK = Image(state=FleetState(), counters=Ledger().counters)
"""What an empty log folds to."""


class Folded(Struct, frozen=True, kw_only=True):
    """What the log says up to its head; `began_at` is the position of the snapshot used, or 0."""

    image: Image
    began_at: Position


async def fold_to_head(log: EventLog) -> Folded:
    """Fold the log up to its head, from the newest snapshot that serves.

    Raises:
        Archived: no snapshot serves, and the log's beginning has left the store.
        LogCorrupt: a position is missing or does not decode.
        StoreUnavailable.
    """
    image = await newest_image(log)
    return Folded(image=await fold_on(log, image), began_at=image.state.position)


async def newest_image(log: EventLog) -> Image:
    """Read the newest snapshot that serves; a blank one if none does."""
    for manifest in reversed(await log.snapshots()):
        try:
            return await image_of(log, manifest)
        except (SnapshotUnusable, LogCorrupt) as error:
            journal.warn("a snapshot is passed over", position=manifest.position, why=error)
    return BLANK


async def image_of(log: EventLog, manifest: Manifest) -> Image:
    """Read one snapshot.

    Raises:
        LogCorrupt: it is damaged.
        SnapshotUnusable: this release folds otherwise.
    """
    blob = await log.get_snapshot(manifest)
    return await to_thread.run_sync(decode_image, log.fleet, blob)


async def fold_on(log: EventLog, image: Image, stop: Position | None = None) -> Image:
    """Fold what follows an image, up to the head or to `stop`.

    Raises:
        Archived: see `fold_to_head`.
        LogCorrupt, StoreUnavailable.
    """
    state, counters = image.state, image.counters
    async for entries in log.read_entries(Position(state.position + 1), stop):
        for entry in entries:
            recorded = entry.recorded()
            state = evolve(state, recorded)
            counters = count(counters, recorded.writer, recorded.incarnation, recorded.counter)
    return Image(state=state, counters=counters)

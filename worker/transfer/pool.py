"""What a transfer receives into: the destination image, and the chunks that are still missing.

Rules of this file: bookkeeping shared by the threads of one transfer; every method may be called
from any of them. No sockets.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from worker.transfer.errors import ImageRefused
from worker.transfer.image import ChunkMap, ImageHeader, StateImage


class Destination:
    """The image being received. The first header that fits decides; later ones must equal it."""

    def __init__(self, into: StateImage | Callable[[ImageHeader], StateImage]) -> None:
        self._into, self._sources = into, 1
        self._adopting = threading.Lock()
        self._header: bytes | None = None
        self.image: StateImage | None = None
        self.pool: ChunkPool | None = None

    def expect(self, sources: int) -> None:
        """So many sources will share the work; says how much each is asked for at once."""
        self._sources = max(1, sources)

    def adopt(self, encoded: bytes) -> ChunkPool:
        """The pool of chunks to fill for this header; raises ImageRefused if it does not fit."""
        with self._adopting:
            if self.pool is None:
                self.image = self._made_for(ImageHeader.decoded(encoded))
                self._header = encoded
                self.pool = ChunkPool(ChunkMap(self.image), self._sources)
            elif encoded != self._header:
                raise ImageRefused("has another state than the source that answered first")
            return self.pool

    def _made_for(self, header: ImageHeader) -> StateImage:
        made = self._into if isinstance(self._into, StateImage) else self._into(header)
        made.require_same_specs(header.specs)
        return StateImage(made.tensors, header.meta)

    @property
    def complete(self) -> bool:
        """Whether every chunk has arrived and was verified."""
        return self.pool is not None and self.pool.complete


class ChunkPool:
    """Chunks that nobody has been asked for yet."""

    def __init__(self, chunks: ChunkMap, sources: int = 1) -> None:
        self.chunks = chunks
        self._sources = sources
        self._free = deque(range(chunks.count))
        self._missing = chunks.count
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def complete(self) -> bool:
        """Whether every chunk has arrived and was verified."""
        return self._missing == 0

    def take(self, held: int, most: int, *, wait: bool) -> list[int]:
        """Chunks to ask for next, for a source that owes `held` and should owe `most` at most.

        Fewer towards the end, so that all sources end together; none while it owes over half of
        what it may, so that requests go out in batches. Waiting, none means that none will come.
        """
        with self._changed:
            while wait and not (self._free or self._stopped or self.complete):
                self._changed.wait()
            if self._stopped:
                return []
            fair = max(2, min(most, len(self._free) // (2 * self._sources)))
            wanted = fair - held if 2 * held <= fair else 0
            return [self._free.popleft() for _ in range(min(wanted, len(self._free)))]

    def give_back(self, indices: Sequence[int], *, last: bool = False) -> None:
        """Return chunks that did not arrive, to the front, or to the end for others to try."""
        with self._changed:
            if last:
                self._free.extend(indices)
            else:
                self._free.extendleft(reversed(indices))
            self._changed.notify_all()

    def arrived(self) -> None:
        """Count one chunk as received and verified."""
        with self._changed:
            self._missing -= 1
            if self.complete:
                self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody take another chunk."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

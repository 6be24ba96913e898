"""What the detector was told, kept on disk: a recording that the same detector can be run on again.

What belongs here: one line of JSON for each thing that changed what the detector knows, in its
order, and a bound on how much is kept. Etcd keeps one window per node; nothing else remembers.

The file is renamed to ``.1`` when it is full, and what was ``.1`` before is gone: so at most twice
`bytes_max` are kept, and at least as much as that once there is as much.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from msgspec import json

from controlplane import journal
from statemachine.ids import NodeId
from statemachine.policy import Policy, knobs_of
from statemachine.vitals import Vitals

HISTORY_VARIABLE: Final = "CHANGEOVER_VITALS_HISTORY"
"""Environment variable of a controller: the file to keep, nothing is kept unless set."""

BYTES_MAX: Final = 256 << 20
"""About six hours of 1,000 nodes in windows of 30 s."""


class VitalsHistory:
    """Appends to one file; a disk that is full stops the history, and nothing else."""

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = None
        self._size = 0
        self._policy: Policy | None = None
        self._broken = False

    def observed(self, batch: Sequence[Vitals], now_ms: int, policy: Policy) -> None:
        """The detector took in a batch, which may be empty: verdicts expire by the clock."""
        if policy is not self._policy:
            self._policy = policy
            self._write({"at_ms": now_ms, "policy": knobs_of(policy)})
        self._write({"at_ms": now_ms, "batch": batch})

    def forgotten(self, node: NodeId) -> None:
        """The detector forgot a node that is gone, or no longer compared."""
        self._write({"forgotten": node})

    def withdrawn(self, node: NodeId) -> None:
        """A verdict was taken back by somebody else than the detector."""
        self._write({"withdrawn": node})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: object) -> None:
        if self._broken:
            return
        line = json.encode(entry) + b"\n"
        try:
            if self._file is None or self._size + len(line) > self._bytes_max:
                self._begin(full=self._file is not None)
            assert self._file is not None
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self._broken = True
            journal.warn("vitals history stopped", path=str(self._path), why=str(error.strerror))
            return
        self._size += len(line)

    def _begin(self, *, full: bool) -> None:
        self.close()
        if full:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        if full and self._policy is not None:
            self._file.write(json.encode({"policy": knobs_of(self._policy)}) + b"\n")
        self._size = self._file.tell()

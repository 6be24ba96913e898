"""The log as a file of JSON lines: its own bytes, one entry a line, in order of position.

What belongs here: getting the bytes out. They are not decoded, so that an export holds what was
written even where this release cannot read it. Each line ends in a checksum (`checksums`), so that
whoever reads the file years later sees any byte that changed on the way.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from controlplane.errors import TargetExists
from controlplane.eventlog import EventLog
from statemachine.checksums import with_checksum
from statemachine.errors import UsageError


async def exported(log: EventLog, sink: IO[bytes]) -> int:
    """Write the log up to its head; return how many entries that were.

    Raises:
        LogCorrupt: a position is missing.
        StoreUnavailable.
    """
    count = 0
    async for entries in log.read_entries():
        sink.write(b"".join(with_checksum(entry.raw) + b"\n" for entry in entries))
        count += len(entries)
    sink.flush()
    return count


@contextmanager
def appearing(target: Path, *, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write to that appears under its name when the body is done, or not at all.

    Raises:
        TargetExists: the file is there, and `overwrite` is false.
        UsageError: the folder is missing, or not writable.
    """
    if target.exists() and not overwrite:
        raise TargetExists(f"{target} exists: choose another name, or say --force")
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".log-", delete=False) as sink:
            partial = Path(sink.name)
            try:
                yield sink.file
                sink.flush()
                os.fsync(sink.fileno())
                partial.chmod(0o644)
                partial.replace(target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error

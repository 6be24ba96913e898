"""Which etcd servers are good enough. Pure; used before a connection and before a start.

3.4 is the oldest with all that we use. 3.5.0 to 3.5.2 could lose or diverge data after a crash;
before 3.5.5 a single server could acknowledge a write and lose it; before 3.5.13 watches could
miss events around a compaction.
"""

from __future__ import annotations

import re
from typing import Final

from controlplane.eventlog.errors import UnsupportedServer

GOOD: Final = (3, 5, 13)
"""The oldest version that needs no warning."""

_OLDEST: Final = (3, 4, 0)
_LOSES_DATA: Final = ((3, 5, 0), (3, 5, 2))


def parse_version(text: str) -> tuple[int, int, int]:
    """Read `3.5.16` out of a text that contains it.

    Raises:
        UnsupportedServer: there is no version in it.
    """
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise UnsupportedServer(f"no etcd version in {text!r}")
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch)


def judge_version(text: str, *, demo: bool = False) -> str:
    """Return a warning about a server's version, or nothing if it is good.

    `demo` allows the versions that may lose data.

    Raises:
        UnsupportedServer: too old, or unsafe for anything but a demo.
    """
    version = parse_version(text)
    name = "etcd " + ".".join(map(str, version))
    if version < _OLDEST:
        raise UnsupportedServer(f"{name} is too old: use 3.5.13 or newer")
    if _LOSES_DATA[0] <= version <= _LOSES_DATA[1] and not demo:
        raise UnsupportedServer(f"{name} may lose data after a crash: use 3.5.13 or newer")
    if version < GOOD:
        return f"{name} has known faults that 3.5.13 does not have; fit for a demo only"
    return ""

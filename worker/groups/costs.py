"""What changes of members cost, measured where they happen, by mechanism.

What belongs here: gathering durations from any thread until somebody asks. Whoever operates a fleet
sees from them what its mechanisms cost on its own machines, not on ours. No torch.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Costs:
    """Durations in milliseconds by name, such as ``group_switch_ms.delta``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, list[float]] = {}

    @contextmanager
    def timed(self, what: str, mechanism: str) -> Iterator[None]:
        """Count what the block takes, unless it raises."""
        began_s = time.perf_counter()
        yield
        took_ms = (time.perf_counter() - began_s) * 1000
        with self._lock:
            self._found.setdefault(f"{what}.{mechanism}", []).append(took_ms)

    def take(self) -> dict[str, list[float]]:
        """Return what was counted since this was asked last."""
        with self._lock:
            found, self._found = self._found, {}
            return found

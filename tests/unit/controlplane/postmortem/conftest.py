"""Recorded logs, whole and damaged, for whoever reads them after the fact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HISTORY = Path(__file__).parents[3] / "history"


@pytest.fixture
def demo_log() -> Path:
    """The log of a demo: one machine killed, one slow."""
    return HISTORY / "demo_kill_and_grey.events.jsonl"


@pytest.fixture
def damaged(demo_log: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of that log after its lines went through a function."""

    def make(change: Callable[[list[bytes]], list[bytes]]) -> Path:
        target = tmp_path / "damaged.jsonl"
        target.write_bytes(b"".join(change(demo_log.read_bytes().splitlines(keepends=True))))
        return target

    return make

"""How long the holder of a slot worked beside its peers, from the windows of vitals of a demo.

What belongs here: reading the windows of a run folder, and one ratio. What a machine's load does to
steps it does to all ranks of a demo alike; the work of one beside that of the others does not
follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statemachine.errors import CodecError
from statemachine.ids import Slot
from statemachine.vitals import WORK_MS, Vitals, decode_vitals, median


def read_windows(path: Path) -> list[Vitals]:
    """The windows in a file, one a line; a line that was cut short is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decode_vitals(line))
        except CodecError:
            continue
    return found


def beside_peers(
    windows: Sequence[Vitals], slot: Slot, from_ms: float, to_ms: float
) -> float | None:
    """The mean own work of a step in `slot` between two instants over the median of its peers';
    None where nobody can be compared.
    """
    work: dict[Slot, list[tuple[float, int]]] = {}
    for each in windows:
        inside = from_ms <= each.started_at_ms and each.ended_at_ms <= to_ms
        if inside and each.steps and WORK_MS in each.metrics:
            work.setdefault(each.slot, []).append((each.metrics[WORK_MS].mean, each.steps))
    means = {
        of: sum(ms * steps for ms, steps in rows) / sum(steps for _, steps in rows)
        for of, rows in work.items()
    }
    own, peers = means.pop(slot, None), list(means.values())
    return own / median(peers) if own is not None and peers else None

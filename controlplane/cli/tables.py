"""Plain columns for a terminal or a file: no colour, no box, nothing to trip a grep over."""

from collections.abc import Iterable, Sequence
from typing import Any

from controlplane.lines import flat

NOTHING = "-"


def cell(value: Any) -> str:
    """One value as a column shows it."""
    match value:
        case None | "" | [] | ():
            return NOTHING
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
        case list() | tuple():
            return flat(",".join(str(each) for each in value))
        case _:
            return flat(str(value))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], indent: str = "") -> list[str]:
    """Rows under a head, in columns as wide as they must be; the last one is not padded."""
    lines = [list(head), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        (
            indent + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def text_of(lines: Iterable[str]) -> str:
    """Lines as a text; what stands in one, whoever wrote it, moves no cursor and ends no line."""
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)


def span(seconds: float | None) -> str:
    """A duration as people read it."""
    if seconds is None:
        return NOTHING
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"

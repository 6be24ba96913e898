"""Hooks of the site's builder: the pages that lie outside `docs/`, and those that nobody writes.

What belongs here: which files become pages, and where links between them lead. A document of the
tree's root (ARCHITECTURE, GLOSSARY, ...) is a page of the site under `project/`; a link to code has
no page to lead to, and becomes the path alone. What is drawn from the lifecycle tables becomes
pictures.
"""

from __future__ import annotations

import html
import importlib.util
import math
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CRITIQUES.md",
    "GLOSSARY.md",
    "README.md",
)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^\s*(\S+) --> (\S+?)(?::\s*(.*))?$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the root's documents and the program's own pages."""
    for name in ROOT_PAGES:
        content = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, f"project/{name}", content=content))
    for place, text in _reference().pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def _reference() -> Any:
    """The module beside this one; the builder runs us by path."""
    spec = importlib.util.spec_from_file_location("draw_reference", ROOT / "docs/draw_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Let links between the root, `docs/` and the code lead where the site has them."""
    here = page.file.src_uri
    known = {file.src_uri for file in files}
    at_root = here.startswith("project/")

    def led(found: re.Match[str]) -> str:
        mark, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        base = "" if at_root else posixpath.dirname(f"docs/{here}")
        in_tree = posixpath.normpath(posixpath.join(base, target))
        place = in_tree.removeprefix("docs/") if in_tree.startswith("docs/") else ""
        if in_tree in ROOT_PAGES:
            place = f"project/{in_tree}"
        if place not in known:
            return f"{words} (`{in_tree}`)" if words != in_tree else f"`{in_tree}`"
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{mark}[{words}]({relative}{anchor})"

    return MERMAID.sub(lambda found: drawing(found[1]), LINK.sub(led, markdown))


# --- drawings ---------------------------------------------------------------------------------


def drawing(mermaid: str) -> str:
    """A state diagram as a picture and a table: no script is loaded that could draw it."""
    arrows = [
        (start, end, (words or "").strip())
        for start, end, words in ARROW.findall(mermaid)
        if "[*]" not in (start, end)
    ]
    if not arrows:
        return f"```text\n{mermaid}```"
    names = list(dict.fromkeys(name for start, end, _ in arrows for name in (start, end)))
    place = {
        name: (
            330 + 260 * math.cos(2 * math.pi * at / len(names) - math.pi / 2),
            250 + 205 * math.sin(2 * math.pi * at / len(names) - math.pi / 2),
        )
        for at, name in enumerate(names)
    }
    drawn = "".join(_arrow(place[start], place[end], words) for start, end, words in arrows)
    boxes = "".join(_box(name, *at) for name, at in place.items())
    picture = (
        '<div><svg viewBox="0 0 660 500" role="img" style="max-width:660px;width:100%" '
        f'aria-label="{len(names)} states, {len(arrows)} arrows; in words in the table below">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#5d6068"/></marker></defs>'
        f"{drawn}{boxes}</svg></div>"
    )
    rows = "\n".join(f"| {start} | {words or '-'} | {end} |" for start, end, words in arrows)
    return f"{picture}\n\n| from | on | to |\n|---|---|---|\n{rows}\n"


def _arrow(start: tuple[float, float], end: tuple[float, float], words: str) -> str:
    """A curve from box to box, bent to its left, so that there and back are two."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    across, along = (
        ((y1 - y2) / length, (x2 - x1) / length),
        ((x2 - x1) / length, (y2 - y1) / length),
    )
    middle = ((x1 + x2) / 2 + 22 * across[0], (y1 + y2) / 2 + 22 * across[1])
    x1, y1, x2, y2 = x1 + 30 * along[0], y1 + 16 * along[1], x2 - 46 * along[0], y2 - 20 * along[1]
    path = f"M{x1:.0f} {y1:.0f} Q{middle[0]:.0f} {middle[1]:.0f} {x2:.0f} {y2:.0f}"
    style = 'fill="none" stroke="#5d6068" stroke-width="1" marker-end="url(#tip)"'
    return f'<path d="{path}" {style}><title>{html.escape(words)}</title></path>'


def _box(name: str, x: float, y: float) -> str:
    shape = f'<rect x="{x - 44:.0f}" y="{y - 14:.0f}" width="88" height="28" rx="8" '
    text = f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="13" fill="#1c1d20">'
    return f'{shape}fill="#fcfcfb" stroke="#2b6cb0"/>{text}{html.escape(name)}</text>'

"""Hooks of the site's builder: the pages that lie outside `docs/`, and those that nobody writes.

What belongs here: which files become pages, and where links between them lead. A document of the
tree's root (ARCHITECTURE, GLOSSARY, ...) is a page of the site under `project/`; a link to code has
no page to lead to, and becomes the path alone.
"""

from __future__ import annotations

import importlib.util
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

    return LINK.sub(led, markdown)

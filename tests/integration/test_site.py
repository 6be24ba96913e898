"""The site: it builds with every warning an error, loads nothing, and its commands are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from controlplane.cli import cli
from simulator.cli import cli as simctl

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^( *)```(?:sh|text|console)?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:changeover|simctl) [^`]+)`")
PLACEHOLDER = re.compile(r"^[A-Z][A-Z0-9_/|.]*$")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Asked(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = {"script": "src", "img": "src", "link": "href", "iframe": "src"}.get(tag)
        self.found += [value for name, value in attrs if name == wanted and value]


def test_the_site_builds_and_loads_nothing_from_elsewhere(site: Path) -> None:
    """Every guide is a page, the program's own reference too, and a page works offline."""
    for name in ("index", "embed", "operate/guide", "operate/runbooks", "reference/cli", "faq"):
        assert (site / f"{name}.html").is_file(), name
    drawn = (site / "internals/lifecycle.html").read_text("utf-8")
    assert drawn.count("<svg") == 3
    assert "stateDiagram" not in drawn
    assert "TransitionPlanned" in (site / "reference/events.html").read_text("utf-8")
    for page in site.rglob("*.html"):
        asked = Asked()
        asked.feed(page.read_text("utf-8"))
        assert [url for url in asked.found if url.startswith(("http", "//"))] == [], page


def commands(text: str) -> Iterator[str]:
    """Lines of a document that are commands of ours."""
    for fence in FENCE.finditer(text):
        for line in fence[2].replace("\\\n", " ").splitlines():
            bare = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if bare.startswith(("changeover ", "simctl ")):
                yield bare
    yield from INLINE.findall(text)


def complaint(line: str) -> str:
    """Why a line is no command; empty if it is one."""
    words = shlex.split(line.partition(" #")[0].partition(" | ")[0].partition(" > ")[0])
    if "..." in words or any("..." in word for word in words):
        words = [word for word in words if "..." not in word]
    command: click.Command = simctl if words[0] == "simctl" else cli
    context = click.Context(command, info_name=words[0])
    at = 1
    while isinstance(command, click.Group) and at < len(words):
        if PLACEHOLDER.match(words[at]) or words[at].startswith("-"):
            return ""
        found = command.get_command(context, words[at])
        if found is None:
            return f"no verb {words[at]!r}"
        command, context, at = found, click.Context(found, parent=context), at + 1
    options = {name for each in command.params for name in each.opts + each.secondary_opts}
    for word in words[at:]:
        if word == "--":
            break
        name = word.partition("=")[0]
        if re.match(r"--?[a-z]", word) and name not in options | {"--help", "-h"}:
            return f"no option {name}"
    return ""


ALARMING = (
    "NodeLost",
    "NodeQuarantined",
    "NodeRetired",
    "VerdictIssued",
    "WarmupFailed",
    "TransitionPlanned",
    "JobRestarted",
    "ActRefused",
    "ActWithheld",
    "PeerWaited",
    "WorkerExited",
)
"""Events that somebody on call sees first when something is wrong."""


@pytest.mark.parametrize("kind", ALARMING)
def test_there_is_a_runbook_for_each_kind_of_incident(kind: str) -> None:
    """A chapter says what one sees in the words of the log, and how to know that it is over."""
    text = (ROOT / "docs" / "operate" / "runbooks.md").read_text("utf-8")
    chapters = re.split(r"^## ", text, flags=re.MULTILINE)[1:]

    assert any(f"`{kind}" in chapter for chapter in chapters)
    for chapter in chapters:
        assert "*You see*" in chapter or "`changeover log verify" in chapter, chapter[:60]


def test_every_command_in_a_document_is_one() -> None:
    """Its verb exists, and so does each of its options."""
    wrong = {}
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        if path.name == "CHANGELOG.md":
            continue
        for line in commands(path.read_text("utf-8")):
            if "changeover agent" in line:  # the agent's own options are another program's
                continue
            why = complaint(line)
            if why:
                wrong[f"{path.relative_to(ROOT)}: {line}"] = why

    assert wrong == {}

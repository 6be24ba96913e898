"""Where a command writes to may be closed, full, gone, or unable to spell: never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOG = ROOT / "tests" / "history" / "demo_kill_and_grey.events.jsonl"
READERS = [
    "controlplane timeline {log}",
    "controlplane replay {log} --json",
    "simulator replay {log}",
]


def shell(line: str, log: Path = LOG, **more: str) -> subprocess.CompletedProcess[str]:
    """Type a line into a shell; `{python}` and `{log}` are filled in."""
    told = line.format(python=f"{shlex.quote(sys.executable)} -m", log=shlex.quote(str(log)))
    return subprocess.run(
        ["bash", "-c", told],
        cwd=ROOT,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", READERS)
def test_a_reader_who_has_seen_enough_is_no_failure(command: str) -> None:
    """`| head` takes what it wants: nothing on stderr, and 0."""
    done = shell(f"{{python}} {command} | true; exit ${{{{PIPESTATUS[0]}}}}")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", READERS)
def test_a_full_disk_is_one_line(command: str) -> None:
    """What could not be written, and 1."""
    done = shell(f"{{python}} {command} > /dev/full")

    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot write: No space left on device" in done.stderr


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_nowhere(command: str, closed: str) -> None:
    """Under a supervisor that gives none: the command does what it does."""
    done = shell(f"{{python}} {command} {closed}")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", READERS)
def test_a_locale_that_lacks_a_letter_gets_an_escape(command: str, tmp_path: Path) -> None:
    """Names of nodes may have any letter, and a terminal may not."""
    log = tmp_path / "log.jsonl"
    log.write_text(LOG.read_text("utf-8").replace('"n1"', '"nö1"'), "utf-8")
    done = shell(f"{{python}} {command}", log, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "timeline" not in command or r"n\xf61" in done.stdout or r"nö1" in done.stdout


def test_what_a_node_says_is_no_markup_of_a_table(tmp_path: Path) -> None:
    """A name in brackets is a name."""
    log = tmp_path / "log.jsonl"
    log.write_text(LOG.read_text("utf-8").replace('"n1"', '"[/n1]"'), "utf-8")

    done = shell("{python} simulator replay {log}", log)

    assert (done.returncode, done.stderr) == (0, "")
    assert "[/n1]" in done.stdout


def test_an_error_moves_no_cursor() -> None:
    """What is repeated of a wrong argument is shown, not obeyed."""
    done = shell("{python} controlplane at {log} $'\\e[2Jn\\r1'")
    refused = shell("{python} simulator run $'\\e[2Jn\\r1'")

    assert (done.returncode, refused.returncode) == (2, 2)
    assert "\x1b" not in done.stderr + refused.stderr
    assert "\r" not in done.stderr + refused.stderr

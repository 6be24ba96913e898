"""What others wrote into a log is shown, not obeyed: by every verb that prints a table or a line.

A name, a host or a reason with control sequences would move the cursor, clear the screen, or set
the title of an operator's terminal; and one with a line end would forge a row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.controlplane.test_operating import DEMO, Done, Run, offline, running

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd

HOSTILE = r"n1\u001b[2J\u009b31m\r\nforged\u202e"
"""As JSON spells it: clear the screen, turn red, a row of its own, and right to left from here."""

OFFLINE = (
    ("replay", "LOG"),
    ("timeline", "LOG"),
    ("timeline", "LOG", "--chains"),
    ("at", "LOG", "40"),
    ("diff", "LOG", "30", "50"),
    ("explain", "n2", "--log", "LOG"),
    ("explain", "e2", "--log", "LOG"),
)
LIVE = (
    ("status",),
    ("nodes",),
    ("history",),
    ("explain", "e2"),
    ("topology", "show", "--groups"),
    ("topology", "diff", "1", "2"),
    ("log", "tail", "-n", "100"),
    ("log", "stats"),
    ("baselines",),
    ("policy", "show"),
    ("quarantine", "n2", "--dry-run"),
    ("doctor",),
)


def spoilt(folder: Path) -> Path:
    """The log of a demo, in which a node and the job have such names, and every reason is one."""
    text = DEMO.read_text("utf-8")
    for name, place in (('"n1"', HOSTILE), ('"demo"', "demo" + HOSTILE)):
        assert name in text
        text = text.replace(name, f'"{place}"')
    text = text.replace('"reason":"', f'"reason":"{HOSTILE} ').replace(
        '"host":"', f'"host":"{HOSTILE} '
    )
    log = folder / "spoilt.jsonl"
    log.write_text(text, "utf-8")
    return log


def check(done: Done) -> None:
    """Nothing but letters, blanks and line ends of ours came out."""
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode in (0, 1), done
    odd = {c for c in said if not c.isprintable() and c != "\n"}
    assert not odd, f"{odd} in {said!r}"
    forged = [line for line in said.splitlines() if line.startswith("forged")]
    assert not forged, said


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with such names."""
    return spoilt(tmp_path_factory.mktemp("spoilt"))


@pytest.fixture(scope="module")
def live(etcd: EtcdServer, log: Path) -> Run:
    """The same, in a store."""
    return running(etcd, f"hostile-{os.getpid()}", log)


@pytest.mark.parametrize("words", OFFLINE, ids=" ".join)
def test_a_log_from_elsewhere_moves_no_cursor(log: Path, words: tuple[str, ...]) -> None:
    """Of a file that somebody sent."""
    check(offline(*(str(log) if word == "LOG" else word for word in words)))


@pytest.mark.parametrize("words", LIVE, ids=" ".join)
def test_a_store_that_others_write_to_moves_no_cursor(live: Run, words: tuple[str, ...]) -> None:
    """Of a fleet that runs."""
    check(live(*words))

"""The page for capacity planners can be followed: each command, in its order, as it is printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "simctl.md"
FEWER = {
    "compare": ("--replications", "2"),
    "plan": ("--replications", "2"),
    "grid": ("--most", "2"),
}
"""What is added to a command so that it ends soon; the page says how long the whole takes."""


def steps() -> list[tuple[str, str]]:
    """The fenced blocks of the plan, in order, with their language."""
    text = PAGE.read_text("utf-8")
    part = text[text.index("## A capacity plan") : text.index("## What happened")]
    return re.findall(r"```(sh|toml)\n(.*?)```", part, re.DOTALL)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command of the page in a folder that looks like the repository's root."""
    words, arrow, target = line.replace("\\\n", " ").partition(" > ")
    name, verb, *rest = shlex.split(words)
    assert name == "simctl"
    command = [sys.executable, "-m", "simulator", verb, *rest, *FEWER.get(verb, ())]
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    if arrow:
        (folder / target.strip()).write_text(ran.stdout, "utf-8")
    return ran


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands end with 0 (a plan may miss its target: 1), and leave the files that are named."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("scenarios", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    ran: list[str] = []
    for language, block in steps():
        if language == "toml":
            (tmp_path / "plan.toml").write_text(block, "utf-8")
            continue
        found = run(block.strip(), tmp_path)
        ran.append(block.split()[1])
        allowed = (0, 1) if ran[-1] == "plan" else (0,)
        assert found.returncode in allowed, (block, found.stdout, found.stderr)
        assert found.stdout, block

    assert ran == ["import", "calibrate", "compare", "plan", "grid"]
    for name in ("trace.json", "costs.toml", "compare.html", "plan.html", "grid.html"):
        assert (tmp_path / name).stat().st_size > 200, name

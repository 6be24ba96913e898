"""Scripts as specifications: a command, `----`, and what the core answers, in one-line notation.

`pytest tests/datadriven --rewrite` writes today's answers into the scripts; read the diff. The
first line of a script says what must hold, and its name is the story's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.datadriven.stage import Stage

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("*.txt"))
SCRIPTS_MIN = 40
RULE = "----"


class Scene:
    """One command with its comments, and the answer that the script holds."""

    def __init__(self, lines: list[str]) -> None:
        split = lines.index(RULE) if RULE in lines else len(lines)
        self.asked = lines[:split]
        self.answer = lines[split + 1 :]

    def commands(self) -> list[str]:
        """The commands of a scene; several lines above one rule are answered together."""
        return [line for line in self.asked if line and not line.startswith("#")]

    def text(self, answer: list[str]) -> str:
        """The scene as it stands in a script."""
        return "\n".join([*self.asked, RULE, *answer] if self.commands() else self.asked)


def scenes(path: Path) -> list[Scene]:
    """The scenes of a script, which blank lines part."""
    blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
    return [Scene(block.splitlines()) for block in blocks]


def play(stage: Stage, path: Path) -> list[tuple[Scene, list[str]]]:
    """Play a script and return each scene with what was answered."""
    played = []
    for scene in scenes(path):
        try:
            answer = stage.perform(scene.commands()) if scene.commands() else []
        except Exception as error:
            raise AssertionError(f"{path.name}: {scene.asked[-1]}: {error}") from error
        played.append((scene, answer))
    return played


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_plays_as_written(
    path: Path, stage: Stage, request: pytest.FixtureRequest
) -> None:
    """The core answers each command of a script as the script says, and no invariant breaks."""
    played = play(stage, path)
    if request.config.getoption("--rewrite", default=False):
        text = "\n\n".join(scene.text(answer) for scene, answer in played)
        path.write_text(text + "\n", encoding="utf-8")
        return

    for scene, answer in played:
        assert answer == scene.answer, f"{path.name}, at: {' / '.join(scene.commands())}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_opens_with_its_story(path: Path) -> None:
    """The first line of a script says in one sentence what must hold."""
    first = path.read_text(encoding="utf-8").splitlines()[0]

    assert first.startswith("# ")
    assert first.endswith(".")


def test_there_are_enough_stories() -> None:
    """Nobody removed the stories."""
    assert len(SCRIPTS) >= SCRIPTS_MIN

"""Knobs that cannot work are refused in one line, before anything is started."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.demo import play
from controlplane.demo.options import TEXT_BYTES_MIN, BadDemo, DemoOptions, Faults, steps_for
from controlplane.localfleet import fleet


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"nodes": 1}, "--nodes 1: use 2 to 64"),
        ({"nodes": 65}, "--nodes 65"),
        ({"standbys": -1}, "--standbys -1"),
        ({"steps": 3}, "--steps 3"),
        ({"train_s": 0.0}, "--train-s 0: use 1 to"),
        ({"standbys": 0}, "use --standbys 1 or more, or --faults none"),
        ({"standbys": 0, "faults": Faults.KILL}, "needs a standby"),
        ({"nodes": 3}, "use --nodes 4 or more, or --faults kill"),
        ({"etcd": "http://127.0.0.1:1", "etcd_port": 5}, "give one of them"),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(knobs: dict[str, Any], words: str) -> None:
    """The line names the knob, why it cannot be, and what to ask for instead."""
    with pytest.raises(BadDemo) as refused:
        DemoOptions(**knobs)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"standbys": 0, "faults": Faults.NONE},
        {"nodes": 3, "faults": Faults.KILL},
        {"nodes": 2, "standbys": 3, "faults": Faults.KILL},
    ],
)
def test_knobs_that_can_work_are_taken(knobs: dict[str, Any]) -> None:
    """Every node has a name, and the standbys come last."""
    options = DemoOptions(**knobs)
    assert len(options.active) == options.nodes
    assert options.everyone[: options.nodes] == options.active
    assert len(set(options.everyone)) == options.nodes + options.standbys


def test_data_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Missing, empty and too little text are told apart, each with its path."""
    empty = tmp_path / "empty.txt"
    empty.touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, words in ((tmp_path / "none", "no such"), (empty, "0 bytes"), (folder, "0 bytes")):
        with pytest.raises(BadDemo, match=words) as refused:
            DemoOptions(data=path)
        assert str(path) in str(refused.value)


def test_data_may_be_a_file_or_a_folder(tmp_path: Path) -> None:
    """A folder counts with everything below it."""
    text = tmp_path / "a" / "b.txt"
    text.parent.mkdir()
    text.write_bytes(b"x" * TEXT_BYTES_MIN)
    assert DemoOptions(data=text).data == text
    assert DemoOptions(data=tmp_path).data == tmp_path


def test_a_run_takes_its_time_on_any_machine() -> None:
    """Steps follow from the pace of the machine, within what a run may have."""
    assert steps_for(40, 80) == 500
    assert steps_for(40, 8) == 5000
    assert steps_for(40, 81.3) == 490
    assert steps_for(1, 5000) == 20


async def test_an_installation_without_the_examples_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed from a wheel, a demo says so at once, and leaves no folder where it was called."""
    installed = tmp_path / "site-packages" / "controlplane" / "localfleet" / "fleet.py"
    monkeypatch.setattr(fleet, "__file__", str(installed))
    runs = tmp_path / "runs"

    with pytest.raises(BadDemo, match="run it from one"):
        await play.open_folder(DemoOptions(runs=runs))

    assert not runs.exists()

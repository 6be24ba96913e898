"""The folder of a run: never one that another run wrote to."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.localfleet.folder import FolderTaken, RunFolder


def test_a_folder_that_was_named_must_not_exist(tmp_path: Path) -> None:
    """Not even an empty one, so that nothing of an earlier run is ever mixed in."""
    RunFolder.made(tmp_path / "runs" / "a")
    with pytest.raises(FolderTaken, match="never overwrites"):
        RunFolder.made(tmp_path / "runs" / "a")


def test_numbered_folders_are_passed_over_when_taken(tmp_path: Path) -> None:
    """The next free number is made."""
    (tmp_path / "demo-1").mkdir()
    assert RunFolder.numbered(tmp_path, "demo").path.name == "demo-2"


def test_two_runs_at_once_get_two_folders(tmp_path: Path) -> None:
    """Making is taking: there is no moment between looking and making."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunFolder.numbered(tmp_path, "demo").path, range(24)))
    assert len(set(made)) == 24


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One line with the path."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FolderTaken, match="name another folder") as refused:
        RunFolder.made(file / "run")
    assert str(file) in str(refused.value)


def test_only_the_owner_may_read_the_secret(tmp_path: Path) -> None:
    """It is drawn anew for every run and readable by nobody else."""
    one, two = RunFolder.made(tmp_path / "1"), RunFolder.made(tmp_path / "2")
    for folder in (one, two):
        assert stat.S_IMODE(folder.write_secret().stat().st_mode) == 0o600
    assert one.secret.read_text() != two.secret.read_text()
    assert len(one.secret.read_text()) >= 32

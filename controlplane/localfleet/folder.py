"""Where a run writes: one folder that nothing of an earlier run is in.

What belongs here: names of files, and making the folder. Nothing is ever overwritten: a folder
that exists is refused if it was named, and passed over if it was numbered.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from statemachine.errors import UsageError

_NUMBERED_MAX: Final = 10_000
_SECRET_BYTES: Final = 32


class FolderTaken(UsageError):
    """The folder that was named for a run exists already."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events.jsonl"
        self.vitals = path / "vitals.jsonl"
        self.report = path / "report.html"
        self.outcome = path / "outcome.json"
        self.secret = path / "secret"
        self.logs = path / "logs"
        self.faults = path / "faults"
        self.steps = path / "steps"

    @classmethod
    def made(cls, path: Path) -> RunFolder:
        """Make the folder that was named.

        Raises:
            FolderTaken: it exists, or cannot be made.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            raise FolderTaken(
                f"{path} exists: a run never overwrites another; name another folder, or remove it"
            ) from None
        except OSError as error:
            raise FolderTaken(
                f"{path} cannot be made ({error.strerror}): name another folder"
            ) from error
        return cls(path)

    @classmethod
    def numbered(cls, parent: Path, stem: str) -> RunFolder:
        """Make the first free of `stem-1`, `stem-2`, ... in `parent`; two at once get two.

        Raises:
            FolderTaken: `parent` cannot be written to.
        """
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for number in range(1, _NUMBERED_MAX):
                path = parent / f"{stem}-{number}"
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return cls(path)
        except OSError as error:
            raise FolderTaken(
                f"{parent} cannot be written to ({error.strerror}): name another folder"
            ) from error
        raise FolderTaken(f"{parent} holds {_NUMBERED_MAX} runs: remove old ones")

    def within(self, name: str) -> RunFolder:
        """Make a folder for a second run that belongs to this one."""
        path = self.path / name
        path.mkdir()
        return RunFolder(path)

    def write_secret(self) -> Path:
        """Draw the secret that the fleet's nodes share; only its owner may read it."""
        descriptor = os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_SECRET_BYTES))
        return self.secret

    def fault_file(self, node: str) -> Path:
        """The file that a node's training process reads its injected fault from."""
        return self.faults / f"{node}.json"

    def step_file(self, node: str) -> Path:
        """The file that a node's training process writes its steps to."""
        return self.steps / f"{node}.jsonl"

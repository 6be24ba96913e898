"""Text to learn from, as bytes, and batches that depend on nothing but seed, step and place.

By default the source of the Python standard library of this interpreter, which every machine that
can run this has. The order of files is fixed, so equal machines read equal bytes.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

BYTES_MAX = 2_000_000
"""Enough for minutes of training on a small model; what comes after is left out."""


class CorpusError(ValueError):
    """There is nothing to learn from; the message says why and where."""


class Corpus:
    """Bytes, cut into batches of `batch` sequences of `context` bytes each."""

    def __init__(self, text: bytes, *, batch: int, context: int, seed: int) -> None:
        """Raises CorpusError if the text has no more than one sequence in it."""
        if len(text) < 2 * (context + 1):
            raise CorpusError(f"{len(text)} bytes of text are too few for a context of {context}")
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._batch, self._context, self._seed = batch, context, seed

    @classmethod
    def load(cls, path: Path | None, *, batch: int, context: int, seed: int) -> "Corpus":
        """Read a file, all files of a folder, or (None) the standard library's source.

        Raises CorpusError if there is nothing there, too little, or it cannot be read.
        """
        where = Path(sysconfig.get_paths()["stdlib"]) if path is None else path
        try:
            text = read(where, "*.py" if path is None else "*")
        except OSError as error:
            raise CorpusError(f"{where}: {error.strerror or error}") from None
        try:
            return cls(text, batch=batch, context=context, seed=seed)
        except CorpusError as error:
            raise CorpusError(f"{where}: {error}") from None

    def __len__(self) -> int:
        return len(self._tokens)

    def batch(self, step: int, index: int, size: int) -> tuple[Tensor, Tensor]:
        """Input and target of replica `index` of `size` in `step`: int64, (batch, context).

        A pure function of the seed and these three: nothing has to be remembered or sent along, and
        a node that takes over a place goes on with exactly the data of that place.
        """
        key = hashlib.blake2b(f"{self._seed}|{step}|{index}|{size}".encode(), digest_size=7)
        chance = torch.Generator().manual_seed(int.from_bytes(key.digest(), "little"))
        last = len(self._tokens) - self._context - 1
        starts = torch.randint(last, (self._batch, 1), generator=chance)
        rows = self._tokens[starts + torch.arange(self._context + 1)].long()
        return rows[:, :-1], rows[:, 1:]


def read(where: Path, pattern: str) -> bytes:
    """The bytes of a file, or of the files of a folder in the order of their paths, up to the cap.

    Raises OSError if something is missing or cannot be read.
    """
    if not where.is_dir():
        with where.open("rb") as file:
            return file.read(BYTES_MAX)
    text = bytearray()
    for file_path in _files(where, pattern):
        text += file_path.read_bytes()
        if len(text) >= BYTES_MAX:
            break
    return bytes(text[:BYTES_MAX])


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    skipped = {"site-packages", "dist-packages", "__pycache__", "test", "tests", ".git"}
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and not skipped & set(path.relative_to(folder).parts):
            yield path

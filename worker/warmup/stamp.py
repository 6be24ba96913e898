"""What a rehearsal, and a recording of one step, is good for: the code that would run it again.

Rules of this file: it reads the script, what the script imported from beside it, its arguments, the
layout, the versions and the types of the state, and makes one text of each, so that two stamps that
differ can say in what. It is read before any step: an optimizer that has stepped has more state
than it began with, and is the same code all the same.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from statemachine.layout import Layout
from worker.transfer import TensorSpec

_OURS = {"worker", "statemachine", "controlplane", "simulator"}


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Five texts that must all be equal before one process may use what another recorded."""

    code: str
    arguments: str
    layout: str
    versions: str
    dtypes: str

    @property
    def digest(self) -> str:
        """One short name for all of it."""
        return _hashed(msgspec.json.encode(self))

    def differs_in(self, other: Stamp) -> list[str]:
        """What is not the same, with both values, in words."""
        return [
            f"{name} ({getattr(other, name)} there, {getattr(self, name)} here)"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]


def stamp_of(layout: Layout, specs: Iterable[TensorSpec]) -> Stamp:
    """The stamp of this process: its script, layout and versions, and the state given."""
    listed = list(specs)
    shapes = "".join(f"{spec.name}{spec.dtype}{spec.shape}" for spec in listed)
    dtypes = ",".join(sorted({spec.dtype for spec in listed}))
    axes = " x ".join(f"{name}={size}" for name, size in layout.axes)
    return Stamp(
        code=_hashed(b"".join(_sources(Path(sys.argv[0]), sys.modules))),
        arguments=_hashed("\0".join(sys.argv[1:]).encode()),
        layout=f"{axes}, {layout.ranks_per_node} per node{_rest(layout)}",
        versions=f"torch {torch.__version__}, python {platform.python_version()}, "
        f"numpy {np.__version__}",
        dtypes=f"{dtypes} {_hashed(shapes.encode())}",
    )


def _rest(layout: Layout) -> str:
    further = (layout.groups, layout.rank_sets)
    return f", groups {_hashed(repr(further).encode())}" if any(further) else ""


def _sources(script: Path, modules: Mapping[str, Any]) -> Iterable[bytes]:
    """The script, and the modules that it imported from its own folder, by path.

    Not what is installed there, and not Changeover itself: versions stand for those, and which of
    our modules are loaded yet is a matter of chance.
    """
    if not script.is_file():
        return
    yield script.read_bytes()
    folder = script.resolve().parent
    found = set()
    for name, module in list(modules.items()):
        path = getattr(module, "__file__", None)
        if not path or name.partition(".")[0] in _OURS or name == "__main__":
            continue
        within = Path(path)
        if folder in within.parents and "site-packages" not in within.parts:
            found.add(within)
    for path in sorted(found - {script.resolve()}):
        yield path.read_bytes()


def _hashed(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]

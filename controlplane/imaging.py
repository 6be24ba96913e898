"""What a sequencer knows at a position, as bytes and back: the payload of a snapshot.

What belongs here: the translation of the folded state. Persistent maps become sorted lists of
pairs, so that equal states are equal bytes under any hash seed; the rest is plain msgspec JSON,
compressed, behind one header line.

    {"changeover": "snapshot", "version": 1, "shape": "...", "fleet": "...", "position": 41}

Theory of operation. A snapshot replaces folding, so it is worth only what the fold of *this*
release would have said. `version` is raised by hand when the fold comes to mean something else;
`shape` is a digest of all fields and types that a state consists of, and changes by itself. A
snapshot that differs in either is not read: the log is folded instead, from the store or an
archive. The decoder is built from the annotations of `statemachine.state`, with a stand-in for each
persistent map, because msgspec cannot look into those by itself.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from rpds import HashTrieMap, HashTrieSet

from controlplane.errors import ControlError
from controlplane.turn import Counters
from statemachine import state as shapes
from statemachine.ids import Incarnation
from statemachine.state import FleetState

FOLD_VERSION: Final = 1
"""Raised when the same events fold to another meaning without another shape."""

_MAGIC: Final = "snapshot"

K = TypeVar("K")
V = TypeVar("V")


class SnapshotUnusable(ControlError):
    """A snapshot that this release cannot take for its own fold: fold the log instead."""


class Image(Struct, frozen=True, kw_only=True):
    """What is in a snapshot: the fold, and each writer's last fact."""

    state: FleetState
    counters: Counters


class _Header(Struct, frozen=True, kw_only=True):
    changeover: str
    version: int
    shape: str
    fleet: str
    position: int


class _Map(Generic[K, V]):
    """Stands for a persistent map in an annotation, and holds the one that was decoded."""

    def __init__(self, real: object) -> None:
        self.real = real


class _Set(Generic[K]):
    """Stands for a persistent set likewise."""

    def __init__(self, real: object) -> None:
        self.real = real


def _is_shape(value: object) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, Struct)
        and value.__module__ == (shapes.__name__)
    )


@lru_cache(maxsize=1)
def _images() -> dict[type[Struct], type[Struct]]:
    """For each record that holds a persistent map, or such a record: what msgspec can decode."""
    names: dict[str, Any] = dict(vars(shapes)) | {"HashTrieMap": _Map, "HashTrieSet": _Set}
    made: dict[type[Struct], type[Struct]] = {}
    for kind in [value for value in vars(shapes).values() if _is_shape(value)]:
        texts = {name: str(text) for name, text in inspect.get_annotations(kind).items()}
        marks = "|".join(["HashTrieMap", "HashTrieSet", *(each.__name__ for each in made)])
        if not any(re.search(rf"\b({marks})\b", text) for text in texts.values()):
            continue
        fields = [(name, eval(text, names)) for name, text in texts.items()]  # noqa: S307
        image = msgspec.defstruct(f"{kind.__name__}Image", fields, frozen=True, kw_only=True)
        made[kind] = names[kind.__name__] = image
    return made


def _real(value: Any) -> Any:
    """From the decoded stand-in of a record or a map to what it stands for."""
    if isinstance(value, (_Map, _Set)):
        return value.real
    for kind, image in _images().items():
        if type(value) is image:
            fields = {name: _real(getattr(value, name)) for name in image.__struct_fields__}
            return kind(**fields)
    return value


def _decode_custom(kind: Any, value: Any) -> Any:
    arguments = get_args(kind)
    if get_origin(kind) is _Map:
        wanted: Any = list[tuple.__class_getitem__(arguments)]  # type: ignore[misc]
        pairs = msgspec.convert(value, wanted, dec_hook=_decode_custom)
        return _Map(HashTrieMap([(key, _real(item)) for key, item in pairs]))
    if get_origin(kind) is _Set:
        wanted = list[arguments[0]]  # type: ignore[valid-type]
        return _Set(HashTrieSet(msgspec.convert(value, wanted)))
    msg = f"a state holds {kind}, which a snapshot does not know"
    raise NotImplementedError(msg)


def _encode_custom(value: Any) -> Any:
    if isinstance(value, HashTrieMap):
        return sorted(value.items(), key=_first)
    if isinstance(value, HashTrieSet):
        return sorted(value)
    msg = f"a state holds {type(value)}, which a snapshot does not know"
    raise NotImplementedError(msg)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


@lru_cache(maxsize=1)
def shape() -> str:
    """Digest of every field and type that a state of this release consists of."""

    def name_of(kind: Any) -> dict[str, Any]:
        return {"title": re.sub(r"\w+\.", "", str(kind))}

    images = _images()
    kinds = [images.get(kind, kind) for kind in vars(shapes).values() if _is_shape(kind)]
    _, parts = msgspec.json.schema_components(kinds, schema_hook=name_of)
    plain = msgspec.json.encode(_without_words(parts), order="deterministic")
    return hashlib.sha256(plain).hexdigest()[:16]


def _without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_words(v) for k, v in schema.items() if k != "description"}
    return [_without_words(each) for each in schema] if isinstance(schema, list) else schema


@lru_cache(maxsize=1)
def _decoder() -> Callable[[bytes], Any]:
    state = _images()[FleetState]
    kind = msgspec.defstruct(
        "ImageImage",
        [("state", state), ("counters", _Map[str, tuple[Incarnation, int]])],
        frozen=True,
        kw_only=True,
    )
    return msgspec.json.Decoder(kind, dec_hook=_decode_custom).decode


def encode_image(fleet: str, image: Image) -> bytes:
    """Write a snapshot; equal images give equal bytes."""
    header = _Header(
        changeover=_MAGIC,
        version=FOLD_VERSION,
        shape=shape(),
        fleet=fleet,
        position=image.state.position,
    )
    payload = msgspec.json.Encoder(enc_hook=_encode_custom, order="deterministic").encode(image)
    return msgspec.json.encode(header) + b"\n" + zlib.compress(payload, 1)


def decode_image(fleet: str, blob: bytes) -> Image:
    """Read a snapshot.

    Raises:
        SnapshotUnusable: of another fleet or release, or not a snapshot at all.
    """
    line, _, packed = blob.partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=_Header)
    except msgspec.MsgspecError as error:
        raise SnapshotUnusable(f"not a snapshot: {error}") from error
    if (header.changeover, header.fleet) != (_MAGIC, fleet):
        raise SnapshotUnusable(f"a {header.changeover} of fleet {header.fleet}, not of {fleet}")
    if (header.version, header.shape) != (FOLD_VERSION, shape()):
        raise SnapshotUnusable(
            f"the snapshot at position {header.position} was made by a release that folds "
            f"otherwise (version {header.version}, shape {header.shape}; here "
            f"{FOLD_VERSION}, {shape()})"
        )
    try:
        found = _decoder()(zlib.decompress(packed))
    except (zlib.error, msgspec.MsgspecError, TypeError) as error:
        raise SnapshotUnusable(f"the snapshot at position {header.position}: {error}") from error
    return Image(state=_real(found.state), counters=_real(found.counters))

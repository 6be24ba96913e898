"""Images, chunks and seals: nothing is lost, moved or taken for something else."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from worker.transfer import ImageHeader, ImageRefused, StateImage, TensorSpec, TensorView
from worker.transfer.image import ChunkMap
from worker.transfer.pool import ChunkPool
from worker.transfer.seal import HEADER_INDEX, SEAL_BYTES, Sealer
from worker.transfer.token import Binding, Handshake, Party

KEY = bytes(range(32))


def image_of(*sizes: int) -> StateImage:
    """Tensors of these sizes in bytes, each byte telling where it is."""
    views, at = [], 0
    for number, size in enumerate(sizes):
        memory = bytearray(hashlib.shake_128(b"%d" % number).digest(size))
        views.append(TensorView(TensorSpec(f"t{number}", "U8", (size,)), memoryview(memory)))
        at += size
    return StateImage(tuple(views), {"n": len(sizes)})


@given(
    sizes=some.lists(some.integers(0, 40), max_size=12),
    chunk_bytes=some.integers(1, 50),
    order=some.randoms(use_true_random=False),
)
def test_chunks_cover_every_byte_once_in_any_order(
    sizes: list[int], chunk_bytes: int, order: Any
) -> None:
    """Gathering all chunks of one image and settling them in another copies it, bit for bit."""
    source = image_of(*sizes)
    target = StateImage.allocate(source.header)
    giving, taking = ChunkMap(source, chunk_bytes), ChunkMap(target, chunk_bytes)
    scratch = memoryview(bytearray(chunk_bytes))
    indices = list(range(giving.count))
    order.shuffle(indices)

    assert sum(giving.size(index) for index in indices) == source.nbytes == sum(sizes)
    for index in indices:
        chunk = bytes(giving.gather(index, memoryview(bytearray(chunk_bytes))))
        landing = taking.landing(index, scratch)
        landing[:] = chunk
        taking.settle(index, landing)

    assert target.digest() == source.digest()


def test_a_chunk_is_named_by_its_bytes_and_tensors() -> None:
    """A refused chunk can be found: where it begins and ends, and what lies there."""
    chunks = ChunkMap(image_of(10, 0, 5, 30), 16)

    assert chunks.describe(0) == "chunk 0 (bytes 0..16, t0 .. t3)"
    assert chunks.describe(2) == "chunk 2 (bytes 32..45, t3)"
    with pytest.raises(IndexError):
        chunks.size(3)


names = some.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
specs = some.builds(
    TensorSpec,
    names,
    some.sampled_from(["F32", "BF16", "I64", "BOOL", "C64"]),
    some.lists(some.integers(0, 5), max_size=3).map(tuple),
)
metas = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=8,
)


@settings(max_examples=60)
@given(some.lists(specs, unique_by=lambda spec: spec.name), some.dictionaries(some.text(), metas))
def test_a_header_survives_its_encoding(found: list[TensorSpec], meta: dict[str, Any]) -> None:
    """Names, types, shapes and metadata of a header come back as they were, aligned to 8 bytes."""
    encoded = ImageHeader(tuple(found), meta).encoded()

    assert ImageHeader.decoded(encoded) == ImageHeader(tuple(found), meta)
    assert len(encoded) % 8 == 0


def test_a_header_is_that_of_a_safetensors_file() -> None:
    """Offsets are dense and in order, so a stream can be stored as a safetensors file."""
    encoded = image_of(3, 8).header.encoded()

    entries = json.loads(encoded[8:])
    assert entries["t0"] == {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}
    assert entries["t1"]["data_offsets"] == [3, 11]
    assert all(isinstance(value, str) for value in entries["__metadata__"].values())


def _header(**entry: Any) -> bytes:
    fields = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]} | entry
    text = json.dumps({"__metadata__": {"changeover": "{}"}, "t": fields}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x08" + bytes(7) + b"not json",
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9 << 60).to_bytes(8, "little") + b"{}",
        _header(dtype="PICKLE"),
        _header(shape=[-3]),
        _header(shape=[True, 3]),
        _header(shape="333"),
        _header(shape=[2]),
        _header(data_offsets=[1, 4]),
        _header(data_offsets=[0, 1 << 60], shape=[1 << 59]),
        (1 << 17).to_bytes(8, "little") + b"[" * (1 << 17),
    ],
)
def test_a_malformed_header_is_refused(raw: bytes) -> None:
    """What is not a header is refused as such, whatever it is instead."""
    with pytest.raises(ImageRefused):
        ImageHeader.decoded(raw)


def test_memory_must_fit_its_spec() -> None:
    """A view that is too short, or no flat bytes, is refused by its tensor's name."""
    with pytest.raises(ImageRefused, match="tensor t: 12 flat bytes expected"):
        TensorView(TensorSpec("t", "F32", (3,)), memoryview(bytearray(11)))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 4096, 100_003])
def test_a_seal_fits_its_own_chunk_alone(size: int) -> None:
    """Another session, another place, another length or one flipped bit anywhere does not fit."""
    chunk = bytearray(hashlib.shake_128(b"chunk").digest(size))
    view = memoryview(chunk)
    seal = Sealer(KEY).seal(5, view)

    assert len(seal) == SEAL_BYTES
    assert Sealer(KEY).fits(seal, 5, bytes(chunk))
    assert not Sealer(bytes(32)).fits(seal, 5, view)
    assert not Sealer(KEY).fits(seal, 6, view)
    assert not Sealer(KEY).fits(seal, 5, bytes(chunk) + b"\0")
    for at in {0, size // 2, size - 1} & set(range(size)):
        for bit in (0, 7):
            chunk[at] ^= 1 << bit
            assert not Sealer(KEY).fits(seal, 5, view)
            chunk[at] ^= 1 << bit
    for at in range(SEAL_BYTES):
        forged = seal[:at] + bytes([seal[at] ^ 1]) + seal[at + 1 :]
        assert not Sealer(KEY).fits(forged, 5, view)


def test_no_nonce_is_used_twice() -> None:
    """The same chunk sealed again has another seal, and both fit: the count moves on."""
    sealer = Sealer(KEY)
    seals = [sealer.seal(index, b"chunk") for index in (0, 0, 1, HEADER_INDEX)]

    assert len({seal[:4] for seal in seals}) == 4
    assert Sealer(KEY).fits(seals[0], 0, b"chunk")
    assert Sealer(KEY).fits(seals[1], 0, b"chunk")
    assert Sealer(KEY).fits(seals[3], HEADER_INDEX, b"chunk")


def test_no_two_bindings_share_a_token() -> None:
    """Fields that run together differently, and every single change, give another token."""
    base = Binding("job", 12, 3, Party("n1", 1), Party("n2", 1))
    tokens = {base.token(KEY), base.token(bytes(32))}
    for other in [
        Binding("job1", 12, 3, Party("n1", 1), Party("n2", 1)),
        Binding("job", 1, 23, Party("n1", 1), Party("n2", 1)),
        Binding("job", 12, 3, Party("n11", 1), Party("n2", 1)),
        Binding("job", 12, 3, Party("n1", 11), Party("n2", 1)),
        Binding("job", 12, 3, Party("n2", 1), Party("n1", 1)),
    ]:
        tokens.add(other.token(KEY))

    assert len(tokens) == 7


def test_both_proofs_and_the_session_key_differ() -> None:
    """What one end proves cannot be played back as the other's proof, nor in another session."""
    one = Handshake.of(KEY, b"a" * 16, b"b" * 16)
    turned = Handshake.of(KEY, b"b" * 16, b"a" * 16)

    values = [one.source_proof, one.joiner_proof, one.session_key]
    values += [turned.source_proof, turned.joiner_proof, turned.session_key]
    assert len(set(values)) == 6


def test_chunks_given_back_are_taken_again_first_or_last() -> None:
    """What a lost source had been asked for comes first, a bad chunk is left to others."""
    pool = ChunkPool(ChunkMap(image_of(4), 1))
    assert pool.take(0, 8, wait=False) == [0, 1]
    assert pool.take(0, 8, wait=False) == [2, 3]

    pool.give_back([1, 2])
    pool.give_back([0], last=True)

    assert pool.take(0, 8, wait=False) == [1, 2]
    assert pool.take(0, 8, wait=False) == [0]
    assert pool.take(0, 8, wait=False) == []
    for _ in range(4):
        pool.arrived()
    assert pool.complete
    assert pool.take(0, 8, wait=True) == []


def test_a_source_is_asked_in_batches_and_less_towards_the_end() -> None:
    """Requests go out when half of the window is used up; the window shrinks with what is left."""
    pool = ChunkPool(ChunkMap(image_of(100), 1), sources=2)

    assert len(pool.take(0, 16, wait=False)) == 16
    assert pool.take(9, 16, wait=False) == []
    assert len(pool.take(8, 16, wait=False)) == 8
    assert len(pool.take(0, 64, wait=False)) == 76 // 4
    sizes = []
    while taken := pool.take(0, 64, wait=False):
        sizes.append(len(taken))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 2

"""Images, chunks and seals: nothing is lost, moved or taken for something else."""

import hashlib
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from worker.transfer import ImageHeader, ImageRefused, StateImage, TensorSpec, TensorView
from worker.transfer.image import ChunkMap
from worker.transfer.pool import ChunkPool
from worker.transfer.seal import _GemmSeal, _product_with, algorithms, seal_of
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


@pytest.fixture(params=["blake2b", "gemm"])
def seal(request: pytest.FixtureRequest) -> Any:
    """Each algorithm, whether or not it is the faster one here."""
    if request.param == "gemm":
        return _GemmSeal
    return lambda key: seal_of("blake2b", key)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096 + 5])
def test_a_seal_depends_on_key_index_and_every_bit(seal: Any, size: int) -> None:
    """Another session, another place or one flipped bit anywhere gives another seal."""
    chunk = bytearray(hashlib.shake_128(b"chunk").digest(size))
    seals = {seal(KEY)(0, memoryview(chunk)), seal(bytes(32))(0, memoryview(chunk))}
    seals.add(seal(KEY)(1, memoryview(chunk)))
    seals.add(seal(KEY)(0, memoryview(bytes(size + 1))))
    spots = {0, size // 2, size - 1, 4095, 4096} & set(range(size))
    for at in spots:
        for bit in (0, 7):
            chunk[at] ^= 1 << bit
            seals.add(seal(KEY)(0, memoryview(chunk)))
            chunk[at] ^= 1 << bit

    assert len(seals) == 4 + 2 * len(spots)
    assert seal(KEY)(0, memoryview(chunk)) == seal(KEY)(0, memoryview(bytes(chunk)))


def test_swapped_rows_are_told_apart() -> None:
    """The product alone would not notice rows that change places; the seal does."""
    rows = [bytes([value]) * 4096 for value in (1, 2)]
    one, other = b"".join(rows), b"".join(reversed(rows))

    assert _GemmSeal(KEY)(0, memoryview(one)) != _GemmSeal(KEY)(0, memoryview(other))


def test_the_product_is_exact_for_the_largest_sums() -> None:
    """Extreme bytes against extreme keys give the integers that arithmetic gives, unsaturated."""
    matrix = bytearray(b"\xc0\x3f" * (4096 * 8))
    rows = bytearray(b"\x7f" * 4096 + b"\x80" * 4096)

    product = torch.frombuffer(
        bytearray(_product_with(matrix)(memoryview(rows))), dtype=torch.int32
    )

    expected = [4096 * 127 * -64, 4096 * 127 * 63, 4096 * 128 * 64, 4096 * -128 * 63]
    assert product.view(2, 16)[:, :2].flatten().tolist() == expected


def test_an_algorithm_that_is_not_there_is_refused() -> None:
    """Nobody is talked into an algorithm that does not exist."""
    assert algorithms()[-1] == "blake2b"
    with pytest.raises(ValueError, match="no seal algorithm 'none'"):
        seal_of("none", KEY)


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
    taken = [pool.take(wait=False) for _ in range(3)]
    assert taken == [0, 1, 2]

    pool.give_back([1, 2])
    pool.give_back([0], last=True)

    assert [pool.take(wait=False) for _ in range(5)] == [1, 2, 3, 0, None]
    for _ in range(4):
        pool.arrived()
    assert pool.complete
    assert pool.take(wait=True) is None

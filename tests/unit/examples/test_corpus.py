"""The examples' data: fixed by seed, step and place, and refused in one line when it is no use."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    """The module examples/corpus.py, which is a script's neighbour and in no package."""
    spec = importlib.util.spec_from_file_location("example_corpus", EXAMPLES / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_batch_is_a_function_of_seed_step_and_place(corpus: ModuleType) -> None:
    """Equal seed, step and place give equal batches; changing any gives another."""
    text = bytes(range(256)) * 40

    def batch(seed: int, step: int, index: int) -> torch.Tensor:
        made = corpus.Corpus(text, batch=4, context=16, seed=seed)
        x, y = made.batch(step, index, 4)
        assert x.shape == y.shape == (4, 16)
        assert torch.equal(x[:, 1:], y[:, :-1])
        got: torch.Tensor = x
        return got

    assert torch.equal(batch(1, 2, 3), batch(1, 2, 3))
    for other in [(0, 2, 3), (1, 3, 3), (1, 2, 0)]:
        assert not torch.equal(batch(1, 2, 3), batch(*other))


def test_the_standard_library_is_the_default(corpus: ModuleType) -> None:
    """Without a path there are two million bytes of Python source, always the same."""
    one = corpus.Corpus.load(None, batch=1, context=8, seed=0)
    two = corpus.Corpus.load(None, batch=1, context=8, seed=0)

    assert len(one) == corpus.BYTES_MAX
    assert torch.equal(one.batch(5, 0, 1)[0], two.batch(5, 0, 1)[0])


def test_a_folder_is_read_in_the_order_of_its_paths(corpus: ModuleType, tmp_path: Path) -> None:
    """Every file of a folder counts, in sorted order, whatever order the disk gives."""
    (tmp_path / "b").mkdir()
    (tmp_path / "c.txt").write_bytes(b"ccc")
    (tmp_path / "b" / "z.md").write_bytes(b"bbb")
    (tmp_path / "a.bin").write_bytes(b"aaa")

    assert corpus.read(tmp_path, "*") == b"aaabbbccc"


def test_what_cannot_be_learned_from_is_refused_with_its_path(
    corpus: ModuleType, tmp_path: Path
) -> None:
    """A missing path, an empty folder and a short file each give one line that names them."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_bytes(b"too short")
    for name, reason in [
        ("missing", "No such file or directory"),
        ("empty", "0 bytes of text are too few for a context of 8"),
        ("short", "9 bytes of text are too few for a context of 8"),
    ]:
        with pytest.raises(corpus.CorpusError) as refused:
            corpus.Corpus.load(tmp_path / name, batch=1, context=8, seed=0)

        assert str(refused.value) == f"{tmp_path / name}: {reason}"


def test_the_model_learns_and_is_of_the_stated_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model has about 0.8 million parameters, and its loss falls within 30 steps."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        import recipe

        args = recipe.arguments("x").parse_args(["--context", "32", "--batch", "4"])
        parts = recipe.recipe(args, seed=0)
        losses = []
        for step in range(30):
            x, y = parts.corpus.batch(step, 0, 1)
            loss = sys.modules["model"].loss_of(parts.model(x), y)
            loss.backward()
            parts.optimizer.step()
            parts.optimizer.zero_grad()
            losses.append(loss.item())
    finally:
        for name in ("recipe", "model", "corpus"):
            sys.modules.pop(name, None)

    size = sum(parameter.numel() for parameter in parts.model.parameters())
    assert 780_000 < size < 880_000
    assert sum(losses[-5:]) / 5 < losses[0] - 1.5, losses

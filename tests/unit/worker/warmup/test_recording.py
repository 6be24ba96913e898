"""Recordings: whole or absent, recognised by content, refused where they do not belong."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from statemachine.layout import Layout
from worker.transfer import TensorSpec
from worker.warmup.recorder import Recorder
from worker.warmup.recording import (
    Recording,
    RecordingDamaged,
    RecordingStale,
    load,
    path_of,
    save,
)
from worker.warmup.stamp import Stamp, stamp_of

STAMP = Stamp(code="c", arguments="a", layout="dp=2", versions="torch 9", dtypes="F32")


def recording(scale: float = 1.0, role: str = "middle") -> Recording:
    """A recorded step: two equal answers, an integer one, an empty one."""
    recorder = Recorder()
    recorder.begin()
    same = torch.arange(6.0).reshape(2, 3) * scale
    recorder.took("dp", "all_reduce", [same])
    place = recorder.place("pp", "recv")
    recorder.took("dp", "all_reduce", [torch.tensor([1, 2]), torch.empty(0)])
    recorder.took("dp", "barrier", [])
    recorder.fill(place, [same.clone()])
    return recorder.finish(role, 0, STAMP)


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    """Answers keep the order of their calls and every bit; what needs no answer is left out."""
    made = recording()
    save(made, path_of(tmp_path, "middle"), "n0.1")
    found = load(path_of(tmp_path, "middle"))

    assert found.name == made.name
    assert [(one.group, one.operation) for one in found.answers] == [
        ("dp", "all_reduce"),
        ("pp", "recv"),
        ("dp", "all_reduce"),
    ]
    tensors = found.tensors()
    for answer, expected in zip(found.answers, made.answers, strict=True):
        for name, other in zip(answer.outputs, expected.outputs, strict=True):
            assert torch.equal(tensors[name], made.tensors()[other])
            assert tensors[name].dtype == made.tensors()[other].dtype


def test_equal_answers_are_stored_once() -> None:
    """Two calls that were answered alike share their bytes; another answer has its own."""
    made = recording()
    assert made.answers[0].outputs == made.answers[1].outputs
    assert len(made.image.tensors) == 3
    assert made.nbytes == 6 * 4 + 2 * 8


def test_a_recording_is_named_by_its_content() -> None:
    """The same step gives the same name anywhere; other bits or another role give another."""
    assert recording().name == recording().name
    assert recording(scale=1.0000001).name != recording().name
    assert recording(role="last").name != recording().name


@pytest.mark.parametrize("cut", [0, 3, 7, 40, -1])
def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path, cut: int) -> None:
    """Wherever it ends, it is refused by name and not replayed."""
    path = path_of(tmp_path, "first")
    save(recording(), path, "n0.1")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RecordingDamaged, match="first"):
        load(path)


def test_one_flipped_bit_is_damage(tmp_path: Path) -> None:
    """Every byte of every answer counts."""
    path = path_of(tmp_path, "first")
    save(recording(), path, "n0.1")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(RecordingDamaged, match="not those of recording"):
        load(path)


@pytest.mark.parametrize("field", Stamp.__struct_fields__)
def test_what_other_code_recorded_is_refused_and_says_in_what_it_differs(field: str) -> None:
    """Code, arguments, layout, versions and types must all be this process's own."""
    made = recording()
    made.check(STAMP, "here")
    with pytest.raises(RecordingStale, match=rf"here: recorded with other {field} \("):
        made.check(replace(STAMP, **{field: "other"}), "here")


def _write_slowly(folder: Path, started: Any) -> None:
    """Write a recording, and hang when half of it is on the disk."""
    made, true_replace = recording(scale=2.0), Path.replace

    def hang(draft: Path, target: Path) -> Path:
        started.set()
        signal.pause()
        return true_replace(draft, target)

    Path.replace = hang  # type: ignore[method-assign, assignment]
    save(made, path_of(folder, "middle"), "n0.1")


def test_a_kill_in_the_middle_leaves_the_last_whole_one(tmp_path: Path) -> None:
    """A writer that is killed leaves a draft that nobody reads, and the next one removes it."""
    path = path_of(tmp_path, "middle")
    save(recording(), path, "n0.1")
    context = multiprocessing.get_context("fork")
    started = context.Event()
    writer = context.Process(target=_write_slowly, args=(tmp_path, started))
    writer.start()
    assert started.wait(20), "the writer did not get that far"
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(20)

    assert load(path).name == recording().name
    assert len(list(tmp_path.iterdir())) == 2, "the draft is still there"
    save(recording(scale=3.0), path, "n0.1")
    assert load(path).name == recording(scale=3.0).name
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_leaves_the_last_one(tmp_path: Path) -> None:
    """What cannot be written changes nothing, and leaves no draft."""
    path = path_of(tmp_path, "middle")
    save(recording(), path, "n0.1")

    broken = recording(scale=2.0)
    object.__setattr__(broken.image, "tensors", (None,))
    with pytest.raises(AttributeError):
        save(broken, path, "n0.1")
    assert load(path).name == recording().name
    assert list(tmp_path.iterdir()) == [path]


def test_a_message_that_was_never_waited_for_is_no_recording() -> None:
    """A place that stayed empty is an error that names the call."""
    recorder = Recorder()
    recorder.begin()
    recorder.place("pp", "recv")
    with pytest.raises(ValueError, match="recv of pp was posted and never waited for"):
        recorder.finish("first", 0, STAMP)


def test_a_stamp_knows_the_layout_the_types_and_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed line, a module beside the script, an argument, an axis, a type: each shows."""
    script = tmp_path / "train.py"
    script.write_text("x = 1\n")
    layout = Layout.of({"pp": 3, "dp": 2})
    specs = [TensorSpec("w", "F32", (2, 3))]
    monkeypatch.setattr("sys.argv", [str(script), "--steps", "3"])
    base = stamp_of(layout, specs)
    assert stamp_of(layout, specs) == base

    assert stamp_of(Layout.of({"pp": 3, "dp": 3}), specs).differs_in(base)[0].startswith("layout")
    half = stamp_of(layout, [TensorSpec("w", "BF16", (2, 3))])
    assert half.differs_in(base)[0].startswith("dtypes (F32")
    monkeypatch.setattr("sys.argv", [str(script), "--steps", "4"])
    assert [said.partition(" ")[0] for said in stamp_of(layout, specs).differs_in(base)] == [
        "arguments"
    ]
    monkeypatch.setattr("sys.argv", [str(script), "--steps", "3"])
    script.write_text("x = 2\n")
    changed = stamp_of(layout, specs)
    assert changed.differs_in(base)[0].startswith("code")
    assert changed.digest != base.digest
    beside = tmp_path / "model.py"
    beside.write_text("y = 1\n")
    module = type(os)("model")
    module.__file__ = str(beside)
    monkeypatch.setitem(__import__("sys").modules, "model", module)
    assert stamp_of(layout, specs).differs_in(changed)[0].startswith("code")

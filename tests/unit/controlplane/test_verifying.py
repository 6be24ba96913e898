"""`log verify` on a recorded log that was tampered with: what is wrong, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.errors import LogRefuted
from controlplane.verifying import verify_file
from statemachine.errors import UsageError

RECORDED = Path(__file__).parents[2] / "history" / "demo_kill_and_grey.events.jsonl"
Log = list[dict[str, Any]]


def recorded() -> Log:
    """A run that lost a node and swapped a grey one."""
    return [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]


def written(folder: Path, log: Log) -> Path:
    """A log as a file."""
    path = folder / "log.jsonl"
    lines = [json.dumps(entry, separators=(",", ":")) for entry in log]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def find(log: Log, kind: str, number: int = 0) -> int:
    """Index of an event of a kind."""
    return [at for at, entry in enumerate(log) if entry["event"]["type"] == kind][number]


def renumber(log: Log) -> None:
    """Hide that something was taken out or put in."""
    for position, entry in enumerate(log, 1):
        entry["position"] = position


def test_a_recorded_log_holds(tmp_path: Path) -> None:
    """As it was written, and with a space where there was none."""
    found = verify_file(written(tmp_path, recorded()))
    assert (found.entries, found.first, found.gaps) == (92, 1, ())
    assert str(verify_file(RECORDED)).startswith("ok: 92 events at positions 1 to 92")


def a_hole(log: Log) -> None:
    """An entry is gone."""
    del log[40]


def a_double(log: Log) -> None:
    """An entry stands twice."""
    log.insert(41, log[40])


def another_order(log: Log) -> None:
    """Two entries in each other's place."""
    log[35], log[36] = log[36], log[35]


def time_that_goes_back(log: Log) -> None:
    """A clock was set."""
    log[40]["at_ms"] -= 60_000


def a_tag_without_fields(log: Log) -> None:
    """An event that cannot be."""
    log[40]["event"] = {"type": "TransitionApplied"}


def a_fact_twice(log: Log) -> None:
    """A node's fact, stated once, sequenced twice, with nothing else wrong."""
    at = find(log, "StepResumed")
    log.insert(at + 1, dict(log[at]))
    renumber(log)


def facts_in_another_order(log: Log) -> None:
    """Two facts of one node in each other's place, their positions made to fit."""
    first = find(log, "StepResumed")
    writer = log[first]["writer"]
    second = next(at for at in range(first + 1, len(log)) if log[at]["writer"] == writer)
    log[first]["counter"], log[second]["counter"] = log[second]["counter"], log[first]["counter"]


def a_leap_of_epochs(log: Log) -> None:
    """Epoch 7 behind epoch 1."""
    log[find(log, "TransitionCommitted", 1)]["event"]["epoch"] = 7


def a_commit_of_nobody(log: Log) -> None:
    """A commit that comes before the last acknowledgement."""
    at = find(log, "TransitionCommitted", 1)
    log[at - 1], log[at] = log[at], log[at - 1]
    renumber(log)
    log[at - 1]["decided_from"] = at - 1


def a_second_commit(log: Log) -> None:
    """The same commit once more."""
    at = find(log, "TransitionCommitted", 1)
    log.insert(at + 1, json.loads(json.dumps(log[at])))
    renumber(log)
    log[at + 1]["decided_from"] = at + 1


def a_decision_without_reason(log: Log) -> None:
    """Nobody knows why."""
    log[find(log, "TransitionPlanned", 1)]["event"]["reason"] = ""


def two_slots_for_one(log: Log) -> None:
    """A launch that gives two slots to one node: every step of it looks as it should."""
    plan = log[find(log, "TransitionPlanned")]["event"]
    plan["changes"][3]["joiner"] = "n2"
    plan["required"].remove("n3")


@pytest.mark.parametrize(
    ("harm", "line", "words"),
    [
        (a_hole, 41, "position 41 was expected here"),
        (a_double, 42, "position 42 was expected here"),
        (another_order, 36, "position 36 was expected here"),
        (time_that_goes_back, 41, "before the last one's"),
        (a_tag_without_fields, 41, "TransitionApplied"),
        (a_fact_twice, 27, "of the same writer"),
        (facts_in_another_order, 38, "of the same writer"),
        (a_leap_of_epochs, 40, "invariant 12"),
        (a_commit_of_nobody, 39, "invariant 13"),
        (a_second_commit, 41, "invariant 19"),
        (a_decision_without_reason, 34, "invariant 17"),
        (two_slots_for_one, 19, "invariant [12] .*n2"),
    ],
)
def test_what_was_tampered_with_is_named(
    tmp_path: Path, harm: Callable[[Log], None], line: int, words: str
) -> None:
    """The line, and which of the rules it breaks."""
    log = recorded()
    harm(log)
    with pytest.raises(LogRefuted, match=words) as caught:
        verify_file(written(tmp_path, log))
    assert f"(line {line})" in str(caught.value) or f" line {line}:" in str(caught.value)


def test_a_fact_that_is_missing_is_told(tmp_path: Path) -> None:
    """Its writer's numbers say so, though positions are dense: it may have been set aside."""
    log = recorded()
    at = find(log, "PeerReset", 1)
    gone = log.pop(at)
    renumber(log)
    for entry in log[at:]:
        if entry.get("decided_from", 0) > at:
            entry["decided_from"] -= 1
    found = verify_file(written(tmp_path, log))
    assert found.gaps == (f"{gone['writer']}/{gone.get('incarnation', 0)}/{gone['counter']}",)
    assert "facts that are missing: 1" in str(found)


@pytest.mark.parametrize(("cut", "words"), [(3, "the file ends within it"), (None, "no entry")])
def test_a_file_that_is_cut_or_foreign_is_named(
    tmp_path: Path, cut: int | None, words: str
) -> None:
    """The line at which it ends to be a log."""
    content = RECORDED.read_bytes()
    path = tmp_path / "log.jsonl"
    path.write_bytes(content[:-cut] if cut else content + b"nobody's\n")
    with pytest.raises(LogRefuted, match=rf"line 9[23]: .*{words}"):
        verify_file(path)


def test_a_file_that_is_not_there_is_the_callers_fault(tmp_path: Path) -> None:
    """Exit 2, not 1."""
    with pytest.raises(UsageError, match="cannot be read"):
        verify_file(tmp_path / "none")

"""The verbs that read an exported log, as a person and as a program would run them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli import cli
from controlplane.cli import postmortem as verbs
from controlplane.cli.failing import run_to_exit
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import STEP_MS, Metric, Vitals, encode_vitals

Captured = pytest.CaptureFixture[str]
Change = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def run(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `changeover` with no etcd and no setting in sight."""
    for name in ("CHANGEOVER_ETCD", "CHANGEOVER_FLEET", "CHANGEOVER_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run_to_end(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            run_to_exit(cli, "changeover", [str(each) for each in arguments])
        said = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, said.out, said.err

    return run_to_end


Run = Callable[..., tuple[int, str, str]]


def values(run: Run, *arguments: object) -> dict[str, Any]:
    """What a verb prints as JSON."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_replay_says_in_short_what_happened(run: Run, demo_log: Path) -> None:
    """How many events, which nodes, which jobs, how long it was down."""
    found = values(run, "replay", demo_log)
    code, out, _ = run("replay", demo_log)

    assert code == 0
    assert (found["entries"], found["position"], found["nodes"]) == (92, 92, 5)
    assert found["nodes_by_state"] == {"spare": 4, "standby": 1}
    assert found["jobs"] == [{"job": "demo", "epoch": 3, "slots": 4, "finished": True}]
    assert "incidents: 2" in out


def test_timeline_tells_incidents_and_sums_to_wall_time(run: Run, demo_log: Path) -> None:
    """`accounting_s` has `wall` and the parts that sum to it; idle standbys stand apart."""
    found = values(run, "timeline", demo_log)
    spent = found["accounting_s"]

    assert [each["kind"] for each in found["incidents"]] == ["loss", "grey"]
    assert list(spent) == ["wall", "useful", "repeated", "waiting", "transition", "restart"]
    parts = sum(seconds for name, seconds in spent.items() if name != "wall")
    assert parts == pytest.approx(spent["wall"], abs=1e-5)
    assert found["idle_standby_node_s"] > 0
    _, out, _ = run("timeline", demo_log)
    assert re.search(r"loss \(kill\)\s+n1\s+1\s+n4\s+2\s+0\.243\s+1", out), out


def test_a_chain_leads_from_the_first_who_saw_it_to_the_step_that_ended_it(
    run: Run, demo_log: Path
) -> None:
    """Of a loss: the fault, the reset, the loss, the plan, who was waited for, commit, end."""
    loss, grey = values(run, "timeline", demo_log)["incidents"]
    _, told, _ = run("timeline", demo_log, "--chains")

    assert [link["type"] for link in loss["chain"]] == [
        "FaultInjected",
        "PeerReset",
        "NodeLost",
        "TransitionPlanned",
        "TransitionPrepared",
        "TransitionCommitted",
        "TransitionApplied",
        "TransitionFinished",
        "StepResumed",
    ]
    assert [link["position"] for link in loss["chain"]] == sorted(
        link["position"] for link in loss["chain"]
    )
    assert "VerdictIssued" in [link["type"] for link in grey["chain"]]
    assert "PeerReset            n2 lost n1/1 in dp[0]" in told


@pytest.mark.parametrize("moment", ["40", "+25.43s", "1795992603040"])
def test_at_shows_the_fleet_as_it_was(run: Run, demo_log: Path, moment: str) -> None:
    """By position, by distance from the beginning, by Unix time."""
    found = values(run, "at", demo_log, moment)

    (job,) = found["jobs"]
    assert (job["epoch"], job["pending"]["phase"]) == (2, "committed")


def test_at_answers_from_an_index_as_from_the_log(
    run: Run, demo_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an index pays it is made beside the log, and says the same."""
    log = Path(shutil.copy(demo_log, tmp_path / "log.jsonl"))
    plain = values(run, "at", log, "40")

    monkeypatch.setattr(verbs, "WORTH_AN_INDEX_BYTES", 1)
    indexed = [values(run, "at", log, "40") for _ in range(2)]

    assert log.with_name("log.jsonl.index").is_file()
    assert indexed == [plain, plain]


def test_diff_says_what_changed_between_two_moments(run: Run, demo_log: Path) -> None:
    """Who took the slot, and where the others went."""
    found = values(run, "diff", demo_log, "30", "50")
    code, out, _ = run("diff", demo_log, "30", "50")

    assert code == 0
    assert "node n4: state: standby -> active" in out
    assert (found["from_position"], found["to_position"]) == (30, 50)
    assert {record["name"] for record in found["records"]} >= {"n1", "n4", "demo"}


def test_what_is_wrong_is_said_first_and_the_rest_as_far_as_it_goes(
    run: Run, damaged: Callable[[Change], Path]
) -> None:
    """On stderr and in JSON, with the place; and the exit code says it too."""
    log = damaged(lambda lines: lines[:59] + lines[60:])

    code, out, err = run("timeline", log)
    assert code == 1
    assert "position 60 is missing" in err
    assert "loss (kill)" in out

    code, out, _ = run("timeline", log, "--json")
    found = json.loads(out)
    assert (code, found["whole"], found["entries"]) == (1, False, 59)
    assert list(found)[:3] == ["log", "whole", "damage"]
    assert found["damage"][0]["kind"] == "hole"


@pytest.mark.parametrize("verb", [("timeline",), ("at", "60"), ("diff", "1", "60"), ("replay",)])
def test_a_flipped_byte_that_still_decodes_is_told_where_it_cannot_be(
    run: Run, damaged: Callable[[Change], Path], verb: tuple[str, ...]
) -> None:
    """Epoch 2 became 6: no line is wrong by itself, and no fleet ever did that."""
    log = damaged(
        lambda lines: [
            raw.replace(b'"transition":2,"epoch":2,"resume', b'"transition":2,"epoch":6,"resume')
            for raw in lines
        ]
    )

    code, out, err = run(verb[0], log, *verb[1:])

    if verb[0] in ("timeline", "replay"):
        assert code == 1
        assert out
    assert "position 40" in err
    assert "epoch" in err


@pytest.mark.parametrize("verb", ["replay", "timeline"])
@pytest.mark.parametrize("content", [b"\x00\xff" * 100, b"{}\n", b'{"position":"x"}\n'])
def test_what_is_no_log_is_told_and_never_a_traceback(
    run: Run, tmp_path: Path, verb: str, content: bytes
) -> None:
    """Garbage is damage at its first line."""
    target = tmp_path / "garbage"
    target.write_bytes(content)

    code, _, err = run(verb, target)

    assert code == 1
    assert "line 1" in err


class Page(HTMLParser):
    """What a page asks for from elsewhere, and the text that it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.asked += [f"{tag} {v}" for name, v in attrs if name in ("src", "href", "srcset") and v]
        self.asked += [tag] if tag in ("script", "link", "iframe", "img", "object") else []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_report_needs_nothing_beside_it_and_escapes_what_nodes_say(
    run: Run, damaged: Callable[[Change], Path], tmp_path: Path
) -> None:
    """No script, no link, no image from elsewhere; a reason with markup in it is text."""
    evil = b"<script>alert(1)</script>"
    log = damaged(lambda lines: [raw.replace(b"SIGKILL to its", evil) for raw in lines])
    target = tmp_path / "report.html"

    code, _, _ = run("report", log, target)
    page = Page()
    page.feed(target.read_text("utf-8"))

    assert code == 0
    assert page.asked == []
    assert "url(" not in target.read_text("utf-8")
    shown = "".join(page.text)
    assert evil.decode() in shown
    for words in ("loss", "grey", "useful", "transition", "n4"):
        assert words in shown


def test_a_file_is_not_overwritten_without_force(run: Run, demo_log: Path, tmp_path: Path) -> None:
    """A second report needs another name, or --force."""
    target = tmp_path / "report.html"
    target.write_text("mine")

    code, _, err = run("report", demo_log, target)
    assert code == 2
    assert "--force" in err
    assert target.read_text() == "mine"

    assert run("trace", demo_log, target, "--force")[0] == 0
    assert json.loads(target.read_text())["traceEvents"]


def test_a_report_has_step_times_before_and_after_where_vitals_are_beside_the_log(
    run: Run, demo_log: Path, tmp_path: Path
) -> None:
    """Curves of step time and loss, and the median step around each incident."""
    folder = tmp_path / "run"
    folder.mkdir()
    log = Path(shutil.copy(demo_log, folder / "events.jsonl"))
    began_ms = 1_795_992_587_000
    windows = [
        Vitals(
            node=NodeId("n0"),
            incarnation=Incarnation(1),
            job=JobId("demo"),
            slot=Slot(0),
            role=Role("only"),
            epoch=Epoch(1),
            window=number,
            started_at_ms=began_ms + number * 1000,
            ended_at_ms=began_ms + number * 1000 + 1000,
            last_step=number * 10,
            loss=3.0 - number / 40,
            metrics={STEP_MS: Metric(count=10, mean=m, p50=m, p95=m)},
        )
        for number in range(48)
        if (m := 140.0 if 29 < number < 33 else 100.0)
    ]
    (folder / "vitals.jsonl").write_bytes(b"\n".join(map(encode_vitals, windows)) + b"\nnot one\n")

    code, _, err = run("report", log, tmp_path / "report.html")
    page = Page()
    page.feed((tmp_path / "report.html").read_text("utf-8"))
    shown = "".join(page.text)

    assert (code, err) == (0, "")
    assert "Time per step, ms" in shown
    assert "Loss" in shown
    assert shown.count("100 ms") >= 2

"""An operator's verbs over a real etcd, on a fleet whose log is that of a demo.

The command line runs in this process: what is tested is what it says and does, not how fast Python
starts. The store and the controller are real.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from controlplane.cli import cli
from controlplane.cli.failing import run_to_exit
from controlplane.doctoring import Grade, lattice
from statemachine.policy import Policy

if TYPE_CHECKING:
    from controlplane.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "tests" / "history" / "demo_kill_and_grey.events.jsonl"
WAIT_S = 20.0

PATIENT = (
    b'"takeover_grace_s":600.0,"prepare_deadline_s":800.0,'
    b'"commit_deadline_s":1000.0,"warmup_deadline_s":1000.0,'
)
"""The nodes of the demo are long gone: the controller shall not find that out during a test."""


class Done(Struct):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def running(etcd: EtcdServer, fleet: str, log: Path = DEMO) -> Run:
    """Runs `changeover` on one fleet that has a log."""

    def run(*arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        where = [] if arguments[0] == "completion" else ["--fleet", fleet]
        where += [] if "--etcd" in arguments or not where else ["--etcd", etcd.url]
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            run_to_exit(cli, "changeover", [*arguments, *where])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, out.getvalue(), err.getvalue())

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as patient:
        patient.write(log.read_bytes().replace(b'"knobs":{', b'"knobs":{' + PATIENT, 1))
        patient.flush()
        done = run("log", "import", patient.name)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def imported(etcd: EtcdServer) -> Run:
    """The log of a demo in the store; nobody leads."""
    return running(etcd, f"still-{os.getpid()}")


@contextlib.contextmanager
def leading(etcd: EtcdServer, fleet: str, folder: Path) -> Iterator[Run]:
    """A fleet of a demo's log, and a controller that leads it."""
    run = running(etcd, fleet)
    said = folder / "log"
    command = [sys.executable, "-m", "controlplane", "controller", "--name", "c1"]
    command += ["--etcd", etcd.url, "--fleet", fleet]
    with said.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, stderr=sink)
    try:
        give_up_at = time.monotonic() + WAIT_S
        while "LeaderElected" not in said.read_text():
            assert time.monotonic() < give_up_at, said.read_text()
            time.sleep(0.02)
        yield run
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def led(etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A fleet that is led; tests that share it leave each other's nodes and knobs alone."""
    with leading(etcd, f"led-{os.getpid()}", tmp_path_factory.mktemp("led")) as run:
        yield run


def values(run: Run, *arguments: str, code: int = 0) -> Any:
    """What a verb prints as JSON."""
    done = run(*arguments, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def test_history_tells_incidents_from_the_store(imported: Run) -> None:
    """As `timeline` does from a file."""
    found = values(imported, "history")
    told = imported("history").stdout

    assert [each["kind"] for each in found["incidents"]] == ["loss", "grey"]
    assert found["accounting_s"]["wall"] == pytest.approx(57.741)
    assert "loss (kill)" in told
    assert "useful" in told


def test_a_topology_and_what_a_change_of_epoch_touched(imported: Run) -> None:
    """Slot by slot; a diff names the slot that changed hands and the groups that it is in."""
    shown = values(imported, "topology", "show")
    diff = values(imported, "topology", "diff", "1", "2")
    told = imported("topology", "diff", "1", "2").stdout

    assert [slot["coordinates"] for slot in shown["slots"]] == ["dp=0", "dp=1", "dp=2", "dp=3"]
    assert diff["changes"] == [{"slot": 1, "before": "n1", "after": "n4"}]
    assert diff["affected_groups"] == {"dp": ["dp[0]"]}
    assert diff["affected_slots"] == [0, 1, 2, 3]
    assert "dp: 1 of 1 groups: dp[0]" in told
    missing = imported("topology", "diff", "1", "9")
    assert missing.returncode == 2
    assert "the log holds no epoch 9; it holds 0 to 3" in missing.stderr


def test_explain_answers_for_a_node_a_transition_and_an_epoch(imported: Run) -> None:
    """What, why with numbers, who was waited for; an epoch is explained by its transition."""
    node = values(imported, "explain", "n2")
    transition = values(imported, "explain", "demo/2")
    epoch = values(imported, "explain", "e2")
    told = imported("explain", "2").stdout

    assert any("work_ms" in line and "against" in line for line in node["why"]), node["why"]
    assert any("n4 takes slot 1 of n1" in line for line in transition["why"])
    assert any(line.startswith("evidence at 33: NodeLost") for line in transition["why"])
    assert any("decided from position 33 under policy 1" in line for line in transition["why"])
    assert any(line.startswith("n4 prepared after") for line in transition["awaited"])
    assert epoch["entries"] == transition["entries"]
    assert told.index("why") < told.index("waited for") < told.index("from the log")
    assert imported("explain", "n9").returncode == 2


def test_explain_reads_an_exported_log_as_well(imported: Run) -> None:
    """With the same words, and no etcd."""
    offline = values(imported, "explain", "e2", "--log", str(DEMO), "--etcd", "http://127.0.0.1:1")

    assert offline["why"] == values(imported, "explain", "e2")["why"]


def test_a_policy_is_shown_compared_and_changed(led: Run) -> None:
    """From the event on it is the one; an unsafe or misspelt knob is refused before that."""
    version = values(led, "policy", "show")["version"]
    assert values(led, "policy", "show")["knobs"]["retry_cooldown_s"] == 0.5

    differs = values(led, "policy", "diff", "loss_grace_s=2", code=1)["differs"]
    assert differs == [{"knob": "loss_grace_s", "now": 1.0, "then": 2}]
    assert led("policy", "diff", "loss_grace_s=1").returncode == 0

    done = led("policy", "set", "loss_grace_s=2", "sweep.tolerance=1.5", "--as", "ada")
    assert "at position" in done.stdout, done.stderr
    shown = values(led, "policy", "show")
    assert shown["version"] == version + 1
    assert shown["knobs"]["loss_grace_s"] == 2.0
    assert shown["knobs"]["sweep.tolerance"] == 1.5
    assert shown["knobs"]["retry_cooldown_s"] == 0.5

    unsafe = led("policy", "set", "lease_ttl_s=1")
    assert unsafe.returncode == 2
    assert "policy.self_fence_s < policy.lease_ttl_s does not hold" in unsafe.stderr
    misspelt = led("policy", "set", "loss_grase_s=1")
    assert "did you mean loss_grace_s?" in misspelt.stderr
    assert values(led, "policy", "show")["version"] == version + 1


def test_shadow_mode_is_switched_on_and_off(led: Run) -> None:
    """By an event with the operator's name."""
    assert "at position" in led("policy", "shadow", "on", "--as", "ada").stdout
    assert values(led, "policy", "show")["knobs"]["shadow"] is True
    assert "is on already" in led("policy", "shadow", "on").stdout
    assert "at position" in led("policy", "shadow", "off").stdout
    tail = led("log", "tail", "-n", "6").stdout
    assert "by ada" in tail


def test_a_dry_run_says_what_would_be_decided_and_changes_nothing(led: Run) -> None:
    """With the reason; a refusal too, and its exit code."""
    before = values(led, "status")["position"]

    allowed = values(led, "quarantine", "n4", "--dry-run")
    refused = values(led, "switchover", "n0", "--dry-run", code=1)
    told = led("switchover", "n0", "--dry-run").stdout

    assert allowed["refused"] is None
    assert any(each["type"] == "NodeQuarantined" for each in allowed["follows"])
    assert "holds no slot" in refused["refused"]
    assert told.startswith("switchover of n0 would be refused: ")
    assert values(led, "status")["position"] == before


def test_an_act_has_its_operators_name_and_reason_and_is_refused_with_one(led: Run) -> None:
    """Both stand in the log."""
    done = led("quarantine", "n3", "--as", "ada", "--reason", "smells burnt", "--yes")
    assert done.returncode == 0, done.stderr
    refused = led("drain", "n9", "--yes")
    assert refused.returncode == 2
    assert "no node 'n9' ever joined" in refused.stderr
    again = led("switchover", "n0", "--as", "ada")
    assert again.returncode == 1
    assert "switchover of n0 is refused: it holds no slot" in again.stderr

    tail = led("log", "tail", "-n", "50").stdout
    assert "smells burnt" in tail
    assert "by ada" in tail


def test_a_doctor_finds_what_is_wrong_and_says_the_cure(imported: Run, led: Run) -> None:
    """Nobody leads: bad, with its cure, and exit code 1; where a controller leads it is not."""
    before = {each["subject"]: each for each in values(imported, "doctor", code=1)}
    assert before["controller"]["grade"] == "bad"
    assert "changeover controller" in before["controller"]["cure"]
    for subject in ("etcd", "quota", "permissions", "package origin", "python", "TLS", "timeouts"):
        assert before[subject]["grade"] == "good", before[subject]

    after = {each["subject"]: each for each in values(led, "doctor")}
    assert after["controller"] == {
        "subject": "controller",
        "grade": "good",
        "words": after["controller"]["words"],
        "cure": None,
    }
    assert after["leases"]["grade"] in ("good", "warning")  # n0 to n4 of the demo are not here


def test_a_doctor_works_without_a_store(imported: Run) -> None:
    """It says that nobody answers, and what to do; the rest is looked at all the same."""
    done = imported("doctor", "--etcd", "http://127.0.0.1:1")

    assert done.returncode == 1
    assert "no answer at http://127.0.0.1:1" in done.stdout
    assert "-> start one" in done.stdout
    assert "package origin" in done.stdout


def test_timeouts_that_are_close_together_are_a_warning() -> None:
    """The lattice holds, and leaves a slow store no room."""
    tight = Policy(renew_interval_s=7.5)

    found = lattice(tight, "in force")

    assert found.grade is Grade.WARNING
    assert "renew_interval_s 7.5 s, self_fence_s 8 s" in found.words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_what_it_completes_with(imported: Run, shell: str) -> None:
    """The script of that shell, which asks this program."""
    done = imported("completion", shell)

    assert done.returncode == 0
    assert "_CHANGEOVER_COMPLETE" in done.stdout


def test_completion_knows_verbs_and_options() -> None:
    """What a shell asks when somebody presses Tab."""
    asked = os.environ | {
        "_CHANGEOVER_COMPLETE": "bash_complete",
        "COMP_WORDS": "changeover qua",
        "COMP_CWORD": "1",
    }
    program = Path(sys.executable).with_name("changeover")
    done = subprocess.run([program], env=asked, capture_output=True, text=True, check=False)

    assert "plain,quarantine" in done.stdout


# --- the guides, as a reader would follow them --------------------------------------------------


def written(document: str) -> list[str]:
    """The commands in the code blocks of a document, in order."""
    text = (ROOT / document).read_text("utf-8")
    lines = [
        line.strip().partition(" #")[0].strip()
        for fence in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in fence.splitlines()
    ]
    return [line for line in lines if line.startswith("changeover ")]


def test_every_command_of_the_operators_guide_runs(etcd: EtcdServer, tmp_path: Path) -> None:
    """In its order; what the fleet forbids is refused in one line, and nothing is wrong usage."""
    with leading(etcd, f"guide-{os.getpid()}", tmp_path) as run:
        follow_the_guide(run)


def follow_the_guide(led: Run) -> None:
    """Run its commands one after the other, on nodes that are there."""
    here = {"n7": "n3", "n12": "n4", "e4": "e2", "explain 3": "explain 2"}
    commands = written("docs/operate/guide.md")
    assert len(commands) > 20
    for line in commands:
        for name, ours in here.items():
            line = re.sub(rf"\b{name}\b", ours, line)  # noqa: PLW2901
        words = [w for w in shlex.split(line)[1:] if w not in ("--watch", "-f")]
        done = led(*words)

        assert done.returncode in (0, 1), f"{line}: {done}"
        assert "Traceback" not in done.stderr, line
        if done.returncode and words[0] not in ("doctor", "policy"):
            assert "refused" in done.stderr + done.stdout, f"{line}: {done}"


def test_every_command_of_the_postmortem_guide_runs(
    imported: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the log that its first command exports."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/operate/postmortem.md").read_text("utf-8")
    commands = written("docs/operate/postmortem.md")
    commands += re.findall(r"\| `(changeover [^`]+)` \|", text)
    clock = {"03:12": "+20s", "03:15": "+50s", "n7": "n2"}
    assert len(commands) >= 9
    for line in commands:
        words = [clock.get(word, word) for word in shlex.split(line)[1:]]
        done = imported(*words) if words[0] == "log" or "--log" in words else offline(*words)

        assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done}"
    assert (tmp_path / "incident.html").is_file()
    assert json.loads((tmp_path / "incident.trace.json").read_text("utf-8"))["traceEvents"]


def offline(*arguments: str) -> Done:
    """Runs a verb that needs no store."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        run_to_exit(cli, "changeover", arguments)
    assert isinstance(end.value.code, int)
    return Done(end.value.code, out.getvalue(), err.getvalue())

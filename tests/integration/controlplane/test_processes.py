"""`changeover controller` and the verbs around it, as an operator runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.controlplane.conftest import Controllers, Run

pytestmark = pytest.mark.etcd


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_controller_that_is_told_to_stop_resigns(
    controllers: Controllers, run: Run, how: signal.Signals
) -> None:
    """It exits with 0, says so, and the leadership is free at once."""
    process = controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    process.send_signal(how)
    assert process.wait(5) == 0, controllers.said("c0")
    assert "stopping" in controllers.said("c0")
    assert json.loads(run("status", "--json").stdout)["leader"] is None


def test_a_standby_takes_over_when_the_leader_is_killed(controllers: Controllers, run: Run) -> None:
    """SIGKILL: the lease must end first; then the second leads, and the log goes on."""
    leader = controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    controllers.start("c1")
    killed_at = time.monotonic()
    leader.kill()
    took_s = controllers.wait_for("c1", "LeaderElected") - killed_at
    print(f"takeover {took_s:.2f} s after SIGKILL with a leadership of 1 s")
    tail = run("log", "tail", "--json").stdout.splitlines()
    elected = [json.loads(line)["event"]["controller"] for line in tail]
    assert elected == ["c0", "c1"]


def test_a_controller_that_was_asleep_comes_back_as_standby(controllers: Controllers) -> None:
    """SIGSTOP past its lease: on waking it finds itself deposed, and campaigns again."""
    leader = controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    controllers.start("c1")
    leader.send_signal(signal.SIGSTOP)
    controllers.wait_for("c1", "LeaderElected")
    leader.send_signal(signal.SIGCONT)
    controllers.wait_for("c0", "the term is over")
    assert controllers.said("c0").count("LeaderElected") == 1
    assert leader.poll() is None


def test_a_second_controller_that_may_not_wait_names_the_leader(
    controllers: Controllers, run: Run
) -> None:
    """One line, exit 1, and the first leads on."""
    first = controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    refused = run("controller", "--name", "c1", "--no-wait")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "led by controller c0" in line
    assert first.poll() is None


def test_an_act_says_where_it_stands_in_the_log(controllers: Controllers, run: Run) -> None:
    """A job is declared, shown by `status`, and refused a second time."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    declared = run("job", "declare", "--axes", "dp=4", "--standbys", "1", "--as", "ada")
    assert declared.returncode == 0, declared.stderr
    assert declared.stdout == "job job: 4 ranks on 4 nodes: at position 2 of the log\n"
    (job,) = json.loads(run("status", "--json").stdout)["jobs"]
    assert (job["axes"], job["state"]) == ({"dp": 4}, "waiting to launch")
    again = run("job", "declare", "--axes", "dp=4")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "declared already" in again.stderr
    paused = run("pause", "--as", "ada", "--comment", "new fibre", "--json")
    assert json.loads(paused.stdout) == {
        "act": "DecisionsPaused",
        "position": 3,
        "followed": [],
        "waits": None,
    }
    assert "PAUSED by ada" in run("status").stdout


def test_a_job_is_stopped_once(controllers: Controllers, run: Run) -> None:
    """An unknown name is wrong usage; a job that never ran is over at once, and stays over."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    unknown = run("job", "stop", "jib")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "no job 'jib' was declared" in unknown.stderr
    assert run("job", "declare", "--axes", "dp=2", "--as", "ada").returncode == 0
    stopped = run("job", "stop", "--as", "ada", "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout)["followed"] == ["JobFinished"]
    again = run("job", "stop")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "is finished already" in again.stderr


def test_an_act_without_a_leader_waits_and_says_so(run: Run) -> None:
    """Durable in the inbox; nobody is told a lie."""
    noted = run("pause")
    assert noted.returncode == 0
    assert "it waits for one" in noted.stdout


def test_a_name_that_nobody_has_is_refused_before_anything_is_stated(
    controllers: Controllers, run: Run
) -> None:
    """A misspelt node costs nothing."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    refused = run("drain", "n0")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "no node 'n0' ever joined" in refused.stderr
    assert json.loads(run("status", "--json").stdout)["position"] == 1


def test_an_export_is_verified_and_never_overwritten(
    controllers: Controllers, run: Run, tmp_path: Path
) -> None:
    """What was written is what stands in the store, byte for byte."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    target = tmp_path / "log.jsonl"
    assert run("log", "export", str(target)).returncode == 0
    assert target.read_text() == run("log", "export", "-").stdout
    refused = run("log", "export", str(target))
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert json.loads(run("log", "verify", str(target), "--json").stdout)["entries"] == 1
    assert run("log", "verify", "etcd").stdout.startswith("ok: 1 events")
    target.write_text(target.read_text() * 2)
    refuted = run("log", "verify", str(target))
    assert (refuted.returncode, refuted.stderr.count("\n")) == (1, 1)
    assert "line 2" in refuted.stderr


def test_a_followed_log_prints_what_comes(
    controllers: Controllers, run: Run, environment: dict[str, str]
) -> None:
    """`log tail -f` shows the next event as soon as it is in the log; Ctrl-C ends it quietly."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    tail = subprocess.Popen(
        [sys.executable, "-m", "controlplane", "log", "tail", "-f", "--from", "1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout is not None
    try:
        assert "LeaderElected" in tail.stdout.readline()
        assert run("pause", "--as", "ada").returncode == 0
        assert "DecisionsPaused" in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        _, complaints = tail.communicate(timeout=5)
        assert (tail.returncode, complaints.strip()) == (130, "")
    finally:
        tail.kill()
        tail.communicate()


def test_a_watched_picture_is_shown_anew_when_something_happens(
    controllers: Controllers, run: Run, environment: dict[str, str]
) -> None:
    """`status --watch` into a pipe: one picture below the other, until Ctrl-C."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    watch = subprocess.Popen(
        [sys.executable, "-m", "controlplane", "status", "--watch"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    try:
        assert "led by c0" in watch.stdout.readline()
        assert run("pause", "--as", "ada").returncode == 0
        assert any("PAUSED by ada" in line for line in watch.stdout)
        watch.send_signal(signal.SIGINT)
        _, complaints = watch.communicate(timeout=5)
        assert (watch.returncode, complaints.strip()) == (130, "")
    finally:
        watch.kill()
        watch.communicate()

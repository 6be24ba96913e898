"""`changeover sweep`: a fleet measures itself, for real, and the report says who did not pass."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.faults import set_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.controlplane.conftest import Controllers, Run

pytestmark = [pytest.mark.etcd, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
TRAINEE = ROOT / "tests" / "integration" / "agent" / "trainee.py"
POLICY = """\
[policy.sweep]
judge_medians = false
tolerance = 3.0
link_tolerance = 100.0
latency_tolerance = 100.0
"""
"""On two cores that others want too, only what is many times as slow is sure to be the node's."""


@pytest.fixture
def agents(environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Four nodes of a declared job; n2 computes eight times as slowly. Their logs by name."""
    logs: dict[str, Path] = {}
    running = []
    set_fault(tmp_path / "fault", 8.0)
    for name in ("n0", "n1", "n2", "n3"):
        logs[name] = tmp_path / f"agent-{name}.log"
        hurt = {"CHANGEOVER_FAULT_FILE": str(tmp_path / "fault")} if name == "n2" else {}
        command = [
            *(sys.executable, "-m", "worker.agent", "--node", name, "--job", "job"),
            *("--fleet", environment["CHANGEOVER_FLEET"], "--etcd", environment["CHANGEOVER_ETCD"]),
            *("--run-dir", str(tmp_path / "run"), "--lease-ttl-s", "10"),
            *("--", "python", str(TRAINEE)),
        ]
        hurry = {"CHANGEOVER_PROBE_BUDGET_S": "0.2", "CHANGEOVER_PROBE_SHARE": "0.3"}
        with logs[name].open("wb") as sink:
            running.append(
                subprocess.Popen(
                    command,
                    env=environment | hurt | hurry | {"PYTHONPATH": str(ROOT)},
                    cwd=ROOT,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                )
            )
    yield logs
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def test_a_fleet_measures_itself_and_names_who_does_not_pass(
    controllers: Controllers, run: Run, agents: dict[str, Path], tmp_path: Path
) -> None:
    """All nodes in two rounds; the slow one fails, those beside it do not; table, JSON and page."""
    config = tmp_path / "config.toml"
    config.write_text(POLICY)
    controllers.start("c0", "--config", str(config))
    declared = run("job", "declare", "--axes", "dp=8", "--as", "ada")
    assert declared.returncode == 0, declared.stderr
    give_up_at = time.monotonic() + 40
    while sum(row["state"] == "spare" for row in json.loads(run("nodes", "--json").stdout)) < 4:
        assert time.monotonic() < give_up_at, "\n".join(p.read_text() for p in agents.values())
    page = tmp_path / "sweep.html"
    done = subprocess.run(
        [sys.executable, "-m", "controlplane", "sweep", "--all", "--json", "--html", str(page)],
        env=os.environ | controllers._environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)

    assert done.returncode == 1, "one of them did not pass"
    assert {row["node"]: row["outcome"] for row in report["nodes"]} == {
        "n0": "passed",
        "n1": "passed",
        "n2": "failed",
        "n3": "passed",
    }, f"{report}\n{controllers.said('c0')}"
    assert report["is_complete"]
    assert all("solo" in row["rounds"] for row in report["nodes"])
    partners = {row["node"]: row["partner"] for row in report["nodes"]}
    assert all(partners.values()), partners
    html = page.read_text()
    assert all(f"<td>{name}</td>" in html for name in partners)
    assert "gemm_gflops_best" in html
    states = {row["node"]: row["state"] for row in json.loads(run("nodes", "--json").stdout)}
    assert states["n2"] in ("quarantined", "sweeping")


def test_a_sweep_of_nobody_or_of_a_stranger_is_refused(controllers: Controllers, run: Run) -> None:
    """No node and no --all is wrong usage; a node that never joined is named with a hint."""
    controllers.start("c0")
    controllers.wait_for("c0", "LeaderElected")
    assert run("sweep").returncode == 2
    assert run("sweep", "--all", "n1").returncode == 2
    stranger = run("sweep", "n9", "--wait")
    assert stranger.returncode != 0
    assert "no node 'n9' ever joined" in stranger.stderr
    assert len(stranger.stderr.splitlines()) == 1


HOOK = """
[[hooks]]
name = "mend"
on = ["RemedyRequested"]
exec = ["{python}", "{script}", "{{{{ event.node }}}}", "{{{{ event.remedy }}}}"]
timeout_s = 30.0
"""
SCRIPT = """\
import os, subprocess, sys
node, remedy = sys.argv[1:]
with open({done!r}, "a") as file:
    file.write(f"{{node}} {{remedy}}\\n")
if remedy == "reboot":
    os.unlink({fault!r})
command = [sys.executable, "-m", "controlplane", "remedied", node, "--as", "mend"]
command += ["--etcd", {etcd!r}, "--fleet", {fleet!r}]
sys.exit(subprocess.run(command, cwd={root!r}).returncode)
"""


@pytest.mark.soak
def test_a_quarantined_node_is_mended_swept_and_comes_back(
    controllers: Controllers,
    run: Run,
    environment: dict[str, str],
    agents: dict[str, Path],
    tmp_path: Path,
) -> None:
    """The first remedy does not help and its sweep says so; the second does, and the node is back
    with a certificate. A program that hears of remedies carries them out.
    """
    script, done = tmp_path / "mend.py", tmp_path / "done"
    values = {
        "done": str(done),
        "fault": str(tmp_path / "fault"),
        "etcd": environment["CHANGEOVER_ETCD"],
        "fleet": environment["CHANGEOVER_FLEET"],
        "root": str(ROOT),
    }
    script.write_text(SCRIPT.format(**values))
    config = tmp_path / "config.toml"
    remedies = 'remedies = ["reset", "reboot", "vendor"]\n'
    config.write_text(POLICY + remedies + HOOK.format(python=sys.executable, script=script))
    controllers.start("c0", "--config", str(config))
    assert run("job", "declare", "--axes", "dp=8", "--as", "ada").returncode == 0
    give_up_at = time.monotonic() + 40
    while sum(row["state"] == "spare" for row in json.loads(run("nodes", "--json").stdout)) < 4:
        assert time.monotonic() < give_up_at, "\n".join(p.read_text() for p in agents.values())
    assert run("quarantine", "n2", "--as", "ada").returncode == 0
    controllers.wait_for("c0", "RemedyRequested")
    controllers.wait_for("c0", "CertificateIssued")

    assert done.read_text().splitlines() == ["n2 reset", "n2 reboot"], controllers.said("c0")
    states = {row["node"]: row["state"] for row in json.loads(run("nodes", "--json").stdout)}
    assert states["n2"] in ("spare", "warming", "standby")
    assert run("remedied", "n2").returncode == 1, "none is under way any more"

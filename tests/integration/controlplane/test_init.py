"""`changeover init` as an administrator runs it, and a fleet whose processes show certificates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from controlplane.etcd_server import EtcdServer
from tests.integration.controlplane.conftest import ROOT, WAIT_S, Controllers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from controlplane.etcd_binary import EtcdBinary

pytestmark = pytest.mark.etcd


def run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "controlplane", *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def shown(folder: Path, user: str, url: str) -> dict[str, str]:
    """The environment of a process that shows a user's certificate."""
    return {
        "CHANGEOVER_FLEET": "lab",
        "CHANGEOVER_ETCD": url,
        "CHANGEOVER_ETCD_CA": str(folder / "ca.pem"),
        "CHANGEOVER_ETCD_CERT": str(folder / f"{user}.pem"),
        "CHANGEOVER_ETCD_KEY": str(folder / f"{user}.key"),
    }


def test_a_fleet_is_set_up_and_each_does_its_part(etcd_binary: EtcdBinary, tmp_path: Path) -> None:
    """Certificates, etcd, users; then a controller leads, an operator acts, a node may not."""
    folder = tmp_path / "pki"
    made = run({}, "init", str(folder), "--fleet", "lab", "--node", "n0")
    assert made.returncode == 0, made.stderr
    assert "etcdctl user add lab.node.n0 --no-password" in made.stdout
    server = EtcdServer(etcd_binary, tmp_path / "etcd", certificates=folder, durable=False)
    server.start_blocking()
    controllers = Controllers({**os.environ, **shown(folder, "controller", server.url)}, tmp_path)
    try:
        url = ("--etcd", server.url)
        asked = run({}, "init", str(folder), "--fleet", "lab", "--node", "n0", *url, "--apply")
        assert asked.returncode == 0, asked.stderr
        assert "etcd asks who one is" in asked.stdout
        controllers.start("c0")
        controllers.wait_for("c0", "LeaderElected")
        operator = shown(folder, "operator", server.url)
        assert run(operator, "pause", "--as", "ann").returncode == 0
        status = json.loads(run(operator, "status", "--json").stdout)
        assert status["paused_by"] == "ann"
        refused = run(shown(folder, "node-n0", server.url), "resume")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
        assert "permission denied" in refused.stderr
        doctored = run(shown(folder, "node-n0", server.url), "doctor", "--json")
        told = {each["subject"]: each for each in json.loads(doctored.stdout)}
        assert (doctored.returncode, told["permissions"]["grade"]) == (1, "bad"), doctored.stdout
        assert "changeover init" in told["permissions"]["cure"]
        assert told["TLS"]["words"] == "on, with a certificate of our own"
        stranger = shown(folder, "operator", server.url)
        del stranger["CHANGEOVER_ETCD_CERT"], stranger["CHANGEOVER_ETCD_KEY"]
        nobody = run(stranger, "status")
        assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1), nobody.stderr
    finally:
        controllers.stop_all()
        server.stop_blocking()

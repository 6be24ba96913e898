"""Each kind of grey node in the demo, for real: found, its cause named, swapped out, swept, back.

The kind that slows all its work is `test_demo`'s; here are the others, each a demo of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.demo.greys import GREYS
from controlplane.etcd_binary import EtcdBinary

pytestmark = [pytest.mark.etcd, pytest.mark.soak, pytest.mark.timeout(480)]


@pytest.mark.parametrize("kind", [kind for kind in GREYS if kind != "compute"])
def test_a_grey_node_of_each_kind_is_told_rightly(
    kind: str, etcd_binary: EtcdBinary, tmp_path: Path
) -> None:
    """The verdict names the cause, the sweep what is slow (of a late loader nothing: it passes), no
    step is lost, and the weights are those of an uninterrupted run, bit for bit.
    """
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "controlplane", "demo", "--json", "--no-baseline"]
    command += ["--faults", "grey", "--grey-kind", kind, "--run-dir", str(folder)]
    path = f"{etcd_binary.path.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=460,
        check=False,
    )
    print(done.stderr[-6000:])
    found = json.loads(done.stdout)
    broken = [
        f"{claim['claim']}: {claim['detail']}" for claim in found["claims"] if not claim["holds"]
    ]

    assert done.returncode == 0, found["error"] or broken
    assert f"the verdict on n2 named the cause: {GREYS[kind].cause}" in {
        claim["claim"] for claim in found["claims"]
    }
    (incident,) = found["incidents"]
    assert incident["steps_lost"] == 0
    assert incident["came_back"]
    assert incident["failed_sweeps"] == (1 if GREYS[kind].metrics else 0)
    assert incident["pace"] is not None, "how steps went before, while and after it was grey"
    claimed = any("stood out of its peers'" in claim["claim"] for claim in found["claims"])
    assert claimed is (kind != "link"), "of a slow link no work is slow"
    page = (folder / "report.html").read_text()
    assert "Guard, published: 1.7x" in page

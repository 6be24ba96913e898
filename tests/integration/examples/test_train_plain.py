"""The baseline that the demo compares with is a fair one: it restarts, resumes and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--batch", "2", "--context", "16"]


def noted(path: Path) -> list[dict[str, Any]]:
    """The events written so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(180)
def test_a_killed_worker_is_restarted_from_the_last_checkpoint(tmp_path: Path) -> None:
    """After SIGKILL of one of two workers all steps are done, from the checkpoint on."""
    events, log = tmp_path / "events.jsonl", tmp_path / "log"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
    command += ["--nproc-per-node", "2", "--max-restarts", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", str(EXAMPLES / "train_plain.py"), *SMALL]
    command += ["--steps", "4000", "--every", "10", "--events", str(events)]
    command += ["--checkpoint", str(tmp_path / "last.pt")]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        launcher = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:

        def first(what: str, at_least: int, restart_pids: set[int]) -> dict[str, Any]:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                for line in noted(events):
                    found = line["event"] == what and line["pid"] not in restart_pids
                    if found and line.get("index", line.get("step", 0)) >= at_least:
                        return line
                assert launcher.poll() is None, log.read_text()[-3000:]
                time.sleep(0.02)
            raise AssertionError(f"no {what} in time; log: {log.read_text()[-3000:]}")

        victim = first("step", 15, set())
        before = {line["pid"] for line in noted(events)}
        os.kill(victim["pid"], signal.SIGKILL)
        resumed = first("resumed", 10, before)
        again = first("step", resumed["step"], before)
    finally:
        os.killpg(launcher.pid, signal.SIGTERM)
        launcher.wait(30)

    assert resumed["step"] % 10 == 0
    assert again["index"] == resumed["step"]
    assert again["at_s"] > victim["at_s"]
    assert {"at_s", "rank", "pid", "step_ms", "loss"} <= again.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "/nowhere/at/all"], "train_plain.py: --data /nowhere/at/all: No such file"),
        (["--heads", "3"], "error: --width 128 is not a multiple of --heads 3"),
        (["--steps", "0"], "argument --steps: 0 is not a positive number"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    """What cannot work is said before anything starts."""
    events = tmp_path / "events"
    program = [sys.executable, str(EXAMPLES / "train_plain.py"), *arguments]
    program += ["--events", str(events), "--checkpoint", str(tmp_path / "last.pt")]
    environment = os.environ | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }

    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not any(line["event"] == "step" for line in noted(events))

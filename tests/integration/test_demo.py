"""The demo, shortened and for real: etcd, a controller and five nodes, two of which are hurt.

One run is looked at by several tests; further ones are interrupted, or refused.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from controlplane.etcd_binary import EtcdBinary
from statemachine.codec import decode_recorded
from statemachine.events import Motive
from statemachine.evolve import fold
from statemachine.incidents import incidents
from statemachine.state import FleetState

pytestmark = [pytest.mark.etcd]

PATIENCE_S = 20.0
HURRY = {"CHANGEOVER_WINDOW_S": "0.5", "CHANGEOVER_PROBE_BUDGET_S": "0.4"}
SMALL = ("--", "--layers", "2", "--batch", "4", "--context", "48")
TRAIN_S = "24"
CLEARLY = ("--grey-factor", "2")
"""Steps of the small model are short, four ranks share two cores, and windows are half a second:
how busy the machine is moves the work of each by a tenth from window to window."""
OUTCOME = {
    "ok",
    "steps",
    "final_loss",
    "weights_digest",
    "uninterrupted_digest",
    "incidents",
    "baseline",
    "survivor_pids_unchanged",
    "events",
    "log",
}


def command(*arguments: str) -> list[str]:
    """The command line of a demo."""
    return [sys.executable, "-m", "controlplane", "demo", *arguments]


def environment(binary: EtcdBinary) -> dict[str, str]:
    """The environment of a demo: the etcd of this environment first."""
    path = f"{binary.path.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **HURRY, "PATH": path}


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds, for at most `PATIENCE_S` seconds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


def left_behind(run_dir: Path) -> list[str]:
    """Processes that have to do with a run: its folder is in their command or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(run_dir) in word for word in words):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found


@contextmanager
def started(run_dir: Path, etcd_binary: EtcdBinary) -> Iterator[subprocess.Popen[str]]:
    """A demo that would run for minutes; killed with the block unless it has ended."""
    with subprocess.Popen(
        command("--faults", "none", "--no-baseline", "--steps", "900", "--run-dir", str(run_dir)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(etcd_binary),
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def until_a_node_joined(run_dir: Path) -> Path:
    """Wait for it, and return the file of the log."""
    log = run_dir / "events.jsonl"
    until(lambda: log.exists() and b"NodeJoined" in log.read_bytes(), "the first node")
    return log


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one demo writes."""
    return tmp_path_factory.mktemp("demo") / "run"


@pytest.fixture(scope="module")
def demo(run_dir: Path, etcd_binary: EtcdBinary) -> subprocess.CompletedProcess[str]:
    """One demo with both faults, run to its end."""
    where = ("--run-dir", str(run_dir))
    done = subprocess.run(
        command("--json", "--no-baseline", "--train-s", TRAIN_S, *CLEARLY, *where, *SMALL),
        capture_output=True,
        text=True,
        env=environment(etcd_binary),
        timeout=420,
        check=False,
    )
    print(done.stderr[-6000:])
    return done


@pytest.fixture(scope="module")
def outcome(demo: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What it printed."""
    found = json.loads(demo.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.soak
@pytest.mark.timeout(450)
def test_a_pipeline_loses_a_stage_and_keeps_its_weights(
    run_dir: Path, etcd_binary: EtcdBinary
) -> None:
    """With `--layout pp=3,dp=2` a general standby takes a killed stage, with the same proof."""
    where = run_dir.with_name("pipeline")
    sized = ("--no-baseline", "--steps", "300", "--run-dir", str(where))
    done = subprocess.run(
        command("--json", "--layout", "pp=3,dp=2", *sized, "--", "--width", "32"),
        capture_output=True,
        text=True,
        env=environment(etcd_binary),
        timeout=420,
        check=False,
    )
    print(done.stderr[-6000:])
    found = json.loads(done.stdout)
    claims = {claim["claim"]: claim["holds"] for claim in found["claims"]}
    assert done.returncode == 0, claims
    assert found["weights_digest"] == found["uninterrupted_digest"] != ""
    assert claims["n6, which took its slot, had rehearsed every role with what was recorded of it"]
    assert left_behind(where) == []


@pytest.mark.timeout(450)
def test_a_demo_holds_and_prints_one_object(
    demo: subprocess.CompletedProcess[str], outcome: dict[str, Any]
) -> None:
    """Exit code 0, one JSON object on stdout with every promised field, progress on stderr."""
    assert demo.returncode == 0, outcome["error"] or [
        claim for claim in outcome["claims"] if not claim["holds"]
    ]
    assert outcome["ok"] is True
    assert set(outcome) >= OUTCOME
    assert outcome["steps"] >= 100
    assert outcome["baseline"] is None
    assert len(demo.stdout.splitlines()) == 1
    assert "killed n1" in demo.stderr


@pytest.mark.timeout(450)
def test_the_weights_are_those_of_an_uninterrupted_run(outcome: dict[str, Any]) -> None:
    """Bit for bit, after a kill and a planned swap; and it has learned something."""
    assert outcome["weights_digest"]
    assert outcome["weights_digest"] == outcome["uninterrupted_digest"]
    assert outcome["final_loss"] < outcome["first_loss"]


@pytest.mark.timeout(450)
def test_each_fault_is_one_incident_with_its_phases(outcome: dict[str, Any]) -> None:
    """A kill costs at most the step in flight, a planned swap none; both name all phases."""
    kill, grey = outcome["incidents"]
    assert (kill["kind"], kill["node"], grey["kind"], grey["node"]) == ("kill", "n1", "grey", "n2")
    assert kill["steps_lost"] <= 1
    assert grey["steps_lost"] == 0
    assert {"detect", "decide", "prepare", "quiesce", "transfer", "switch", "first_step"} <= set(
        kill["phases"]
    )
    assert {"detect", "decide", "prepare", "transfer", "switch", "first_step"} <= set(
        grey["phases"]
    )
    for incident in (kill, grey):
        assert incident["downtime_ms"] is not None
        assert all(ms >= 0 for ms in incident["phases"].values())
    assert grey["came_back"] is True
    assert outcome["survivor_pids_unchanged"] is True


@pytest.mark.timeout(450)
def test_the_exported_log_tells_the_same_story(outcome: dict[str, Any], run_dir: Path) -> None:
    """Dense positions, every event readable, and the incidents of the JSON in it."""
    lines = (run_dir / "events.jsonl").read_bytes().splitlines()
    log = [decode_recorded(line) for line in lines]
    assert [recorded.position for recorded in log] == list(range(1, len(log) + 1))
    assert outcome["events"] == len(log)
    told = incidents(log)
    assert [(t.node, t.replacement, t.transition) for t in told] == [
        (i["node"], i["replacement"], i["transition"]) for i in outcome["incidents"]
    ]
    assert [t.motive for t in told] == [Motive.UNPLANNED, Motive.PLANNED]
    state = fold(FleetState(), log)
    assert all(state.jobs[name].finished for name in state.jobs)


@pytest.mark.timeout(450)
def test_a_run_leaves_files_and_no_process(outcome: dict[str, Any], run_dir: Path) -> None:
    """Report, vitals, worker logs; no secret, no data of etcd, and nobody running."""
    html = (run_dir / "report.html").read_text()
    assert outcome["weights_digest"] in html
    assert "<svg" in html
    assert (run_dir / "vitals.jsonl").stat().st_size > 0
    assert {path.name for path in (run_dir / "logs").glob("worker-*.log")} == {
        f"worker-n{number}.log" for number in range(5)
    }
    assert not list(run_dir.rglob("secret"))
    assert not list(run_dir.rglob("etcd-data"))
    assert left_behind(run_dir) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_says_where_the_log_is(
    tmp_path: Path, etcd_binary: EtcdBinary, number: signal.Signals
) -> None:
    """While nodes start, which is when most of it is in the air; the log is there all the same."""
    run_dir = tmp_path / "run"
    with started(run_dir, etcd_binary) as running:
        log = until_a_node_joined(run_dir)
        running.send_signal(number)
        said = running.communicate(timeout=PATIENCE_S)[1]
    assert running.returncode == 130, said
    assert str(log) in said
    until(lambda: left_behind(run_dir) == [], "the end of all processes")
    assert b"JobDeclared" in log.read_bytes()
    assert json.loads((run_dir / "outcome.json").read_text())["ok"] is False


@pytest.mark.timeout(60)
def test_a_demo_that_is_killed_leaves_nobody_running(
    tmp_path: Path, etcd_binary: EtcdBinary
) -> None:
    """SIGKILL gives it no chance to stop anything; the kernel does."""
    run_dir = tmp_path / "run"
    with started(run_dir, etcd_binary):
        until(lambda: len(left_behind(run_dir)) > 6, "the nodes")
    until(lambda: left_behind(run_dir) == [], "the end of all processes")


@pytest.mark.timeout(60)
def test_a_demo_whose_etcd_dies_says_so_and_ends(tmp_path: Path, etcd_binary: EtcdBinary) -> None:
    """In one line with what etcd said last, exit code 1, and nobody is left."""
    run_dir = tmp_path / "run"
    with started(run_dir, etcd_binary) as running:
        until_a_node_joined(run_dir)
        pids = [int(each.partition(" ")[0]) for each in left_behind(run_dir)]
        (etcd,) = [pid for pid in pids if psutil.Process(pid).name() == "etcd"]
        os.kill(etcd, signal.SIGKILL)
        said = running.communicate(timeout=PATIENCE_S)[1]
    assert running.returncode == 1, said
    assert "etcd ended while it was in use (killed by SIGKILL)" in said
    assert "Traceback" not in said
    until(lambda: left_behind(run_dir) == [], "the end of all processes")


@pytest.mark.timeout(180)
def test_two_demos_side_by_side_do_not_meet(tmp_path: Path, etcd_binary: EtcdBinary) -> None:
    """Own ports, own fleet, own folder each; and the same seed gives the same weights."""
    small = ("--nodes", "2", "--standbys", "0", "--steps", "20", "--seed", "7")
    asked = command("--json", "--faults", "none", "--no-baseline", *small, *SMALL)
    both = [
        subprocess.Popen(
            asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(etcd_binary),
        )
        for _ in range(2)
    ]
    said = [running.communicate(timeout=150) for running in both]
    assert [running.returncode for running in both] == [0, 0], said
    first, second = (json.loads(out) for out, _ in said)
    assert {first["run_dir"], second["run_dir"]} == {"runs/demo-1", "runs/demo-2"}
    assert first["weights_digest"] == second["weights_digest"] != ""


@contextmanager
def etcd_of_version(version: str) -> Iterator[int]:
    """A server that says it is an etcd of a version, and nothing else; yields its port."""
    said = b"\x12" + bytes([len(version)]) + version.encode()  # field 2 of StatusResponse
    handler = grpc.method_handlers_generic_handler(
        "etcdserverpb.Maintenance",
        {"Status": grpc.unary_unary_rpc_method_handler(lambda _request, _context: said)},
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_an_etcd_that_is_too_old_is_refused(tmp_path: Path, etcd_binary: EtcdBinary) -> None:
    """In one line that says which version it is and which one is needed."""
    with etcd_of_version("3.3.10") as port:
        done = subprocess.run(
            command("--etcd", f"http://127.0.0.1:{port}"),
            capture_output=True,
            text=True,
            env=environment(etcd_binary),
            cwd=tmp_path,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "3.3.10" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--nope",), 2, "--nope"),
        (("--faults", "some"), 2, "'some' is not one of"),
        (("--steps", "many"), 2, "'many' is not a valid integer"),
        (("--steps", "0"), 2, "0 is not in the range"),
        (("both",), 2, "unexpected argument 'both'"),
        (("--", "--nope"), 2, "what stands behind -- does not work: train_gpt.py: error: unrec"),
        (("--", "--width", "30"), 2, "--width 30 is not a multiple of --heads 4"),
        (("--data", "{tmp}/none"), 2, "{tmp}/none: no such file or folder"),
        (("--data", "{tmp}/empty"), 2, "{tmp}/empty: 0 bytes are too little text"),
        (("--standbys", "0"), 2, "needs a standby"),
        (("--run-dir", "{tmp}"), 2, "{tmp} exists: a run never overwrites another"),
        (("--etcd", "nonsense"), 2, "--etcd"),
        (("--etcd", "http://127.0.0.1:{free}"), 1, "no etcd answers at"),
        (("--run-dir", "{tmp}/new", "--etcd-port", "{taken}"), 1, "port {taken}"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    etcd_binary: EtcdBinary,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """What, whose, what next; 2 for usage, 1 for failure; and nothing runs afterwards."""
    (tmp_path / "empty").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        names = {
            "tmp": str(tmp_path),
            "taken": str(taken.getsockname()[1]),
            "free": str(free.getsockname()[1]),
        }
        done = subprocess.run(
            command(*[argument.format(**names) for argument in arguments]),
            capture_output=True,
            text=True,
            env=environment(etcd_binary),
            cwd=tmp_path,
            timeout=PATIENCE_S,
            check=False,
        )
    complaints = [line for line in done.stderr.splitlines() if line.startswith("changeover")]
    assert done.returncode == code, done.stderr
    assert len(complaints) == 1, done.stderr
    assert words.format(**names) in complaints[0]
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert left_behind(tmp_path) == []
    assert not (tmp_path / "runs").exists()

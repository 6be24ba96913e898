"""Probes measure real work, show a slow node as slow, and end by themselves."""

import json
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from worker.faults import SlowCompute, set_fault
from worker.probes import collective, link, memory, sampling, wire
from worker.probes.pacing import Pace
from worker.sweeper import SHARE_VARIABLE, ProbePort

ALONE = {
    "compute": {"gemm_gflops_best", "gemm_gflops_median", "gemm_gflops_cv"},
    "memory": {"memory_gbps_best", "memory_gbps_median", "memory_gbps_cv"},
}
TOGETHER = {
    "link": {"link_mbps_out_best", "link_mbps_in_median", "link_latency_us_best"},
    "collective": {"collective_mbps_best", "collective_latency_us_median"},
}


def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    """Run a probe in a child, as an agent does."""
    return subprocess.run(
        [sys.executable, "-m", "worker.probes", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())} | options,
    )


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a partner that is started when somebody calls, as an agent starts it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        command = [sys.executable, "-m", "worker.probes", "--probe", "echo", "--listen-fd"]
        child = subprocess.Popen(
            [*command, str(listener.fileno())],
            pass_fds=(listener.fileno(),),
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        yield listener.getsockname()[1]
        try:
            assert child.wait(20) == 0, "the partner must end by itself when its caller does"
        finally:
            child.kill()
            child.wait()


@pytest.mark.parametrize("probe", ALONE)
def test_a_probe_alone_prints_its_numbers(probe: str) -> None:
    """The last line is a JSON object of finite, positive numbers, best not below the median."""
    done = run("--probe", probe, "--budget-s", "0.2", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert ALONE[probe] <= found.keys()
    assert all(math.isfinite(value) and value >= 0 for value in found.values())
    stem = min(ALONE[probe]).removesuffix("_best")
    assert found[f"{stem}_best"] >= found[f"{stem}_median"] > 0


@pytest.mark.parametrize("probe", TOGETHER)
def test_a_probe_with_a_partner_prints_its_numbers(probe: str, echo: int) -> None:
    """A link and a sum are measured against a partner in a process of its own."""
    done = run("--probe", probe, "--budget-s", "0.3", "--json", "--port", str(echo))

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert TOGETHER[probe] <= found.keys()
    assert all(math.isfinite(value) and value >= 0 for value in found.values())
    latency = f"{probe}_latency_us"
    assert found[f"{latency}_best"] <= found[f"{latency}_median"]


@pytest.mark.parametrize(("probe", "least", "most"), [("compute", 1.25, 1.6), ("memory", 1.15, 2)])
def test_a_slow_node_is_slow_in_its_best_sample_too(
    probe: str, least: float, most: float, tmp_path: Path
) -> None:
    """A slowdown of 1.4 lowers the best sample by about 1.4, whatever else runs here."""
    fault = tmp_path / "fault"
    set_fault(fault, 1.4)
    best = next(name for name in ALONE[probe] if name.endswith("best"))

    def measured(**given: str) -> float:
        done = run("--probe", probe, "--budget-s", "0.3", "--json", **given)
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)[best])

    well = slow = 0.0
    for _ in range(8):
        well = max(well, measured())
        slow = max(slow, measured(CHANGEOVER_FAULT_FILE=str(fault)))
        if least < well / slow < most:
            break

    assert least < well / slow < most, f"{best}: {well:.1f} well, {slow:.1f} slow"


def test_a_slow_node_is_slow_towards_its_partner(tmp_path: Path) -> None:
    """The node's own part of an exchange takes longer, in the best of many as well."""
    set_fault(tmp_path / "fault", 4.0)

    def best(own: SlowCompute) -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            partner = threading.Thread(target=wire.echo, args=(listener, SlowCompute(None)))
            partner.start()
            ends = wire.connect(*listener.getsockname()[:2])
            found = collective.measure(0.3, own, ends)
            ends.hang_up()
            partner.join(10)
            return found["collective_latency_us_best"]

    well, slow = math.inf, math.inf
    for _ in range(4):
        well = min(well, best(SlowCompute(None)))
        slow = min(slow, best(SlowCompute(tmp_path / "fault")))

    assert slow > 1.5 * well, f"{well:.0f} us well, {slow:.0f} us slow"


def test_a_partner_that_is_not_there_is_a_failure_in_one_line() -> None:
    """Nobody at the port: exit code 1, the cause on stderr, no numbers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = run("--probe", "link", "--port", str(port), "--json")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("link probe: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--probe", "link"),
        ("--probe", "none"),
        ("--probe", "compute", "--budget-s", "0"),
        ("--probe", "compute", "--budget-s", "nan"),
    ],
)
def test_wrong_arguments_end_with_code_2(arguments: tuple[str, ...]) -> None:
    """Usage errors are told apart from a machine that cannot be measured."""
    assert run(*arguments).returncode == 2


@pytest.mark.parametrize("noise", [b"o\xff\xff\xff\xff", b"z\x00\x00\x00\x00", b"o"])
def test_a_stranger_at_the_partners_port_gets_nothing(noise: bytes) -> None:
    """Sizes and letters that are not ours, or half a request, end the conversation at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=wire.echo, args=(listener, SlowCompute(None)))
        thread.start()
        with socket.create_connection(listener.getsockname()) as sock:
            sock.sendall(noise)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(10)
            assert sock.recv(1) == b""
        thread.join(10)
        assert not thread.is_alive()


SECRET = b"a secret of the whole fleet"


@pytest.mark.parametrize("said", [bytes(64), b"o\x00\x10\x00\x00" + bytes(59), b""])
def test_a_caller_that_does_not_know_the_secret_is_hung_up_on(said: bytes) -> None:
    """Without the proof nothing is served, whatever is said, and the partner is free at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=wire.echo, args=(listener, SlowCompute(None), SECRET))
        thread.start()
        with socket.create_connection(listener.getsockname()) as sock:
            sock.settimeout(10)
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            assert len(sock.recv(100)) == 32, "a challenge"
            with suppress(ConnectionResetError):
                assert sock.recv(100) == b"", "and nothing besides"
        thread.join(10)
        assert not thread.is_alive()


def test_a_partner_that_does_not_know_the_secret_is_refused() -> None:
    """A stranger at a partner's address cannot play a slow link: its proof is asked for as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose() -> None:
            with listener.accept()[0] as sock:
                challenge = sock.recv(32)
                sock.sendall(challenge)  # the caller's own challenge, played back
                sock.sendall(sock.recv(32))  # and its own proof

        thread = threading.Thread(target=pose)
        thread.start()
        with pytest.raises(wire.Stranger):
            wire.connect("127.0.0.1", listener.getsockname()[1], SECRET)
        thread.join(10)


async def test_a_port_serves_a_caller_after_a_stranger(tmp_path: Path) -> None:
    """The agent's port turns a stranger away and measures with the node that comes next."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    async with ProbePort.open("127.0.0.1", secret) as port:
        stranger = socket.create_connection(("127.0.0.1", port.port))
        stranger.sendall(bytes(64))
        command = ["--probe", "link", "--port", str(port.port), "--budget-s", "0.1", "--json"]
        command += ["--secret-file", str(secret)]
        done = await anyio.to_thread.run_sync(lambda: run(*command))
        stranger.close()

    assert done.returncode == 0, done.stderr
    assert TOGETHER["link"] <= set(json.loads(done.stdout.splitlines()[-1]))


def test_sums_are_right_on_both_ends() -> None:
    """The collective really adds: what is in the result is one's own part plus the partner's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=wire.echo, args=(listener, SlowCompute(None)))
        thread.start()
        ends = wire.connect(*listener.getsockname()[:2])
        total = ends.sum(1 << 20).copy()
        link.measure(0.05, SlowCompute(None), ends)
        ends.hang_up()
        thread.join(10)

    assert total.size == 1 << 18
    assert (total == 2.0).all()


def test_best_median_and_variation_are_what_they_say() -> None:
    """Rates are better when higher, durations when lower."""
    assert sampling.rates("x", 10.0, [1.0, 2.0, 5.0]) == pytest.approx(
        {"x_best": 10.0, "x_median": 5.0, "x_cv": 0.58250}, rel=1e-3
    )
    assert sampling.durations("y_us", 1e6, [1e-6, 3e-6, 5e-6]) == pytest.approx(
        {"y_us_best": 1.0, "y_us_median": 3.0, "y_us_cv": 0.54433}, rel=1e-3
    )


def test_devices_are_measured_alone_and_in_pairs() -> None:
    """On any device that torch knows: each computes, and each pair copies, both ways."""
    from worker.probes import device

    found = device.measure(0.4, SlowCompute(None), ["cpu", "cpu"])
    paths = [f"copy_gbps_{way}_best" for way in ("h2d_0", "d2h_0", "h2d_1", "d2h_1", "0_1", "1_0")]

    assert {"device_gflops_0_best", "device_gflops_1_cv", *paths} <= set(found)
    assert all(math.isfinite(value) and value > 0 for value in found.values())


def test_where_there_is_no_gpu_the_probe_of_gpus_fails_in_one_line() -> None:
    """Exit code 1 and the cause: what could not be measured is no measurement."""
    done = run("--probe", "device", "--json", CUDA_VISIBLE_DEVICES="")

    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU that torch can use" in done.stderr.splitlines()[-1]


@pytest.mark.gpu
def test_real_gpus_are_measured() -> None:
    """Every GPU of this machine computes above 10 TFLOPS and tells its clock after the load."""
    done = run("--probe", "device", "--budget-s", "5", "--json")
    if "no GPU" in done.stderr:
        pytest.skip("no GPU on this machine")
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["device_gflops_0_best"] > 10_000
    assert found["device_sm_clock_mhz_best"] > 100
    assert found["copy_gbps_h2d_0_best"] > 1


def test_probes_start_without_torch() -> None:
    """A sweep does not wait for an import that it has no use for."""
    program = (
        "import sys; from worker.probes import collective, compute, link, memory; "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 0


def test_a_probe_beside_a_run_rests_most_of_the_time() -> None:
    """With a share of a twentieth it works no more than that, and finds what it would without."""
    found = {}
    for share in (1.0, 0.05):
        used_s, began_s = time.process_time(), time.perf_counter()
        rates = memory.measure(0.3, SlowCompute(None), pace=Pace(share))
        took_s = time.perf_counter() - began_s
        found[share] = rates["memory_gbps_best"], (time.process_time() - used_s) / took_s

    assert found[0.05][1] < 0.15, found
    assert found[0.05][0] > 0.6 * found[1.0][0], found


def test_the_start_of_a_probe_beside_a_run_is_paced_as_well() -> None:
    """From the interpreter to its end the child uses no more processor time than its share, and it
    ends as any other does.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    done = run("--probe", "compute", "--budget-s", "0.1", "--share", "0.1", "--json")
    took_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert done.returncode == 0, done.stderr
    assert ALONE["compute"] <= json.loads(done.stdout).keys()
    assert used_s > 0.1, "an import alone takes that"
    assert used_s / took_s < 0.15, f"{used_s:.2f} s of processor time in {took_s:.2f} s"


def test_a_partner_beside_a_run_starts_slowly_and_answers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller waits for a partner that starts at its share; what it then asks is not slowed."""
    monkeypatch.setenv(SHARE_VARIABLE, "0.1")
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)

    async def measured() -> dict[str, float]:
        async with ProbePort.open("127.0.0.1", secret, in_duty=lambda: True) as port:
            command = ["--probe", "link", "--port", str(port.port), "--budget-s", "0.1", "--json"]
            command += ["--secret-file", str(secret), "--share", "0.1"]
            done = await anyio.to_thread.run_sync(lambda: run(*command))
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    began_s = time.perf_counter()
    found = anyio.run(measured)

    assert time.perf_counter() - began_s > 1.0, (
        "its start of a tenth of a second takes ten times that"
    )
    assert found["link_latency_us_best"] < 5000, found

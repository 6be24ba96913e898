"""Gauges: what the kernel, the driver and an exporter tell, and what is blind when they do not."""

import http.server
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import (
    CPU_PRESSURE,
    CPU_STEAL,
    GPU_POWER_W,
    GPU_TEMP_C,
    GPU_UTIL,
    NIC_ERRORS,
    NIC_MBPS,
    SM_CLOCK_MHZ,
    THROTTLED,
    WORK_MS,
    Vitals,
    summarise,
)
from worker.gauges.exporter import ExporterGauges, gauges_of, parse
from worker.gauges.nvml import NvmlGauges
from worker.gauges.reading import Reading
from worker.gauges.sampler import Sampler
from worker.gauges.system import SystemGauges

# --- the kernel's files -----------------------------------------------------------------------


class Tree:
    """A recorded tree of /proc and /sys that a test may change, and a clock to go with it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 100.0
        self.gauges = SystemGauges(root, lambda: self.now_s)

    def write(self, **files: str) -> None:
        """Write files; two underscores stand for a slash."""
        for name, text in files.items():
            path = self.root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine with two Ethernet ports, one of them down, and one InfiniBand port."""
    found = Tree(tmp_path)
    found.write(
        proc__pressure__cpu="some avg10=1.50 avg60=0.90 avg300=0.30 total=5000000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        proc__stat="cpu  1000 0 500 8000 100 0 0 400 0 0\ncpu0 1 2 3 4\n",
        sys__devices__system__cpu__cpu0__thermal_throttle__core_throttle_count="7\n",
        sys__class__net__eth0__operstate="up\n",
        sys__class__net__eth0__speed="100000\n",
        sys__class__net__eth0__statistics__rx_errors="10\n",
        sys__class__net__eth0__statistics__tx_errors="0\n",
        sys__class__net__eth1__operstate="down\n",
        sys__class__net__eth1__speed="10\n",
        sys__class__net__lo__operstate="unknown\n",
        sys__class__net__lo__speed="1\n",
        sys__class__infiniband__mlx5_0__ports__1__state="4: ACTIVE\n",
        sys__class__infiniband__mlx5_0__ports__1__rate="400 Gb/sec (4X NDR)\n",
        sys__class__infiniband__mlx5_0__ports__1__counters__symbol_error="3\n",
    )
    return found


def test_counters_become_rates_between_two_readings(tree: Tree) -> None:
    """The first reading knows rates that are none of ours to count; the second knows all."""
    first = tree.gauges.read()
    assert dict(first.numbers) == {NIC_MBPS: 100_000.0}
    assert first.blind == {}
    tree.now_s += 10
    tree.write(
        proc__pressure__cpu="some avg10=1.50 avg60=0.90 avg300=0.30 total=9000000\n",
        proc__stat="cpu  1500 0 700 8100 100 0 0 600 0 0\n",
        sys__class__net__eth0__statistics__rx_errors="35\n",
        sys__class__infiniband__mlx5_0__ports__1__counters__symbol_error="8\n",
    )
    second = tree.gauges.read().numbers

    assert second[CPU_PRESSURE] == pytest.approx(0.4)
    assert second[CPU_STEAL] == pytest.approx(0.2)
    assert second[NIC_ERRORS] == pytest.approx(3.0)
    assert second[THROTTLED] == 0.0


def test_throttling_and_a_slower_port_show(tree: Tree) -> None:
    """A counter of throttling that grew, and a port that negotiated less than before."""
    tree.gauges.read()
    tree.now_s += 10
    tree.write(
        sys__devices__system__cpu__cpu0__thermal_throttle__core_throttle_count="9\n",
        sys__class__infiniband__mlx5_0__ports__1__rate="50 Gb/sec (1X HDR)\n",
    )
    found = tree.gauges.read().numbers

    assert found[THROTTLED] == 1.0
    assert found[NIC_MBPS] == 50_000.0


def test_counters_that_begin_anew_are_no_rate(tree: Tree) -> None:
    """After a driver was loaded again its counters are smaller: nothing is concluded from that."""
    tree.gauges.read()
    tree.now_s += 10
    tree.write(sys__class__net__eth0__statistics__rx_errors="0\n")

    assert NIC_ERRORS not in tree.gauges.read().numbers


def test_what_is_missing_is_blind_and_named(tmp_path: Path) -> None:
    """On a machine that tells nothing every gauge is blind, with the file or the reason."""
    found = SystemGauges(tmp_path).read()

    assert found.numbers == {}
    assert set(found.blind) == {CPU_PRESSURE, CPU_STEAL, THROTTLED, NIC_MBPS, NIC_ERRORS}
    assert "proc/pressure/cpu" in found.blind[CPU_PRESSURE]
    assert found.blind[NIC_ERRORS] == "no network port"


def test_this_machine_is_read_without_an_error() -> None:
    """Whatever this kernel tells, each gauge is a number or blind, and twice is as good as once."""
    gauges = SystemGauges()
    for _ in range(2):
        found = gauges.read()
        assert all(value >= 0 for value in found.numbers.values())
        assert not set(found.numbers) & set(found.blind)


# --- NVML -------------------------------------------------------------------------------------

FAKE = """
import os, time
class NVMLError(Exception): pass
NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
WAY = os.environ["FAKE_NVML"]
def nvmlInit():
    if WAY == "no driver": raise NVMLError("Driver Not Loaded")
def nvmlDeviceGetCount():
    if WAY == "wedged": time.sleep(3600)
    return 7 if WAY == "fewer" else 8
def nvmlDeviceGetHandleByIndex(index):
    if WAY == "lost" and index == 3: raise NVMLError("GPU is lost")
    return index
def nvmlDeviceGetMigMode(device): return (1 if WAY == "mig" and device == 0 else 0), 0
def nvmlDeviceGetClockInfo(device, which): return 1980 - 100 * (device == 1)
def nvmlDeviceGetTemperature(device, which): return 50 + device
def nvmlDeviceGetPowerUsage(device):
    if WAY == "partial": raise NVMLError("Not Supported")
    return 700_000
class Rates: gpu = 90
def nvmlDeviceGetUtilizationRates(device): return Rates
def nvmlDeviceGetCurrentClocksThrottleReasons(device): return 0x40 if device == 7 else 0x4
"""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """NVML as a driver of some kind would answer, in the real child."""
    (tmp_path / "pynvml.py").write_text(FAKE)
    opened: list[NvmlGauges] = []

    class Gauges(NvmlGauges):
        def __init__(self, way: str, deadline_s: float = 20.0) -> None:
            monkeypatch.setenv("FAKE_NVML", way)
            monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
            super().__init__(8, deadline_s=deadline_s)
            opened.append(self)

    yield Gauges
    for gauges in opened:
        gauges.close()


def test_devices_make_one_number_of_each_gauge(nvml: type) -> None:
    """The hottest device, and the mean of all for everything else; idle caps are no throttling."""
    found = nvml("well").read()

    assert found.blind == {}
    assert found.numbers[SM_CLOCK_MHZ] == pytest.approx(1980 - 100 / 8)
    assert found.numbers[GPU_TEMP_C] == 57
    assert found.numbers[GPU_POWER_W] == 700
    assert found.numbers[GPU_UTIL] == pytest.approx(0.9)
    assert found.numbers[THROTTLED] == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("way", "blind", "why", "measured"),
    [
        ("no driver", "nvml", "Driver Not Loaded", False),
        ("fewer", "nvml", "7 of 8 devices", True),
        ("lost", "gpu3", "GPU is lost", True),
        ("mig", "gpu0", "MIG is on", True),
        ("partial", f"{GPU_POWER_W}.gpu0", "Not Supported", True),
    ],
)
def test_what_a_driver_cannot_tell_is_blind_and_named(
    nvml: type, way: str, blind: str, why: str, measured: bool
) -> None:
    """No driver, fewer devices, a lost one, a partitioned one, a gauge less: never an exception."""
    found = nvml(way).read()

    assert why in found.blind[blind]
    assert (SM_CLOCK_MHZ in found.numbers) is measured


def test_a_wedged_driver_costs_its_deadline_once(nvml: type) -> None:
    """The child is killed and not started again at once; meanwhile the source is blind, quickly."""
    gauges = nvml("wedged", 1.0)
    began_s = time.monotonic()
    first = gauges.read()
    took_s = time.monotonic() - began_s
    began_s = time.monotonic()
    again = gauges.read()

    assert "no answer from NVML within 1 s" in first.blind["nvml"]
    assert took_s < 10
    assert again.blind == first.blind
    assert time.monotonic() - began_s < 0.5


def test_without_the_library_the_source_is_blind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the package, or without a driver, says so and nothing else."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('no module of that name')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    gauges = NvmlGauges(1, deadline_s=20)
    found = gauges.read()
    gauges.close()

    assert found.blind == {"nvml": "no module of that name"}
    assert found.numbers == {}


def test_a_child_that_talks_nonsense_is_blind() -> None:
    """Only the shape that was agreed on is believed."""
    command = [sys.executable, "-c", "input(); print('[1, 2]', flush=True); input()"]
    gauges = NvmlGauges(1, deadline_s=20, command=command)
    found = gauges.read()

    assert "'[1, 2]'" in found.blind["nvml"]


@pytest.mark.gpu
def test_real_gpus_tell_their_gauges() -> None:
    """NVML's own library in the child: clock, heat, power and use of the GPUs of this machine."""
    gauges = NvmlGauges(1)
    found = gauges.read()
    gauges.close()
    if not found.numbers:
        pytest.skip(f"no GPU on this machine: {found.blind}")

    assert found.numbers[SM_CLOCK_MHZ] > 100
    assert 10 < found.numbers[GPU_TEMP_C] < 110
    assert found.numbers[GPU_POWER_W] > 10


def test_where_no_gpu_is_expected_nothing_is_started() -> None:
    """A machine without GPUs is not blind to them."""
    assert NvmlGauges(0, command=["/nonexistent"]).read() == Reading()


# --- an exporter's page -----------------------------------------------------------------------

DATA = Path(__file__).parent / "data"
PAGE = (DATA / "dcgm_by_hand.txt").read_text()
"""Built by hand, for what no recording holds: busy devices, throttling, two hosts."""
MIG = "MIG is on: its gauges are not those of the whole device"


def recorded(name: str) -> str:
    """A page that a real exporter served; where it comes from stands on its first lines."""
    page = (DATA / name).read_text()
    assert page.startswith("# Recorded: ")
    return page


def test_a_recorded_page_is_read() -> None:
    """A whole page of release 4: pages do not tell why clocks are low unless they are asked to."""
    found = gauges_of(recorded("dcgm_4x_l4.txt"), "another-name", 1)

    assert found.numbers == {
        SM_CLOCK_MHZ: 210.0,
        GPU_TEMP_C: 31.0,
        GPU_POWER_W: 16.365,
        GPU_UTIL: 0.0,
    }
    assert found.blind == {THROTTLED: "the exporter does not tell it"}
    assert sum(1 for _ in parse(recorded("dcgm_4x_l4.txt"))) == 23, "a sample of each name"


@pytest.mark.parametrize(
    ("name", "partitioned"),
    [("dcgm_2x_a100_mig.txt", ["gpu0"]), ("dcgm_3x_a30_mig.txt", ["gpu0", "gpu1"])],
)
def test_recorded_pages_of_partitioned_devices_are_blind(name: str, partitioned: list[str]) -> None:
    """Whether a page tells of the device beside its instances (2.4) or of these alone (3.x)."""
    found = gauges_of(recorded(name), "", len(partitioned))

    assert found.numbers == {}
    assert found.blind == dict.fromkeys(partitioned, MIG) | {
        "exporter": "the page holds no gauge of a whole GPU"
    }


def test_a_recorded_page_of_whole_and_partitioned_devices_tells_of_the_whole() -> None:
    """What instances repeat is no device's; the host's label in lower case, with a pod's name."""
    found = gauges_of(recorded("dcgm_4x_mixed.txt"), "node-7", 3)

    assert found.numbers == {GPU_TEMP_C: 44.0}
    assert {name: found.blind[name] for name in ("gpu0", "gpu2")} == {"gpu0": MIG, "gpu2": MIG}
    assert "exporter" not in found.blind, "all three devices are there"
    assert gauges_of(recorded("dcgm_4x_mixed.txt"), "", 4).blind["exporter"] == "3 of 4 devices"


def test_a_recorded_blank_is_no_number() -> None:
    """Release 2.0 prints DCGM's blank as a number, and labels without commas."""
    page = recorded("dcgm_2_0_blank.txt")
    (blank,) = [each for each in parse(page) if each.name == "DCGM_FI_DEV_MEMORY_TEMP"]
    found = gauges_of(page.replace("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_TEMP"))

    assert blank.labels == {"gpu": "0", "UUID": "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"}
    assert found.numbers == {SM_CLOCK_MHZ: 139.0}
    assert found.blind[f"{GPU_TEMP_C}.gpu0"] == "the exporter says 9.22337e+18"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "644245923", "82505"])
def test_what_no_device_can_say_is_blind(value: str) -> None:
    """Temperatures that users reported of an exporter (NVIDIA/dcgm-exporter, issue 312), and no
    numbers at all: the gauge of that device is blind, and those of others count.
    """
    page = f'DCGM_FI_DEV_GPU_TEMP{{gpu="0"}} {value}\nDCGM_FI_DEV_GPU_TEMP{{gpu="1"}} 45\n'
    found = gauges_of(page)

    assert found.numbers == {GPU_TEMP_C: 45.0}
    assert "the exporter says" in found.blind[f"{GPU_TEMP_C}.gpu0"]


def test_a_page_in_the_exporters_format_is_read() -> None:
    """The names of dcgm-exporter become ours; other hosts, other names and no numbers do not."""
    found = gauges_of(PAGE, "rack7-n12")

    assert found.blind == {}
    assert found.numbers == {
        SM_CLOCK_MHZ: 1500.0,
        GPU_TEMP_C: 83.0,
        GPU_POWER_W: pytest.approx(525.0),
        GPU_UTIL: pytest.approx(0.98),
        THROTTLED: 0.5,
    }


def test_a_page_of_the_exporters_newer_release_is_read() -> None:
    """Labels of pods are no matter, a new name of clock reasons is the same gauge; what the page
    lacks is blind and named.
    """
    found = gauges_of(PAGE, "pod-host")

    assert found.numbers == {
        SM_CLOCK_MHZ: 2520.0,
        GPU_TEMP_C: 61.0,
        GPU_POWER_W: pytest.approx(286.409),
        THROTTLED: 1.0,
    }
    assert found.blind == {GPU_UTIL: "the exporter does not tell it"}


def test_labels_are_read_as_the_format_says() -> None:
    """Escaped quotes, commas in values and timestamps are part of the format."""
    (sample,) = parse('x_y{a="1,2",b="say \\"hi\\""} 3.5 1700000000000\n# HELP z\nno sample here!')

    assert (sample.name, sample.value) == ("x_y", 3.5)
    assert sample.labels == {"a": "1,2", "b": 'say \\"hi\\"'}


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


def test_a_page_is_fetched_and_a_dead_exporter_is_blind() -> None:
    """Over real HTTP; when nobody answers the source is blind with the address."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        found = ExporterGauges(url, "rack7-n12").read()
        thread.join(10)
    dead = ExporterGauges(url, deadline_s=1.0).read()

    assert found.numbers[GPU_TEMP_C] == 83.0
    assert url in dead.blind["exporter"]
    assert ExporterGauges("").read() == Reading()


# --- into a window ----------------------------------------------------------------------------


class Scripted:
    """A source that says one reading after the other."""

    def __init__(self, *readings: Reading) -> None:
        self.left = list(readings)

    def read(self) -> Reading:
        return self.left.pop(0)


def test_readings_become_the_metrics_of_the_next_window() -> None:
    """What was read since the last window is summarised; what was never read is blind, named."""
    source = Scripted(
        Reading({GPU_TEMP_C: 50.0}, {SM_CLOCK_MHZ: "Not Supported"}),
        Reading({GPU_TEMP_C: 60.0, GPU_POWER_W: 700.0}, {GPU_UTIL: "Not Supported"}),
        Reading({GPU_UTIL: 0.5}),
    )
    sampler = Sampler([source])
    for _ in range(3):
        sampler.read_once()
    window = Vitals(
        node=NodeId("n0"),
        incarnation=Incarnation(1),
        job=JobId("j"),
        slot=Slot(0),
        role=Role("only"),
        epoch=Epoch(1),
        window=0,
        started_at_ms=0,
        ended_at_ms=1,
        metrics={WORK_MS: summarise([10.0])},
    )
    found = sampler.with_gauges(window)

    assert found.metrics[WORK_MS] == window.metrics[WORK_MS]
    assert (found.metrics[GPU_TEMP_C].mean, found.metrics[GPU_TEMP_C].count) == (55.0, 2)
    assert found.blind == (f"{SM_CLOCK_MHZ}: Not Supported",)
    assert sampler.with_gauges(window) == window, "each reading counts for one window"

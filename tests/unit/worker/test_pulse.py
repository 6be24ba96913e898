"""The pulse: own work, waiting by group, data, and what connections carry, window by window."""

import time
from collections.abc import Iterator

import pytest

from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import DATA_MS, LINK_MBPS, WAIT_MS, WORK_MS, Accuses, Vitals, accuses
from worker.faults import FAULT_FILE_VARIABLE, LateInput, SlowKind, set_fault
from worker.loading import timed, timed_call
from worker.pulse import Pulse


class Group:
    """A group whose waiting and whose links a test decides."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.waits_s = 0.0
        self.links: dict[str, tuple[int, float]] = {}
        self.costs: dict[str, list[float]] = {}

    def waited_s(self) -> float:
        return self.waits_s

    def carried(self) -> dict[str, tuple[int, float]]:
        return dict(self.links)

    def take_costs(self) -> dict[str, list[float]]:
        found, self.costs = self.costs, {}
        return found


@pytest.fixture
def groups() -> list[Group]:
    """Two groups of one rank."""
    return [Group("dp"), Group("tp")]


@pytest.fixture
def pulse(groups: list[Group]) -> Pulse:
    """A pulse whose windows close when they are asked to."""
    return Pulse(NodeId("n0"), Incarnation(1), JobId("j"), 0.0, groups)


def closed(pulse: Pulse) -> Vitals:
    """The window that was open."""
    return pulse.close(Slot(0), Role("only"), Epoch(1))


def test_waiting_is_split_by_group_and_is_not_work(pulse: Pulse, groups: list[Group]) -> None:
    """What each group waited for is its own; the step less all of it is the node's own work."""
    pulse.begin_step()
    began_s = time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < 0.03:
        pass
    groups[0].waits_s += 0.02
    groups[1].waits_s += 0.005
    step_ms = pulse.end_step(0)
    vitals = closed(pulse)

    assert vitals.metrics[f"{WAIT_MS}.dp"].mean == pytest.approx(20)
    assert vitals.metrics[f"{WAIT_MS}.tp"].mean == pytest.approx(5)
    assert vitals.metrics[WAIT_MS].mean == pytest.approx(25)
    assert vitals.metrics[WORK_MS].mean == pytest.approx(step_ms - 25)
    assert took_s * 1000 <= step_ms


def test_rates_are_those_of_the_window_and_of_enough_bytes(
    pulse: Pulse, groups: list[Group]
) -> None:
    """A peer that sent 10 MB in 10 ms carried 8,000 Mbit/s, whatever it did before; a kilobyte says
    nothing.
    """
    groups[0].links = {"n1": (5_000_000, 100.0), "n2": (0, 0.0)}
    closed(pulse)
    groups[0].links = {"n1": (15_000_000, 100.01), "n2": (1000, 0.001)}
    metrics = closed(pulse).metrics

    assert metrics[f"{LINK_MBPS}.n1"].mean == pytest.approx(8000, rel=1e-6)
    assert f"{LINK_MBPS}.n2" not in metrics


def test_waiting_for_data_is_told_where_the_script_says_so(pulse: Pulse) -> None:
    """Both wrappers count; a script that uses neither measures no data, rather than zero."""

    def slow() -> Iterator[int]:
        time.sleep(0.01)
        yield 1

    pulse.begin_step()
    assert list(timed(slow())) == [1]
    pulse.end_step(0)
    assert closed(pulse).metrics[DATA_MS].mean >= 10
    load = timed_call(bytes)
    pulse.begin_step()
    assert load(3) == b"\0\0\0"
    pulse.end_step(1)
    assert 0 < closed(pulse).metrics[DATA_MS].mean < 10
    pulse.begin_step()
    pulse.end_step(2)
    assert DATA_MS not in closed(pulse).metrics


def test_an_injected_stall_makes_data_late(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as long again: each batch comes half a step late, and nothing is burned for it."""
    path = tmp_path_factory.mktemp("fault") / "fault"
    set_fault(path, 1.5, SlowKind.INPUT)
    monkeypatch.setenv(FAULT_FILE_VARIABLE, str(path))
    late = LateInput.from_environment()
    late.wait()
    cpu_s, began_s = time.thread_time(), time.perf_counter()
    time.sleep(0.04)
    late.wait()
    took_s = time.perf_counter() - began_s

    assert took_s >= 0.06
    assert time.thread_time() - cpu_s < 0.02
    assert late.burn(1.0) == 0.0


@pytest.mark.parametrize(
    ("kind", "slowed"),
    [
        (SlowKind.COMPUTE, "compute memory link step"),
        (SlowKind.MEMORY, "memory step"),
        (SlowKind.LINK, "link"),
        (SlowKind.INPUT, ""),
    ],
)
def test_each_kind_of_fault_slows_what_it_is_a_fault_of(
    kind: SlowKind, slowed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A sweep finds a fault where it is: slow memory in memory, slow computing everywhere."""
    path = tmp_path_factory.mktemp("fault") / "fault"
    set_fault(path, 2.0, kind)
    hurt = LateInput(path)
    found = [k for k in ("compute", "memory", "link") if hurt.slows(SlowKind(k)) == 2.0]
    burned_s = hurt.burn(0.01)

    assert [*found, *(["step"] if burned_s else [])] == slowed.split()
    assert burned_s == 0.0 or burned_s >= 0.01


def test_what_changes_of_members_cost_is_in_the_next_window_and_accuses_nobody(
    pulse: Pulse, groups: list[Group]
) -> None:
    """Costs of all groups by mechanism, once; a window without a change says nothing of them."""
    groups[0].costs = {"group_switch_ms.delta": [0.2, 0.4]}
    groups[1].costs = {"group_switch_ms.delta": [0.3], "group_abort_ms.delta": [1.0]}
    pulse.begin_step()
    pulse.end_step(0)
    first, second = closed(pulse), closed(pulse)

    assert first.metrics["group_switch_ms.delta"].count == 3
    assert first.metrics["group_switch_ms.delta"].p50 == pytest.approx(0.3)
    assert first.metrics["group_abort_ms.delta"].count == 1
    assert accuses("group_switch_ms.delta") is Accuses.NEVER
    assert not any(name.startswith("group_") for name in second.metrics)

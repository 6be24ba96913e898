"""The labelled suite: what is in it, that it repeats, and that it knows nothing of the detector."""

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from simulator.errors import BadTrace
from simulator.grey import noise, scoring, suite
from simulator.grey.faults import Fault, Kind
from simulator.grey.fleet import FleetSpec, windows
from simulator.grey.rivals import NvrxScores, ZScore
from statemachine.detector_policy import DetectorPolicy
from statemachine.vitals import DATA_MS, LINK_MBPS, STEP_MS, WAIT_MS, WORK_MS, encode_vitals

GREY = Path(suite.__file__).parent
DETECTOR = ("statemachine.detector", "statemachine.judgement", "statemachine.comparison")


def test_the_suite_is_as_large_as_it_says() -> None:
    """At least 1,000 healthy and 1,000 faulty node-hours, in fleets of 8 to 1,024 nodes."""
    episodes = list(suite.suite(1))
    faulty_h = healthy_h = 0.0
    for each in episodes:
        onsets = [fault.onset for fault in each.spec.faults.values()]
        hours = each.windows * suite.WINDOW_S / 3600
        sick_h = sum((each.windows - onset) * suite.WINDOW_S / 3600 for onset in onsets)
        faulty_h += sick_h
        healthy_h += each.spec.nodes * hours - sick_h

    assert faulty_h >= 1_000
    assert healthy_h >= 24 * 300, "so that 1 % per node-day can be told from 2 %"
    assert {each.spec.nodes for each in episodes} == {8, 16, 64, 256, 1024}
    kinds = {fault.kind for each in episodes for fault in each.spec.faults.values()}
    assert kinds == set(Kind)


def test_the_same_seed_is_the_same_suite_and_another_is_not() -> None:
    """Episodes and every byte of their windows repeat."""

    def first(seed: int) -> list[bytes]:
        episode = next(iter(suite.suite(seed, 0.01)))
        batches = windows(episode.spec, episode.seed, 3)
        return [encode_vitals(vitals) for batch in batches for vitals in batch]

    assert first(5) == first(5)
    assert first(5) != first(6)


def test_the_generator_knows_nothing_of_the_detector() -> None:
    """Only what scores may import it: nobody tunes one to the other unseen."""
    for path in sorted(GREY.glob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        knows = {name for name in imported if name.startswith(DETECTOR)}
        assert not knows or path.name == "scoring.py", f"{path.name} imports {knows}"


def test_a_fault_leaves_the_noise_of_everybody_else_as_it_was() -> None:
    """Fleets that differ in a fault are compared on common random numbers."""
    well = FleetSpec(nodes=4, links=False)
    sick = replace(well, faults={1: Fault(kind=Kind.COMPUTE, size=1.4, onset=2)})
    for healthy, hurt in zip(windows(well, 3, 6), windows(sick, 3, 6), strict=True):
        for node in (0, 2, 3):
            assert healthy[node].metrics[WORK_MS] == hurt[node].metrics[WORK_MS]


@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_of_fault_shows_where_it_should(kind: Kind) -> None:
    """Own work grows by its size on average, or links carry less and every step grows."""
    size = 1.4
    spec = FleetSpec(nodes=4, bias=0.0, faults={1: Fault(kind=kind, size=size)})
    sums: dict[str, list[float]] = {}
    for batch in windows(spec, 1, 240):
        for name, node in (("sick", batch[1]), ("well", batch[2])):
            sums.setdefault(name, []).append(node.metrics[WORK_MS].mean)
        sums.setdefault("step", []).append(batch[0].metrics[STEP_MS].mean)
        sums.setdefault("wait", []).append(batch[1].metrics[WAIT_MS].p50)
        sums.setdefault("data", []).append(batch[1].metrics[DATA_MS].mean)
        sums.setdefault("link", []).append(batch[1].metrics[f"{LINK_MBPS}.n2"].mean)
    mean = {name: sum(values) / len(values) for name, values in sums.items()}
    ratio = mean["sick"] / mean["well"]

    if kind is Kind.LINK:
        assert ratio == pytest.approx(1, abs=0.06)
        assert mean["link"] == pytest.approx(spec.link_mbps / size, rel=0.05)
        assert mean["step"] > mean["well"] + spec.exchange_ms * 1.3
    else:
        expected = {Kind.FLAPPING: 1.2, Kind.DRIFT: 1.3}.get(kind, size)
        assert ratio == pytest.approx(expected, rel=0.06)
        assert (mean["data"] > 100) is (kind is Kind.INPUT)


def test_rivals_are_what_they_say() -> None:
    """NVRx's score is the least median of all over one's own; a z-score is in deviations."""
    batch = next(iter(windows(FleetSpec(nodes=8), 1, 1)))
    own = {v.node: v.metrics[WORK_MS].p50 for v in batch}
    scores = NvrxScores().see(batch)

    assert scores == {node: pytest.approx(1 - min(own.values()) / w) for node, w in own.items()}
    assert sum(ZScore().see(batch).values()) == pytest.approx(0, abs=1e-9)


def test_a_recording_that_is_none_is_named(tmp_path: Path) -> None:
    """The path stands in the message."""
    path = tmp_path / "x.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(BadTrace, match=r"x\.gz: no recorded step times"):
        noise.read_recordings(path)


@pytest.mark.parametrize(("count", "most"), [(0, 2.996), (1, 4.744), (5, 10.513), (60, 74.4)])
def test_how_many_a_count_may_stand_for(count: int, most: float) -> None:
    """The one-sided 95 % bound of a Poisson mean, as tables have it."""
    assert scoring.at_most(count) == pytest.approx(most, rel=1e-3)


def test_severities_count_who_was_seen_and_who_was_acted_upon() -> None:
    """A fault counts with those of about its size; healthy nodes with none."""
    healthy = scoring.Outcome(nodes=8, kind="compute", size=1.0, healthy_windows=20)
    faulty = replace(healthy, faulty_windows=100)
    found = scoring.by_severity(
        [
            healthy,
            replace(faulty, size=1.05, watched_after=40),
            replace(faulty, size=1.06),
            replace(faulty, size=1.2, watched_after=3, acted_after=4),
        ]
    )

    assert list(found) == ["5 % (4 to 7)", "20 % (14 to 28)"]
    five, twenty = found.values()
    assert (five.faults, five.seen, five.acted, five.windows_to_see_p50) == (2, 0.5, 0.0, 40)
    assert five.windows_to_act_p50 is None
    assert (twenty.seen, twenty.acted, twenty.windows_to_act_p90) == (1.0, 1.0, 4)


@pytest.mark.soak
def test_error_rates_of_small_fleets_stay_within_their_bounds() -> None:
    """On a part of the suite nobody healthy is acted upon, and few faults of 10 % are missed."""
    found = [
        outcome
        for episode in suite.suite(11, 0.05)
        if episode.spec.nodes <= 16
        for outcome in scoring.run(episode, DetectorPolicy(), rivals=False)
    ]
    rates = scoring.rates(found, suite.WINDOW_S)
    print(rates, scoring.table(found, "size"))

    assert rates.false_positives <= 1
    assert rates.fnr_at_10pct is not None
    assert rates.fnr_at_10pct < 0.15, "of about twenty"

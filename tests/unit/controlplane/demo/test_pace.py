"""How steps followed each other before, while and after a node was grey."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from controlplane.demo.outcome import IncidentOutcome, PaceOutcome
from controlplane.demo.peers import beside_peers, read_windows
from controlplane.demo.proof import claims_of_work
from controlplane.demo.steps import JobStep, Pace, pace
from controlplane.demo.tables import pace_words
from simulator.grey.faults import Fault, Kind
from simulator.grey.fleet import FleetSpec, windows
from statemachine.ids import Slot
from statemachine.vitals import encode_vitals


def steps(*gaps_ms: float) -> list[JobStep]:
    """Steps that followed each other so."""
    at_ms, found = 0.0, []
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        found.append(JobStep(step=number, at_ms=at_ms, gap_ms=gap_ms, loss=None))
    return found


def test_mean_and_variation_are_those_of_the_span() -> None:
    """Only steps committed within it count."""
    found = pace(steps(*[100.0] * 10, *[150.0, 130.0] * 5), 1000.5, 10_000)

    assert found is not None
    assert (found.steps, found.mean_ms) == (10, 140.0)
    assert found.variation == pytest.approx(10 / 140)


def test_one_pause_in_fifty_steps_is_no_variation() -> None:
    """A swap's pause is told elsewhere."""
    found = pace(steps(*[100.0] * 49, 900.0), 0, 10_000)

    assert found is not None
    assert found.variation == 0.0


def test_too_few_steps_have_no_pace() -> None:
    """Two steps say nothing."""
    assert pace(steps(100.0, 100.0), 0, 1000) is None


def test_what_a_grey_node_costs_is_told_beside_what_guard_published() -> None:
    """Mean and variation before, while and after, both ratios, and how much of Guard's effect."""
    found = PaceOutcome(
        before=Pace(steps=40, mean_ms=100.0, variation=0.05),
        during=Pace(steps=20, mean_ms=135.0, variation=0.1),
        after=Pace(steps=40, mean_ms=100.0, variation=0.05),
        slowed=1.35,
        calmed=2.0,
    )

    assert pace_words("n2", found) == (
        "steps around n2: before 100 ms +-5%, grey 135 ms +-10%, after 100 ms +-5%; 1.35x slower "
        "and 2.0x as uneven while it was grey (Guard, published: 1.7x, 20x); of Guard's effect 50% "
        "in the mean"
    )


def test_work_beside_peers_is_that_of_the_span_and_slot(tmp_path: Path) -> None:
    """A node at 1.4x from the tenth window on: even before, 1.4x after, whoever else is asked for
    is even; a file is read as far as its lines are whole.
    """
    fault = Fault(kind=Kind.COMPUTE, size=1.4, onset=10)
    rows = [v for batch in windows(FleetSpec(nodes=4, faults={2: fault}), 1, 20) for v in batch]
    path = tmp_path / "vitals.jsonl"
    path.write_bytes(b"\n".join([*map(encode_vitals, rows), b'{"node": "n']))
    found = read_windows(path)
    (sick,) = {v.slot for v in rows if v.node == "n2"}
    onset_ms = min(v.started_at_ms for v in rows if v.window >= 10)
    spans = ((0, onset_ms), (onset_ms, rows[-1].ended_at_ms))

    before, grey = (beside_peers(found, sick, *span) for span in spans)
    assert before == pytest.approx(1.0, abs=0.05)
    assert grey == pytest.approx(1.4, abs=0.1)
    assert beside_peers(found, Slot(99), *spans[0]) is None
    assert beside_peers([v for v in found if v.slot == sick], sick, *spans[0]) is None
    assert read_windows(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("before", "grey", "after", "holds"),
    [
        (1.0, 1.4, 1.0, True),
        (1.1, 1.3, 0.9, True),
        (1.0, 1.05, 1.0, False),
        (1.0, 1.4, 1.35, False),
        (1.35, 1.4, 1.0, False),
    ],
)
def test_the_claim_about_work_is_that_it_stood_out_only_then(
    before: float, grey: float, after: float, holds: bool
) -> None:
    """However slow all were: what counts is the slot beside its peers, at each of three times."""
    even = Pace(steps=40, mean_ms=100.0, variation=0.05)
    pace_found = PaceOutcome(
        before=even,
        during=even,
        after=even,
        slowed=1.0,
        calmed=1.0,
        of_peers_before=before,
        of_peers_grey=grey,
        of_peers_after=after,
    )
    incident = IncidentOutcome(
        kind="grey",
        node="n2",
        replacement="n4",
        slot=2,
        steps_lost=0,
        downtime_ms=1.0,
        gap_ms=1.0,
        pause_ms=1.0,
        resume_step=1,
        phases={},
        injected_at_ms=0.0,
        resumed_at_ms=1.0,
        transition=1,
        epoch=1,
        failed_sweeps=0,
        came_back=True,
        reason="",
        pace=pace_found,
    )

    (claim,) = claims_of_work([incident], "compute")
    assert claim.holds is holds, claim
    assert f"grey {grey:.2f}x" in claim.detail
    assert claims_of_work([incident], "link") == [], "of a slow link no work is slow"
    untold = replace(incident, pace=replace(pace_found, of_peers_after=None))
    assert claims_of_work([untold], "compute") == []

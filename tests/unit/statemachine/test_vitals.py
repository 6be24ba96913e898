"""Vitals: summaries of samples, the table of metrics, bytes."""

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.errors import CodecError
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import (
    ACCUSES,
    Accuses,
    Metric,
    Vitals,
    accuses,
    decode_vitals,
    encode_vitals,
    median,
    quantile,
    summarise,
)

FINITE = st.floats(0, 1e9)


def window(**changes: object) -> Vitals:
    """One plain window with some fields changed."""
    plain = Vitals(
        node=NodeId("n3"),
        incarnation=Incarnation(2),
        job=JobId("j"),
        slot=Slot(1),
        role=Role("only"),
        epoch=Epoch(4),
        window=7,
        started_at_ms=1_000,
        ended_at_ms=2_000,
        steps=20,
        last_step=139,
        metrics={"work_ms": summarise([10.0, 12.0, 11.0])},
        blind=("cpu_ms",),
        loss=2.5,
    )
    return msgspec.structs.replace(plain, **changes)


@given(st.lists(FINITE, min_size=1, max_size=40))
def test_a_summary_agrees_with_the_statistics_module(samples: list[float]) -> None:
    """Count, mean, median and 95th percentile are those that the standard library gives."""
    metric = summarise(samples)

    assert metric.count == len(samples)
    assert metric.mean == pytest.approx(statistics.fmean(samples))
    assert metric.p50 == pytest.approx(statistics.median(samples))
    if len(samples) > 1:
        inclusive = statistics.quantiles(samples, n=20, method="inclusive")
        assert metric.p95 == pytest.approx(inclusive[18])


@given(st.lists(FINITE, min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_lies_within_the_samples(samples: list[float], share: float) -> None:
    """No quantile is below the least or above the greatest sample."""
    ordered = sorted(samples)

    assert ordered[0] <= quantile(ordered, share) <= ordered[-1] * (1 + 1e-12)


def test_samples_that_are_not_finite_are_left_out() -> None:
    """A NaN from a broken timer neither spreads nor raises; nothing measured is count 0."""
    assert summarise([math.nan, 3.0, math.inf]) == Metric(count=1, mean=3.0, p50=3.0, p95=3.0)
    assert summarise([]).count == 0
    assert summarise([math.nan]).count == 0
    assert median([3.0, 1.0, 2.0]) == 2.0


@pytest.mark.parametrize(
    ("metric", "side"),
    [
        ("work_ms", Accuses.HIGH),
        ("wait_ms", Accuses.LOW),
        ("wait_ms.dp[0]", Accuses.LOW),
        ("step_ms", Accuses.NEVER),
        ("cpu_ms", Accuses.HIGH),
        ("data_ms", Accuses.HIGH),
        ("aura", Accuses.NEVER),
    ],
)
def test_each_metric_has_one_bad_side(metric: str, side: Accuses) -> None:
    """Long work and short waiting speak against a node; step time and unknown names never do."""
    assert accuses(metric) is side


def test_every_metric_of_the_table_ends_with_its_unit() -> None:
    """The name of a metric says its unit."""
    units = ("_ms", "_mbps", "_mhz", "_c", "_w", "_share", "_per_s")
    assert all(name.endswith(units) for name in ACCUSES)


def test_bytes_bring_the_same_window_back() -> None:
    """What one node encodes is what the collector decodes, with or without optional fields."""
    for vitals in (window(), window(loss=None, blind=(), metrics={}, steps=0, last_step=-1)):
        assert decode_vitals(encode_vitals(vitals)) == vitals


def test_a_loss_that_is_not_finite_reads_as_none() -> None:
    """JSON knows no NaN: a diverged run has no loss, and its vitals still arrive."""
    assert decode_vitals(encode_vitals(window(loss=math.nan))).loss is None


def test_fields_of_a_newer_version_are_skipped() -> None:
    """A node that reports more than we know is still read."""
    raw = encode_vitals(window()).replace(b'{"node"', b'{"aura":[1],"node"', 1)

    assert decode_vitals(raw) == window()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "no vitals"),
        (b"{}", "missing required field"),
        (b"\xff\x00", "no vitals"),
        (encode_vitals(window()).replace(b'"n3"', b'"../n3"'), "node name '../n3'"),
        (encode_vitals(window()).replace(b'"window":7', b'"window":-7'), "window"),
        (encode_vitals(window()).replace(b'"p50":11.0', b'"p50":null'), "p50"),
        (encode_vitals(window(ended_at_ms=999)), "n3: window 7 ends before it starts"),
    ],
)
def test_bytes_that_are_no_vitals_are_refused_with_the_reason(raw: bytes, says: str) -> None:
    """Each corruption raises one error that names what is wrong."""
    with pytest.raises(CodecError, match=says):
        decode_vitals(raw)


def test_only_what_was_measured_counts_as_measured() -> None:
    """Absent, blind and empty metrics are the same to a reader: not measured."""
    empty = {"work_ms": summarise([])}

    assert window().measured("work_ms") is not None
    assert window().measured("step_ms") is None
    assert window(metrics=empty).measured("work_ms") is None
    assert window(blind=("work_ms",)).measured("work_ms") is None

"""Charts: numbers become coordinates inside the frame, and no pause disappears."""

import itertools

import pytest

from controlplane.demo.charts import Moment, Stretch, lanes, line_chart, nice_ticks


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 97), (2.3, 5.6), (0, 0.004), (-5, 12_000)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    """A handful of multiples of 1, 2, 2.5 or 5 times a power of ten."""
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    steps = {round(after - before, 9) for before, after in itertools.pairwise(ticks)}
    assert len(steps) == 1


def test_a_flat_or_single_value_is_drawn_all_the_same() -> None:
    """No division by a span of zero."""
    chart = line_chart([(1.0, 5.0)], [], from_zero=False)
    assert len(chart.points.split()) == 1
    assert line_chart([(1.0, 0.0), (2.0, 0.0)], [], from_zero=True).points


def test_points_and_marks_stay_inside_the_frame() -> None:
    """Whatever the values, the line is drawn between the axes."""
    chart = line_chart(
        [(float(n), float(n * n)) for n in range(50)], [Moment(60.0, "late", "")], from_zero=True
    )
    for pair in chart.points.split():
        x, y = map(float, pair.split(","))
        assert chart.left - 0.1 <= x <= chart.right + 0.1
        assert chart.top - 0.1 <= y <= chart.bottom + 0.1
    assert chart.marks[0].x == pytest.approx(chart.right)


def test_thinning_a_long_run_keeps_its_longest_pause() -> None:
    """Of steps that fall onto one point the slowest is drawn."""
    points = [(float(n), 10.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 700.0)
    chart = line_chart(points, [], from_zero=True)
    drawn = [float(pair.split(",")[1]) for pair in chart.points.split()]
    assert len(drawn) < 5000
    assert sum(y < min(drawn) + 1 for y in drawn) == 1


def test_every_node_has_a_lane_of_its_own() -> None:
    """Bars of one node share a height; nodes are in the order of their names."""
    drawn = lanes(
        [
            Stretch("n1", "active", 0, 5),
            Stretch("n0", "active", 0, 4),
            Stretch("n0", "lost", 4, 5),
        ],
        [],
    )
    assert [name.text for name in drawn.names] == ["n0", "n1"]
    assert len({bar.y for bar in drawn.bars if bar.title.startswith("n0")}) == 1
    assert len({bar.y for bar in drawn.bars}) == 2

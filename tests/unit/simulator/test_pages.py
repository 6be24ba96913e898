"""Reports of every verb: they stand alone, name their units, and show their intervals."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from simulator.cli import cli
from simulator.compare import compare
from simulator.pages.blocks import Bar, Bars, Curve, Point, Series, Stack, Stacks
from simulator.pages.drawing import LEFT, PLOT, draw_bars, draw_curve, draw_stacks, ticks
from simulator.pages.html import html_of
from simulator.pages.planning import page_of_comparison, page_of_paper
from simulator.pages.telling import page_of_validation
from simulator.paper.figure import Figure
from simulator.scenario import Scenario
from simulator.stats import Estimate
from simulator.validating import Pair, Validation
from statemachine.errors import UsageError

DEMO = Path(__file__).parents[2] / "history" / "demo_kill_and_grey.events.jsonl"
SMALL = """
name = "small <b>"
days = 0.2
replications = 3
[job]
axes = { pp = 2, dp = 2, tp = 8 }
[faults]
per_1000_node_days = 4000
[grid]
"fleet.standbys" = [1, 2]
"""
VERBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (("run", "SMALL"), ("hours of the whole job", "no interval")),
    "compare": (
        ("compare", "SMALL", "--workers", "1", "--strategy", "hot-spares"),
        ("ETTR: share of wall time", "wasted, GPU-h", "±"),
    ),
    "grid": (
        ("grid", "SMALL", "--results", "RESULTS", "--most", "5", "--workers", "1"),
        ("ETTR over fleet.standbys", "±", "95 % intervals"),
    ),
    "plan": (
        ("plan", "SMALL", "--target-ettr", "0.3", "--workers", "1"),
        ("GPU-hours in 0.2 days", "target", "±"),
    ),
    "replay": (("replay", "DEMO"), ("milliseconds", "loss of n1, slot 1", "no interval")),
    "whatif": (
        ("whatif", "DEMO", "--policy", "POLICY"),
        ("milliseconds of the job", "n4 takes slot 1 of n1", "no interval"),
    ),
}


class Elements(HTMLParser):
    """Open elements of a page, which must all be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element; some have no end."""
        self.seen.append(tag)
        if tag not in ("meta", "line", "rect", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost one."""
        if tag not in ("line", "rect", "circle"):
            assert self.open.pop() == tag


def stands_alone(page: str) -> None:
    """Refuse a page that loads something, runs something, or is not well formed."""
    for banned in ("src=", "http", "<script", "@import", "url(", "<link"):
        assert banned not in page, banned
    assert page.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in page
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert "svg" in elements.seen


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_writes_a_report_that_stands_alone(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`simctl VERB --html F` writes one file that loads nothing, escapes names, is readable in
    light and dark, and names units and intervals.
    """
    (tmp_path / "small.toml").write_text(SMALL, "utf-8")
    (tmp_path / "p.toml").write_text('on_loss = ["wait"]', "utf-8")
    places = {
        "SMALL": tmp_path / "small.toml",
        "RESULTS": tmp_path / "r.jsonl",
        "POLICY": tmp_path / "p.toml",
        "DEMO": DEMO,
    }
    arguments, expected = VERBS[verb]
    given = [str(places.get(each, each)) for each in arguments]
    cli.main([*given, "--html", str(tmp_path / "page.html"), "--json"], standalone_mode=False)
    capsys.readouterr()
    page = (tmp_path / "page.html").read_text("utf-8")

    stands_alone(page)
    assert "small <b>" not in page
    assert ("small &lt;b&gt;" in page) == ("SMALL" in arguments)
    for words in expected:
        assert words in html.unescape(page), words


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A folder that does not exist is named, and nothing is raised but a usage error."""
    target = tmp_path / "nowhere" / "page.html"
    with pytest.raises(UsageError, match=r"nowhere/page\.html: cannot be written"):
        cli.main(["replay", str(DEMO), "--html", str(target)], standalone_mode=False)


def test_a_comparison_shows_interval_closed_form_and_difference(small: Scenario) -> None:
    """Each strategy has its interval and closed form; differences are against the first."""
    few = replace(small, replications=4, days=0.5)
    found = compare(few, ["hot-spares", "in-process"])
    bars, apart, table = page_of_comparison(few, found).blocks

    assert isinstance(bars, Bars)
    assert isinstance(apart, Bars)
    for bar, row in zip(bars.bars, found.rows, strict=True):
        assert (bar.value, bar.low, bar.high) == (row.ettr.mean, row.ettr.low, row.ettr.high)
        assert bar.mark == row.closed_form
    assert [bar.name for bar in apart.bars] == ["in-process"]
    assert "hot-spares" in apart.unit
    assert table.title.startswith("In numbers")


def test_fitted_and_predicted_figures_look_different() -> None:
    """The page of the paper gives fitted, predicted and missed figures a colour each, and lists a
    bar without a published number in its table alone.
    """

    def figure(name: str, published: float | None, kind: str) -> Figure:
        estimate = Estimate(mean=1.0, half=0.02, count=5)
        return Figure(
            name=name,
            published=published,
            unit="s",
            simulated=estimate,
            kind=kind,
            inputs="i",
            source="s",
        )

    page = page_of_paper(
        [
            figure("a", 1.0, "fitted"),
            figure("b", 1.05, "predicted"),
            figure("c", 2.0, "predicted"),
            figure("d", None, "predicted"),
        ]
    )
    errors = page.blocks[0]
    assert isinstance(errors, Bars)

    assert [(b.name, b.shade) for b in errors.bars] == [("1. a", 0), ("2. b", 1), ("3. c", 3)]
    assert errors.bars[2].value == pytest.approx(-50.0)
    assert errors.bars[2].low == pytest.approx(-51.0)
    assert "1 that were predicted are off" in page.lead
    stands_alone(html_of(page))


def test_a_validation_shows_both_sides() -> None:
    """Measured and simulated downtimes stand side by side with the error."""
    pair = Pair(
        at_s=1.0,
        kind="kill",
        machine=1,
        measured_replacement=4,
        simulated_replacement=4,
        measured_ms=200.0,
        simulated_ms=210.0,
        error=0.05,
    )
    found = Validation(
        pairs=(pair,),
        measured_ettr=0.9,
        simulated_ettr=0.91,
        measured_swaps=1,
        simulated_swaps=1,
        same_replacements=1,
        costs={},
        costs_from="this run itself",
    )
    page = page_of_validation("demo-1", found)
    bars = page.blocks[0]
    assert isinstance(bars, Bars)

    assert [(bar.value, bar.shade) for bar in bars.bars] == [(200.0, 0), (210.0, 1)]
    assert "(+5%)" in bars.bars[1].words
    stands_alone(html_of(page))


# --- where lines go ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.9, 0.99, [0.9, 0.92, 0.94, 0.96, 0.98, 1.0]),
        (-50.0, 50.0, [-60.0, -40.0, -20.0, 0.0, 20.0, 40.0, 60.0]),
        (3.0, 3.0, [3.0, 4.0]),
        (0.0, 0.0, [0.0, 0.2]),
    ],
)
def test_ticks_are_round_and_cover(low: float, high: float, expected: list[float]) -> None:
    """Ticks are steps of 1, 2 or 5 times a power of ten, and hold every value."""
    found = ticks(low, high)

    assert found == pytest.approx(expected)
    assert found[0] <= low
    assert found[-1] >= high


def test_a_bar_ends_where_its_value_is() -> None:
    """A value of half the axis ends in its middle, its interval around it, also below 0."""
    block = Bars(
        title="t",
        unit="u",
        bars=(
            Bar(name="a", value=0.5, low=0.4, high=0.6, words="w"),
            Bar(name="b", value=-1.0, words="w"),
        ),
        ends=(-1.0, 1.0),
    )
    shapes = draw_bars(block).shapes
    middle = LEFT + PLOT / 2
    first, second = [shape for shape in shapes if shape.kind == "rect"]
    across = next(s for s in shapes if s.kind == "line" and s.style == "ink" and s.y == s.y2)

    assert first.x == middle
    assert first.x + first.x2 == pytest.approx(LEFT + PLOT * 0.75)
    assert second.x == LEFT
    assert second.x + second.x2 == pytest.approx(middle)
    assert across.x == pytest.approx(LEFT + PLOT * 0.7)
    assert across.x2 == pytest.approx(LEFT + PLOT * 0.8)
    assert "u" in [shape.text for shape in shapes]


def test_parts_of_a_stack_follow_each_other() -> None:
    """Parts begin where the one before ends, and each colour is in the key."""
    stack = Stack(name="n", values=(2.0, 3.0, 5.0), words="10")
    block = Stacks(title="t", unit="ms", parts=("a", "b", "c"), stacks=(stack,))
    shapes = draw_stacks(block).shapes
    rects = [s for s in shapes if s.kind == "rect" and s.y2 == 17]

    assert rects[0].x == LEFT
    assert rects[1].x == pytest.approx(rects[0].x + rects[0].x2)
    assert rects[2].x + rects[2].x2 == pytest.approx(LEFT + PLOT)
    assert {"a", "b", "c", "ms"} <= {shape.text for shape in shapes}


def test_a_curve_shows_points_intervals_and_target() -> None:
    """Higher values stand higher, each point has its interval, and the target is a line."""
    points = tuple(Point(x=n, value=n / 10, low=n / 10 - 0.01, high=n / 10 + 0.01) for n in (1, 2))
    block = Curve(
        title="t",
        x_title="standbys",
        unit="ETTR",
        series=(Series(name="s", points=points),),
        target=0.15,
    )
    shapes = draw_curve(block).shapes
    dots = [shape for shape in shapes if shape.kind == "dot"]
    target = next(shape for shape in shapes if shape.style == "dashed")
    intervals = [s for s in shapes if s.kind == "line" and s.style == "shade0"]

    assert dots[0].y > target.y > dots[1].y
    assert len(intervals) == 2
    assert all(line.y2 < dot.y < line.y for line, dot in zip(intervals, dots, strict=True))
    assert {"standbys", "ETTR", "target"} <= {shape.text for shape in shapes}


def test_json_is_what_it_was_beside_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking for a report changes nothing that is printed."""

    def printed(*more: str) -> bytes:
        cli.main(["replay", str(DEMO), "--json", *more], standalone_mode=False)
        return capsys.readouterr().out.encode()

    plain = printed()
    assert printed("--html", str(tmp_path / "p.html")) == plain
    assert re.search(rb'"entries": ?92', plain)
    assert msgspec.json.decode(plain)

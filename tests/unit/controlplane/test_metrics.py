"""What Prometheus is told: by its conventions, documented, and true of the log that passed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.logstats import Stats
from controlplane.metrics import Meters
from controlplane.picture import Picture
from statemachine.codec import decode_recorded
from statemachine.evolve import evolve
from statemachine.state import FleetState

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "tests" / "history" / "demo_kill_and_grey.events.jsonl"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def exposition() -> str:
    """What is scraped after a demo passed."""
    meters, state = Meters(), FleetState()
    meters.begin(state)
    for raw in DEMO.read_bytes().splitlines():
        recorded = decode_recorded(raw)
        state = evolve(state, recorded)
        meters.heard(recorded, state)
    picture = Picture(fleet="demo", state=state, leader=("c0", 7), vitals={})
    meters.picture = lambda: picture
    stats = Stats(
        fleet="demo",
        head=92,
        oldest=1,
        live_entries=92,
        waiting_facts=3,
        snapshot_position=0,
        snapshot_bytes=0,
        snapshot_age_s=None,
        entries_since_snapshot=92,
        archived_to=0,
        store_version="3.5.16",
        store_bytes=1024,
        quota_bytes=2048,
    )
    meters.stats = lambda: stats
    meters.passed.labels("set aside").inc()
    meters.deliveries.labels("pager", "delivered").inc()
    return meters.render().decode()


@pytest.fixture(scope="module")
def samples(exposition: str) -> Samples:
    """The same by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def test_a_demo_is_counted(samples: Samples) -> None:
    """Nodes by state, transitions by motive, one loss with its downtime in seconds."""
    assert samples["changeover_nodes", (("state", "spare"),)] == 4
    assert samples["changeover_nodes", (("state", "lost"),)] == 0
    assert samples["changeover_log_position", ()] == 92
    assert samples["changeover_leader", (("controller", "c0"),)] == 1
    assert samples["changeover_job_epoch", (("job", "demo"),)] == 3
    assert samples["changeover_job_running", (("job", "demo"),)] == 0
    for motive in ("launch", "unplanned", "planned"):
        labels = (("job", "demo"), ("motive", motive), ("outcome", "finished"))
        assert samples["changeover_transitions_total", labels] == 1
    loss = (("job", "demo"), ("kind", "loss"))
    assert samples["changeover_incident_downtime_seconds_count", loss] == 1
    assert samples["changeover_incident_downtime_seconds_sum", loss] == pytest.approx(0.2427, 0.01)
    prepare = (("job", "demo"), ("phase", "prepare"))
    assert samples["changeover_incident_phase_seconds_count", prepare] == 2
    assert samples["changeover_store_quota_ratio", ()] == 0.5


def test_no_label_is_a_node(exposition: str) -> None:
    """A fleet of 8,192 must not become 8,192 series."""
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            assert not {"node", "slot", "incarnation", "host"} & set(sample.labels), sample


def test_names_follow_the_conventions(exposition: str) -> None:
    """One prefix, base units, `_total` for what only grows, and a sentence of help."""
    for family in text_string_to_metric_families(exposition):
        assert re.fullmatch(r"changeover_[a-z_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib)$", family.name), family.name
        if family.type == "counter":
            assert all(s.name.endswith(("_total", "_created")) for s in family.samples)


def families(exposition: str) -> dict[str, str]:
    """Names as they are queried, with their help."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family.documentation
    return found


def test_every_metric_is_documented_and_nothing_else(exposition: str) -> None:
    """docs/reference/metrics.md has a row for each, in the words of its help."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(changeover_\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))

    documented = {name: words.strip() for name, words in rows.items()}

    assert documented == families(exposition)


def test_the_dashboard_asks_for_metrics_that_exist(exposition: str) -> None:
    """Every query of the Grafana dashboard names a metric of ours, or a part of a histogram."""
    board = json.loads((ROOT / "docs" / "grafana" / "changeover.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    known = set(families(exposition))
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    known |= set(re.findall(r"`(changeover_\w+)`", text))

    asked = {name for query in queries for name in re.findall(r"changeover_\w+", query)}

    assert len(queries) >= 10
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= known


def test_panels_have_names_and_places_of_their_own() -> None:
    """No two panels overlap, and each says what it shows in which unit."""
    board = json.loads((ROOT / "docs" / "grafana" / "changeover.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert panel["title"]
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])

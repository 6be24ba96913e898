"""What people and programs read of a sweep of many nodes, and of what is usual."""

import json
import tomllib

import pytest

from controlplane.cli.baselines import as_toml
from controlplane.cli.sweep import _show
from controlplane.health.sweeping import SweepReport, Swept
from statemachine.baselines import Usual, learned
from statemachine.ids import NodeId
from statemachine.policy import policy_of

REPORT = SweepReport(
    fleet="lab",
    nodes=[
        Swept(
            node=NodeId("n1"),
            outcome="passed",
            reason="solo: gemm_gflops_best 50 against 51 usual: 1.02x worse, 1.05x allowed",
            sweep=1,
            partner="n2",
            took_s=4.25,
            rounds={"solo": {"gemm_gflops_best": 50.0}},
        ),
        Swept(
            node=NodeId("n3"),
            outcome="failed",
            reason="pair: slow; third: <slow>",
            sweep=2,
            partner="n2",
            third="n4",
            took_s=9.0,
            rounds={"pair": {"link_mbps_out_best": 100.0}},
        ),
        Swept(node=NodeId("n5")),
    ],
    left_out={NodeId("n6"): "it holds a slot: drain it first"},
    took_s=13.3,
)


def test_a_sweep_is_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each node with outcome, whom it was measured with, how long and why; who was left
    out, and the sums.
    """
    _show(REPORT)
    head, first, second, third, *rest = capsys.readouterr().out.splitlines()

    assert head.split() == ["node", "outcome", "partner", "s", "why"]
    assert first.split()[:5] == ["n1", "passed", "n2", "4.2", "solo:"]
    assert second.split()[:5] == ["n3", "failed", "n2,", "n4", "9.0"]
    assert third.split()[:3] == ["n5", "not", "over"]
    assert rest == [
        "n6 was not measured: it holds a slot: drain it first",
        "3 nodes in 13.3 s: 1 passed, 1 failed, 0 inconclusive",
    ]


def test_a_sweep_is_one_object_for_programs() -> None:
    """Outcomes are counted, rounds hold the numbers, and JSON takes it as it is."""
    found = json.loads(json.dumps(REPORT.as_values()))

    assert found["outcomes"] == {"passed": 1, "failed": 1, "inconclusive": 0}
    assert found["nodes"][0]["rounds"]["solo"]["gemm_gflops_best"] == 50.0
    assert found["left_out"] == {"n6": "it holds a slot: drain it first"}


def test_a_sweep_is_a_page_on_which_nothing_that_nodes_say_is_markup() -> None:
    """Every node, every number, the reasons escaped, and nothing from elsewhere."""
    html = REPORT.as_html()

    assert all(f"<td>{name}</td>" in html for name in ("n1", "n3", "n5"))
    assert "&lt;slow&gt;" in html
    assert "<slow>" not in html
    assert "link_mbps_out_best" in html
    assert "http" not in html.replace("http-equiv", "")


def test_what_a_fleet_learned_is_data_that_a_policy_ships() -> None:
    """`baselines --toml` of one fleet is read by the policy of the next, spread and all."""
    found = {"h100 80": learned({"gemm_gflops_best": 50.0 + n} for n in range(9))}
    knobs = tomllib.loads(as_toml(found))["policy"]
    shipped = policy_of(knobs).sweep.baselines["h100 80"]["gemm_gflops_best"]

    assert isinstance(shipped, Usual)
    assert (shipped.p50, shipped.count) == (54.0, 9)
    assert shipped.p10 == pytest.approx(50.8)

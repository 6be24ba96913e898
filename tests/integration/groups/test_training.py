"""`DistributedDataParallel` on a managed group: it wraps, it trains, it equals gloo."""

from pathlib import Path

from tests.integration.groups.conftest import Fleet


def test_ddp_on_a_managed_group_trains_as_on_gloo(fleet: Fleet, tmp_path: Path) -> None:
    """Losses fall and weights equal those that gloo gives, up to the order of additions."""
    nodes = ["n0", "n1", "n2", "n3"]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    answers = fleet.all(nodes, "train", "dp", str(tmp_path / "store"), 30)

    for answer in answers.values():
        assert answer["ours"][-1] < 0.7 * answer["ours"][0], answer
        assert answer["distance"] < 1e-4, answer
    assert len({answer["digest"] for answer in answers.values()}) == 1, "replicas must stay equal"

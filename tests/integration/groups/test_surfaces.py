"""Which of torch's layers work on a managed group, each shown by what it computes."""

from collections.abc import Iterator
from multiprocessing.context import ForkServerContext

import pytest

from tests.integration.groups.conftest import Fleet

NODES = ["n0", "n1", "n2"]


@pytest.fixture(scope="module")
def published(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """Three ranks whose group is torch's default group, and a fourth that stands by."""
    found = Fleet(forkserver)
    found.spawn(*NODES, "spare")
    found.launch("dp", NODES)
    found["spare"].tell("make", "dp", 3)
    found.all([*NODES, "spare"], "publish_as_default", "dp")
    yield found
    found.stop()


@pytest.mark.parametrize(
    "layer",
    [
        "ddp",
        "ddp_that_accumulates",
        "composable_replicate",
        "fsdp2",
        "fsdp2_replicated",
        "meshes",
        "dtensor",
        "batched_messages",
        "coalesced",
    ],
)
def test_torchs_layers_work_on_a_managed_group(published: Fleet, layer: str) -> None:
    """What a layer computes over the group is what one process computes that sees all batches."""
    answers = published.all(NODES, "surface", "dp", layer)

    for node, one in answers.items():
        assert one["found"] == pytest.approx(one["expected"], rel=1e-5, abs=1e-6), (node, layer)


def test_a_replicated_fsdp_model_trains_on_across_a_swap(published: Fleet) -> None:
    """The model keeps its mesh and its group; a member is replaced; the weights are bit for bit
    those of a run whose members stayed.
    """
    published.all(NODES, "begin", "dp", 3)
    undisturbed = published.all(NODES, "go_on", "dp")
    published.all(NODES, "begin", "dp", 3)
    after = ["n0", "spare", "n2"]
    plans = published.plans("dp", after, 2)
    published.each("prepare", plans)
    published.each("switch", plans)
    published["n1"].tell("detach", "dp")
    published["spare"].tell("begin", "dp", 0)
    published["spare"].tell("skip_to", 3)
    swapped = published.all(after, "go_on", "dp")

    assert {str(one["found"]) for one in swapped.values()} == {
        str(one["found"]) for one in undisturbed.values()
    }
    assert len({str(one["found"]) for one in swapped.values()}) == 1


def test_a_group_of_torchs_own_making_is_refused(published: Fleet) -> None:
    """`new_group` on top of a managed group would be a group that nobody looks after."""
    assert "Unknown backend" in published["n0"].tell("make_new_group")

"""Which of torch's layers work on a managed group, each shown by what it computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext

import pytest

from tests.integration.groups.conftest import Fleet

pytestmark = pytest.mark.timeout(180)

NODES = ["n0", "n1", "n2"]


@contextmanager
def publishing(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """Three ranks whose group is torch's default group, and a fourth that stands by."""
    found = Fleet(forkserver)
    try:
        found.spawn(*NODES, "spare")
        found.launch("dp", NODES)
        found["spare"].tell("make", "dp", 3)
        found.all([*NODES, "spare"], "publish_as_default", "dp")
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def published(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """A fleet for all tests that leave the group as it is."""
    with publishing(forkserver) as found:
        yield found


@pytest.fixture
def to_be_swapped(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """A fleet for a test that gives the group other members."""
    with publishing(forkserver) as found:
        yield found


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


def test_a_replicated_fsdp_model_trains_on_across_a_swap(to_be_swapped: Fleet) -> None:
    """The model keeps its mesh and its group; a member is replaced; the weights are bit for bit
    those of a run whose members stayed.
    """
    to_be_swapped.all(NODES, "begin", "dp", 3)
    undisturbed = to_be_swapped.all(NODES, "go_on", "dp")
    to_be_swapped.all(NODES, "begin", "dp", 3)
    after = ["n0", "spare", "n2"]
    plans = to_be_swapped.plans("dp", after, 2)
    to_be_swapped.each("prepare", plans)
    to_be_swapped.each("switch", plans)
    to_be_swapped["n1"].tell("detach", "dp")
    to_be_swapped["spare"].tell("begin", "dp", 0)
    to_be_swapped["spare"].tell("skip_to", 3)
    swapped = to_be_swapped.all(after, "go_on", "dp")

    assert {str(one["found"]) for one in swapped.values()} == {
        str(one["found"]) for one in undisturbed.values()
    }
    assert len({str(one["found"]) for one in swapped.values()}) == 1


def test_a_group_of_torchs_own_making_is_refused(published: Fleet) -> None:
    """`new_group` on top of a managed group would be a group that nobody looks after."""
    assert "Unknown backend" in published["n0"].tell("make_new_group")

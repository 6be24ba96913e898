"""The layout of a demo: what is read, what is refused, and what it allows."""

from typing import Any

import pytest

from controlplane.demo.options import BadDemo, DemoOptions, Faults, faults_for
from controlplane.demo.proof import Finish
from controlplane.demo.shape import BadShape, is_plain, model_arguments, peers_of, shape_of


@pytest.mark.parametrize(
    ("text", "axes", "peers", "faults"),
    [
        ("dp=4", {"dp": 4}, 3, Faults.BOTH),
        ("pp=3,dp=2", {"pp": 3, "dp": 2}, 1, Faults.KILL),
        ("pp=2, tp=2, dp=2", {"pp": 2, "tp": 2, "dp": 2}, 3, Faults.BOTH),
        ("pp=3,tp=2", {"pp": 3, "tp": 2}, 1, Faults.NONE),
    ],
)
def test_a_layout_says_what_a_demo_can_show(
    text: str, axes: dict[str, int], peers: int, faults: Faults
) -> None:
    """Axes keep their order; a kill needs a replica, a grey node three peers of its stage."""
    assert shape_of(text) == axes
    assert list(shape_of(text)) == list(axes)
    assert peers_of(axes) == peers
    assert faults_for(axes) is faults


@pytest.mark.parametrize("text", ["", "pp", "pp=0", "ep=2", "pp=2,pp=2", "pp=x", "tp=3", "pp=-1"])
def test_what_is_no_layout_is_refused_in_one_line(text: str) -> None:
    """The line names the flag and the value."""
    with pytest.raises(BadShape) as refused:
        shape_of(text)
    assert str(refused.value).startswith(f"--layout {text}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("axes", "knobs", "words"),
    [
        ({"pp": 6, "dp": 1}, {"faults": Faults.KILL}, "use dp=2 or more, or --faults none"),
        ({"pp": 3, "dp": 2}, {"faults": Faults.BOTH}, "peers of its stage; use --faults kill"),
    ],
)
def test_faults_that_a_layout_cannot_show_are_refused(
    axes: dict[str, int], knobs: dict[str, Any], words: str
) -> None:
    """The line says what the layout lacks for that fault."""
    with pytest.raises(BadDemo, match=words):
        DemoOptions(nodes=6, layout=tuple(axes.items()), **knobs)


def test_a_model_is_divisible_by_its_stages() -> None:
    """Every stage of the examples gets as many layers as the next."""
    assert model_arguments({"dp": 4}) == ()
    assert model_arguments({"pp": 3, "dp": 2}) == ("--layers", "6")
    assert model_arguments({"pp": 2, "dp": 2}) == ("--layers", "4")
    assert is_plain({"pp": 1, "dp": 3})
    assert not is_plain({"tp": 2, "dp": 3})


def test_the_weights_of_a_pipeline_have_one_digest() -> None:
    """Slots of one shard must be equal; the shards together are the model."""
    shards = ((0,), (0,), (1,), (1,))
    whole = Finish(9, ("a", "a", "b", "b"), (None, None, 1.0, 3.0), shards)
    assert len(whole.digest) == 64
    assert whole.loss == 2.0
    assert Finish(9, ("b", "b", "a", "a"), (None,) * 4, shards).digest != whole.digest
    assert Finish(9, ("a", "c", "b", "b"), (None,) * 4, shards).digest == ""
    assert Finish(9, ("a", "a", "", ""), (None,) * 4, shards).digest == ""

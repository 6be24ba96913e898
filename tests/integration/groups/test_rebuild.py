"""Gloo behind the same port: built in the background, swapped, and got out of."""

import signal
import time

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.integration.groups.conftest import Fleet
from worker.groups.installed import calls_of, probe

NODES = ["n0", "n1", "n2", "n3"]


@pytest.fixture
def store() -> TCPStore:
    """A store that lives outside every rank."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def launch(fleet: Fleet, store: TCPStore, nodes: list[str], size: int) -> None:
    """Create groups over gloo in `nodes` and put the first `size` in force."""
    fleet.spawn(*nodes)
    fleet.all(nodes, "make_rebuilt", "dp", size, store.port)
    plans = fleet.plans("dp", nodes[:size], 1)
    assert all("opened" in one for one in fleet.each("prepare", plans).values())
    fleet.each("switch", plans)


def test_a_rebuilt_group_computes_and_swaps_a_member(fleet: Fleet, store: TCPStore) -> None:
    """Collectives are right before and after a member was replaced."""
    launch(fleet, store, NODES, 3)
    for nodes, epoch in ((NODES[:3], 1), (["n0", "n3", "n2"], 2)):
        if epoch > 1:
            plans = fleet.plans("dp", nodes, epoch)
            fleet.each("prepare", plans)
            fleet.each("switch", plans)
        for operation, op in (("all_reduce", "avg"), ("broadcast", "sum"), ("all_gather", "sum")):
            answers = fleet.all(nodes, "collective", "dp", operation, "float32", 5000, op, 1)
            assert not any(one["broken"] for one in answers.values()), answers
            assert all(one["error"] < 1e-6 for one in answers.values()), answers
        pending = [fleet[node].start("vote", "dp", [5, 9 - at]) for at, node in enumerate(nodes)]
        assert [one(10)["outcome"] for one in pending] == [[5, 7]] * 3


def test_an_abort_frees_a_rank_from_gloo_whose_peer_is_frozen(
    fleet: Fleet, store: TCPStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half-closing the group's own connections frees every rank, where gloo would wait."""
    launch(fleet, store, NODES, 4)
    survivors = ["n0", "n2", "n3"]
    pending = {node: fleet[node].start("reduce_until_broken", "dp", 1_000_000) for node in NODES}
    time.sleep(0.3)  # some rounds; nothing can be observed from outside while gloo blocks
    fleet["n1"].send_signal(signal.SIGSTOP)
    told_at = fleet["n3"].tell("break_off", "dp", 1)
    for node in ("n0", "n2"):
        fleet[node].tell("break_off", "dp", 1)
    freed = {node: pending[node](10)["ended"] - told_at for node in survivors}
    with capsys.disabled():
        shown = " ".join(f"{node}={freed_s * 1000:.0f}" for node, freed_s in freed.items())
        print(f"\n  gloo freed after abort, ms: {shown}")

    assert min(freed.values()) > 0, "it was still going round when it was told"
    assert max(freed.values()) < 1.5, freed
    assert all(fleet[node].tell("look", "dp")["resets"] == [] for node in survivors)


def test_an_epoch_after_an_abort_is_right(fleet: Fleet, store: TCPStore) -> None:
    """A broken group is replaced by a whole one, and nothing of the old one shows."""
    launch(fleet, store, NODES[:3], 3)
    for epoch in (2, 3):
        fleet["n0"].tell("break_off", "dp", None)
        answers = fleet.all(NODES[:3], "collective", "dp", "all_reduce", "float32", 100)
        assert all(one["broken"] for one in answers.values())
        plans = fleet.plans("dp", NODES[:3], epoch)
        fleet.each("prepare", plans)
        fleet.each("switch", plans)
        answers = fleet.all(NODES[:3], "collective", "dp", "all_reduce", "float32", 50_000)
        assert all(one["error"] < 1e-6 for one in answers.values()), answers
        assert not any(one["broken"] for one in answers.values()), answers


def test_a_member_that_does_not_come_is_a_refusal(fleet: Fleet, store: TCPStore) -> None:
    """Building alone ends with the deadline, and names what failed."""
    fleet.spawn("n0", "n1")
    fleet.all(["n0", "n1"], "make_rebuilt", "dp", 2, store.port)
    plans = fleet.plans("dp", ["n0", "n1"], 1)
    refused = fleet["n0"].tell("prepare", plans["n0"], 0.5)

    assert "gloo" in refused["refused"]


def test_the_probe_says_what_is_installed() -> None:
    """On a CPU build there is gloo; what is said of NCCL follows from its version alone."""
    found = probe()

    assert found.gloo
    assert found.nccl_calls == calls_of(found.nccl_version)
    assert str(found).startswith(f"torch {found.torch_version}")


@pytest.mark.parametrize(
    ("version", "calls"),
    [
        ((), ()),
        ((2, 17, 1), ("abort",)),
        ((2, 27, 3), ("abort", "split", "shrink")),
        ((2, 30, 7), ("abort", "split", "shrink", "revoke", "grow", "suspend")),
    ],
)
def test_what_nccl_can_do_follows_from_its_version(
    version: tuple[int, ...], calls: tuple[str, ...]
) -> None:
    """Shrink, revoke and grow came one after the other."""
    assert calls_of(version) == calls


def test_what_a_change_costs_is_told_by_mechanism(fleet: Fleet, store: TCPStore) -> None:
    """Each mechanism's preparation, switch and abort are measured where they happen, once each."""
    launch(fleet, store, NODES[:2], 2)
    fleet.all(NODES[:2], "make", "own", 2)
    plans = fleet.plans("own", NODES[:2], 1)
    fleet.each("prepare", plans)
    fleet.each("switch", plans)
    fleet["n0"].tell("break_off", "own", None)
    gloo, delta = (fleet["n0"].tell("costs", name) for name in ("dp", "own"))

    assert set(gloo) == {"group_prepare_ms.rebuild-gloo", "group_switch_ms.rebuild-gloo"}
    names = ("group_prepare_ms", "group_switch_ms", "group_abort_ms")
    assert set(delta) == {f"{name}.delta" for name in names}
    assert all(len(took) == 1 and took[0] > 0 for took in (*gloo.values(), *delta.values()))
    assert fleet["n0"].tell("costs", "own") == {}, "told once"

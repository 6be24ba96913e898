"""What a group does when a member dies, freezes, or is told off: real signals, real processes."""

import os
import signal
import time

import pytest

from tests.integration.groups.conftest import Fleet

NODES = [f"n{index}" for index in range(5)]
LARGE = 16 * 1024 * 1024
MIDDLE = 2 * 1024 * 1024
"""Elements: 64 and 8 MiB of float32, many frames per all-reduce."""


def wait_until_moving(fleet: Fleet, node: str, name: str) -> None:
    """Return once `node` has moved bytes, so that a fault hits the middle of a collective."""
    ends = time.monotonic() + 20
    before = fleet[node].tell("look", name)["sent_bytes"]
    while fleet[node].tell("look", name)["sent_bytes"] < before + 30_000_000:
        assert time.monotonic() < ends, "nothing moves"
        time.sleep(0.005)


def await_resets(fleet: Fleet, nodes: list[str], name: str) -> dict[str, set[str]]:
    """Whom each node accuses, once every direct neighbour had time to notice."""
    ends = time.monotonic() + 0.6
    while True:
        found = {
            node: {reset[0] for reset in fleet[node].tell("look", name)["resets"]} for node in nodes
        }
        if time.monotonic() > ends:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize("size", [LARGE, 1000])
def test_a_kill_in_a_collective_frees_all_and_accuses_the_dead_alone(
    fleet: Fleet, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """After SIGKILL of one of five in mid-collective every survivor returns within a second."""
    fleet.spawn(*NODES)
    fleet.launch("dp", NODES)
    survivors = [node for node in NODES if node != "n2"]
    pending = {node: fleet[node].start("reduce_until_broken", "dp", size) for node in NODES}
    if size == LARGE:
        wait_until_moving(fleet, "n0", "dp")
    killed_at = fleet["n2"].send_signal(signal.SIGKILL)
    freed = {node: pending[node](10)["ended"] - killed_at for node in survivors}
    with capsys.disabled():
        shown = " ".join(f"{node}={freed_s * 1000:.0f}" for node, freed_s in freed.items())
        print(f"\n  freed after SIGKILL, ms: {shown} ({size} elements)")

    assert max(freed.values()) < 1.0, freed
    accused = await_resets(fleet, survivors, "dp")
    assert set().union(*accused.values()) == {"n2"}, accused
    indices = {fleet[node].tell("look", "dp")["index"] for node in survivors}
    assert indices == {2}, "every survivor must know whom the break is about"


def test_an_abort_frees_ranks_blocked_on_a_frozen_peer_and_accuses_nobody(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """One survivor's abort frees all others from a collective that a SIGSTOPped peer holds up."""
    nodes = NODES[:4]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    survivors = [node for node in nodes if node != "n1"]
    pending = {node: fleet[node].start("reduce_until_broken", "dp", MIDDLE) for node in nodes}
    wait_until_moving(fleet, "n0", "dp")
    fleet["n1"].send_signal(signal.SIGSTOP)
    time.sleep(0.3)  # let everybody run into the frozen one
    told_at = fleet["n3"].tell("break_off", "dp", 1)
    freed = {node: pending[node](10)["ended"] - told_at for node in survivors}
    with capsys.disabled():
        shown = " ".join(f"{node}={freed_s * 1000:.1f}" for node, freed_s in freed.items())
        print(f"\n  freed after abort, ms: {shown}")

    assert max(freed.values()) < 0.5, freed
    assert all(not accused for accused in await_resets(fleet, survivors, "dp").values())
    fleet["n1"].send_signal(signal.SIGCONT)
    assert pending["n1"](10)["broken"], "the thawed one hears the abort from its own sockets"


def test_a_rank_that_computes_notices_a_reset(fleet: Fleet) -> None:
    """A neighbour's death is reported while the training thread is nowhere near a collective."""
    nodes = NODES[:3]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    busy = fleet["n0"].start("compute", 1.5)
    killed_at = fleet["n1"].send_signal(signal.SIGKILL)
    noticed_at = None
    while noticed_at is None and time.monotonic() < killed_at + 1.4:
        resets = fleet["n0"].tell("look", "dp")["resets"]
        noticed_at = resets[0][3] if resets else None
        time.sleep(0.01)
    busy(10)

    assert noticed_at is not None
    assert noticed_at - killed_at < 1.0


def test_a_broken_group_answers_at_once_with_tensors_as_they_are(fleet: Fleet) -> None:
    """Poison: collectives succeed immediately, votes say that nothing is known."""
    nodes = NODES[:3]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    fleet["n0"].tell("break_off", "dp", None)
    ends = time.monotonic() + 5
    while not all(fleet[node].tell("look", "dp")["broken"] for node in nodes):
        assert time.monotonic() < ends, "the news did not spread"
    for operation in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
        answer = fleet["n1"].tell("collective", "dp", operation, "float32", 1000)
        assert answer["broken"]
        assert answer["ended"] - answer["began"] < 0.1, operation
    assert fleet["n2"].tell("vote", "dp", [1])["outcome"] is None


def test_a_rank_that_leaves_in_order_is_never_taken_for_dead(fleet: Fleet) -> None:
    """A goodbye, even followed by the end of the process, accuses nobody."""
    nodes = NODES[:4]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    fleet.all(nodes, "vote", "dp", [1])
    fleet["n3"].tell("close")
    fleet["n3"].send_signal(signal.SIGKILL)
    accused = await_resets(fleet, nodes[:3], "dp")

    assert not set().union(*accused.values()), accused


def test_a_rank_that_leaves_early_does_not_take_the_outcome_with_it(fleet: Fleet) -> None:
    """What a leaver sent before its goodbye still arrives at those who are behind."""
    nodes = NODES[:3]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    slow = fleet["n2"].start("compute", 0.4)
    sent = fleet["n0"].tell("collective", "dp", "broadcast", "float32", 50, "sum", 0)
    fleet["n0"].tell("close")
    received = fleet["n2"].start("collective", "dp", "broadcast", "float32", 50, "sum", 0)
    slow(5)

    assert not sent["broken"]
    assert received(10)["error"] == 0.0
    assert not fleet["n2"].tell("look", "dp")["broken"]


def test_an_epoch_after_an_abort_is_right_despite_what_the_last_one_left(fleet: Fleet) -> None:
    """What an aborted epoch left in sockets is dropped; the next epoch's results are right."""
    nodes = NODES[:4]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    before = {node: fleet[node].tell("look", "dp")["opened"] for node in nodes}
    for epoch in range(2, 12):
        pending = {node: fleet[node].start("reduce_until_broken", "dp", MIDDLE) for node in nodes}
        wait_until_moving(fleet, "n0", "dp")
        fleet[nodes[epoch % 4]].tell("break_off", "dp", None)
        assert all(one(10)["broken"] for one in pending.values())
        plans = fleet.plans("dp", nodes, epoch)
        prepared = fleet.each("prepare", plans)
        assert all(one["opened"] == 0 for one in prepared.values()), prepared
        fleet.each("switch", plans)
        for size in (1000, 300_001):
            answers = fleet.all(nodes, "collective", "dp", "all_reduce", "float32", size)
            assert all(one["error"] < 1e-6 for one in answers.values()), (epoch, size, answers)
            assert not any(one["broken"] for one in answers.values())
    after = {node: fleet[node].tell("look", "dp") for node in nodes}

    assert {node: one["opened"] for node, one in after.items()} == before
    assert all(one["closed"] == {} for one in after.values())
    assert all(one["resets"] == [] for one in after.values()), "an abort must never look like death"


def test_a_group_broken_at_an_epoch_some_have_not_reached_breaks_there_too(fleet: Fleet) -> None:
    """News about a newer epoch waits for the rank that is not there yet."""
    nodes = NODES[:3]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    plans = fleet.plans("dp", nodes, 2)
    fleet.each("prepare", plans)
    fleet["n0"].tell("switch", plans["n0"])
    fleet["n0"].tell("break_off", "dp", 2)
    time.sleep(0.2)  # the news arrives, and must not touch the epoch in force
    assert not fleet["n1"].tell("look", "dp")["broken"]
    fleet["n1"].tell("switch", plans["n1"])

    assert fleet["n1"].tell("look", "dp")["broken"]


@pytest.mark.parametrize(("operation", "size"), [("all_reduce", 10), ("broadcast", MIDDLE)])
def test_the_backstop_breaks_a_group_that_nobody_told(
    fleet: Fleet, operation: str, size: int
) -> None:
    """With a frozen peer and no agent, a collective ends after its timeout, naming the peer.

    Whether it waits for bytes, or for room in memory that it shares with the peer.
    """
    nodes = NODES[:2]
    fleet.spawn(*nodes)
    fleet.make("dp", nodes, 2, op_timeout_s=0.5)
    plans = fleet.plans("dp", nodes, 1)
    fleet.each("prepare", plans)
    fleet.each("switch", plans)
    fleet["n1"].send_signal(signal.SIGSTOP)
    answer = fleet["n0"].tell("collective", "dp", operation, "float32", size)
    seen = fleet["n0"].tell("look", "dp")

    assert answer["broken"]
    assert 0.4 < answer["ended"] - answer["began"] < 3.0
    assert (seen["kind"], seen["index"]) == ("timed out", 1)
    assert seen["resets"] == []


def test_a_child_of_a_rank_does_not_hide_its_death(fleet: Fleet) -> None:
    """A forked child, such as a data loader, does not keep its parent's links alive."""
    nodes = NODES[:2]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    child = fleet["n1"].tell("fork_sleeper")
    fleet["n1"].send_signal(signal.SIGKILL)
    try:
        assert await_resets(fleet, ["n0"], "dp") == {"n0": {"n1"}}
    finally:
        os.kill(child, signal.SIGKILL)

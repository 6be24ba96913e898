"""What a change of members costs and keeps: links, bits, and who may join."""

import signal
import time
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.integration.groups.conftest import Fleet
from worker.groups.view import neighbours_of


def swap(fleet: Fleet, name: str, nodes: list[str], epoch: int) -> dict[str, Any]:
    """Prepare `nodes` at `epoch` everywhere and switch; returns what preparing gave."""
    plans = fleet.plans(name, nodes, epoch)
    prepared = fleet.each("prepare", plans)
    assert set(fleet.each("switch", plans).values()) == {"switched"}
    return prepared


@pytest.mark.parametrize("size", [4, 8])
def test_only_the_joiner_and_the_leavers_neighbours_open_links(fleet: Fleet, size: int) -> None:
    """A swap opens at most six links at the joiner and one at each neighbour, at any size."""
    nodes = [f"n{index}" for index in range(size)]
    fleet.spawn(*nodes, "spare")
    fleet.launch("dp", nodes)
    fleet["spare"].tell("make", "dp", size)
    out = 2
    after = [*nodes[:out], "spare", *nodes[out + 1 :]]
    prepared = swap(fleet, "dp", after, 2)
    near = {nodes[index] for index in neighbours_of(out, size)}
    expected = {node: int(node in near) for node in after} | {"spare": len(near)}

    assert {node: one["opened"] for node, one in prepared.items()} == expected
    assert len(near) <= 6
    answers = fleet.all(after, "collective", "dp", "all_reduce", "float32", 100_000)
    assert not any(one["broken"] for one in answers.values())
    looks = {node: fleet[node].tell("look", "dp") for node in after}
    closed = {node: looks[node]["closed"].get(2, 0) for node in after}
    assert closed == {node: int(node in near) for node in after}
    assert all(one["resets"] == [] for one in looks.values())


def test_a_stayer_that_is_no_neighbour_opens_no_socket_and_takes_no_memory(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's own list: four sockets at most per neighbour, none elsewhere, and no buffers.

    The group has just reduced 64 MiB; what a full rebuild takes in the same processes is printed.
    """
    nodes = [f"n{index}" for index in range(8)]
    fleet.spawn(*nodes, "spare")
    fleet.launch("dp", nodes)
    fleet["spare"].tell("make", "dp", 8)
    fleet.all(nodes, "collective", "dp", "all_reduce", "float32", 2 * 1024 * 1024)
    out = 2
    after = [*nodes[:out], "spare", *nodes[out + 1 :]]
    stayers = [node for node in after if node != "spare"]
    near = {nodes[index] for index in neighbours_of(out, 8)}
    plans = fleet.plans("dp", after, 2)
    before = {node: fleet[node].tell("look", "dp") for node in stayers}
    fleet.each("prepare", plans)
    prepared = {node: fleet[node].tell("look", "dp") for node in stayers}
    fleet.each("switch", plans)
    opened = {n: len(prepared[n]["sockets"] - before[n]["sockets"]) for n in stayers}
    grown = {n: prepared[n]["resident_kib"] - before[n]["resident_kib"] for n in stayers}
    rebuilt = rebuild_beside(fleet, stayers)
    with capsys.disabled():
        print(
            f"\n  preparing took of a stayer at most {max(grown.values())} KiB; gloo {rebuilt} KiB"
        )

    assert opened == {node: 2 * int(node in near) for node in stayers}
    assert max(grown.values()) <= 512, grown


def rebuild_beside(fleet: Fleet, nodes: list[str]) -> int:
    """Resident memory that building a gloo group takes of a member, at most, in KiB."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fleet.all(nodes, "make_rebuilt", "again", len(nodes), store.port)
    before = {node: fleet[node].tell("look", "dp")["resident_kib"] for node in nodes}
    fleet.each("prepare", fleet.plans("again", nodes, 1))
    after = {node: fleet[node].tell("look", "dp")["resident_kib"] for node in nodes}
    return max(int(after[node] - before[node]) for node in nodes)


def test_a_ghost_gets_no_link(fleet: Fleet) -> None:
    """Who was replaced and does not know it is refused by those who stayed, and disturbs nobody."""
    nodes = ["n0", "n1", "n2"]
    fleet.spawn(*nodes, "n3")
    fleet.launch("dp", nodes)
    fleet["n3"].tell("make", "dp", 3)
    swap(fleet, "dp", ["n0", "n3", "n2"], 2)
    fleet["n1"].tell("detach", "dp")
    for transition in (1, 2):  # of its own time, and of the swap that it slept through
        believed = fleet.plans("dp", nodes, 3, transition)
        refused = fleet["n1"].tell("prepare", believed["n1"], 1.0)
        assert "not a member" in refused["refused"], refused
        assert refused["peer"] == "n2"
    answers = fleet.all(["n0", "n3", "n2"], "collective", "dp", "all_reduce", "float32", 100_000)

    assert all(one["error"] < 1e-6 for one in answers.values()), answers
    refused = fleet["n2"].tell("look", "dp")["refused"]
    assert set(refused) == {"not_a_member"}, refused
    assert refused["not_a_member"] >= 2, "each time at least one of the link's two connections"


def test_a_link_that_came_too_early_and_is_nobodys_is_retired(fleet: Fleet) -> None:
    """Of a transition that was not heard of yet anybody may knock; the next switch clears it up."""
    fleet.spawn("n0", "n1", "n2", "ghost")
    fleet.launch("dp", ["n0", "n1", "n2"])
    fleet["ghost"].tell("make", "dp", 2)
    strange = fleet.plans("dp", ["ghost", "n2"], 9)
    before = fleet["n2"].tell("look", "dp")["sockets"]
    fleet["ghost"].tell("prepare", strange["ghost"], 2.0)
    plans = fleet.plans("dp", ["n0", "n1", "n2"], 2)
    fleet.each("prepare", plans)
    fleet.each("switch", plans)
    ends = time.monotonic() + 5
    while fleet["n2"].tell("look", "dp")["sockets"] - before:
        assert time.monotonic() < ends, "the stranger's link is still there"
        time.sleep(0.02)

    assert fleet["n2"].tell("look", "dp")["resets"] == []


def test_results_do_not_depend_on_how_members_are_linked(fleet: Fleet) -> None:
    """Through the machine or the network, at any size, the same inputs give the same bits."""
    found: dict[bool, list[list[str]]] = {True: [], False: []}
    for locally, digests in found.items():
        nodes = [f"{'near' if locally else 'far'}{index}" for index in range(3)]
        fleet.spawn(*nodes, locally=locally)
        fleet.launch("dp", nodes)
        for operation in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "messages"):
            for size in (100, 30_000, 600_001):
                answers = fleet.all(nodes, "collective", "dp", operation, "float32", size)
                assert not any(one["broken"] for one in answers.values()), (operation, size)
                assert all(one["error"] < 1e-6 for one in answers.values()), (operation, size)
                digests.append(sorted({one["digest"] for one in answers.values()}))

    assert found[True] == found[False], "linked in another way, other bits"


def test_results_do_not_depend_on_who_sits_where(fleet: Fleet) -> None:
    """After two swaps and a change of places, the same inputs give the same bits."""
    nodes = ["n0", "n1", "n2", "n3"]
    fleet.spawn(*nodes, "n4")
    fleet.launch("dp", nodes)
    fleet["n4"].tell("make", "dp", 4)

    def digests(members: list[str]) -> set[str]:
        found = set()
        for size in (2000, 200_003):
            answers = fleet.all(members, "collective", "dp", "all_reduce", "float32", size)
            assert not any(one["broken"] for one in answers.values()), answers
            found |= {one["digest"] for one in answers.values()}
        return found

    before = digests(nodes)
    assert len(before) == 2
    second = ["n0", "n4", "n2", "n3"]
    swap(fleet, "dp", second, 2)
    assert digests(second) == before
    third = ["n3", "n2", "n4", "n0"]
    swap(fleet, "dp", third, 3)

    assert digests(third) == before


def test_preparing_does_not_disturb_the_running_group(fleet: Fleet) -> None:
    """Collectives go on while the next plan is prepared, and after its preparation was refused."""
    nodes = ["n0", "n1", "n2"]
    fleet.spawn(*nodes, "n3")
    fleet.launch("dp", nodes)
    fleet["n3"].tell("make", "dp", 3)
    fleet["n3"].send_signal(signal.SIGSTOP)
    plans = fleet.plans("dp", ["n0", "n1", "n3"], 2)
    pending = fleet["n0"].start("prepare", plans["n0"], 0.5)
    refused = pending(10)
    fleet["n3"].send_signal(signal.SIGCONT)

    assert "refused" in refused, refused
    assert refused["peer"] == "n3"
    answers = fleet.all(nodes, "collective", "dp", "all_reduce", "float32", 100_000)
    assert not any(one["broken"] for one in answers.values())


def test_a_plan_with_a_dead_member_is_refused_at_once(fleet: Fleet) -> None:
    """Nobody listens there any more: the refusal does not wait for the deadline."""
    nodes = ["n0", "n1"]
    fleet.spawn(*nodes)
    fleet.make("dp", nodes, 2)
    plans = fleet.plans("dp", nodes, 1)
    fleet["n1"].send_signal(signal.SIGKILL)
    fleet["n1"].process.join(5)
    began = time.monotonic()
    refused = fleet["n0"].tell("prepare", plans["n0"], 5.0)

    assert refused["peer"] == "n1"
    assert time.monotonic() - began < 2.0


def test_switching_to_what_was_not_prepared_is_refused(fleet: Fleet) -> None:
    """A switch needs its own plan's preparation."""
    nodes = ["n0", "n1"]
    fleet.spawn(*nodes)
    fleet.launch("dp", nodes)
    unknown = fleet.plans("dp", nodes, 5)

    assert fleet["n0"].tell("switch", unknown["n0"]) == "not prepared"


def test_a_wrong_secret_is_refused_and_counted(fleet: Fleet) -> None:
    """Whoever does not know the fleet's secret gets no link."""
    fleet.spawn("n1")
    fleet.spawn("n0", secret=b"another secret, also long enough")
    fleet.make("dp", ["n0", "n1"], 2)
    plans = fleet.plans("dp", ["n0", "n1"], 1)
    answer = fleet["n0"].tell("prepare", plans["n0"], 2.0)

    assert "does not accept our secret" in answer["refused"]
    refused = fleet["n1"].tell("look", "dp")["refused"]
    assert set(refused) == {"bad_proof"}, refused


def test_a_hello_for_another_incarnation_is_refused_and_counted(fleet: Fleet) -> None:
    """A restarted node does not answer for its former self."""
    fleet.spawn("n0", "n1")
    fleet.make("dp", ["n0", "n1"], 2)
    fleet["n1"].incarnation = 9
    plans = fleet.plans("dp", ["n0", "n1"], 1)
    answer = fleet["n0"].tell("prepare", plans["n0"], 2.0)

    assert "wrong incarnation" in answer["refused"]
    refused = fleet["n1"].tell("look", "dp")["refused"]
    assert set(refused) == {"wrong_incarnation"}, refused


def test_a_leaver_can_take_another_slot_later(fleet: Fleet) -> None:
    """A node that gave its slot up and comes back in another place is as good as new."""
    nodes = ["n0", "n1", "n2"]
    fleet.spawn(*nodes, "n3")
    fleet.launch("dp", nodes)
    fleet["n3"].tell("make", "dp", 3)
    swap(fleet, "dp", ["n3", "n1", "n2"], 2)
    fleet["n0"].tell("detach", "dp")
    alone = fleet["n0"].tell("vote", "dp", [5])
    swap(fleet, "dp", ["n3", "n1", "n0"], 3)
    answers = fleet.all(["n3", "n1", "n0"], "collective", "dp", "all_reduce", "float32", 100_000)

    assert alone["outcome"] == [5]
    assert all(one["error"] < 1e-6 for one in answers.values()), answers
    assert fleet["n1"].tell("look", "dp")["resets"] == []


def test_many_swaps_leave_no_descriptors_behind(fleet: Fleet) -> None:
    """Twenty swaps later the members hold as many descriptors as after the first."""
    fleet.spawn("n0", "n1", "a", "b")
    fleet.all(["n0", "n1", "a", "b"], "make", "dp", 3)
    counts: list[int] = []
    for epoch in range(1, 21):
        joiner, leaver = ("a", "b") if epoch % 2 else ("b", "a")
        swap(fleet, "dp", ["n0", joiner, "n1"], epoch)
        fleet[leaver].tell("detach", "dp")
        fleet.all(["n0", joiner, "n1"], "vote", "dp", [1])
        ends = time.monotonic() + 5
        while epoch > 2 and fleet["n0"].tell("look", "dp")["descriptors"] > counts[1]:
            assert time.monotonic() < ends, f"descriptors left after epoch {epoch}: {counts}"
        if epoch <= 2:
            time.sleep(0.3)
        counts.append(fleet["n0"].tell("look", "dp")["descriptors"])

    assert counts[-1] <= counts[1], counts

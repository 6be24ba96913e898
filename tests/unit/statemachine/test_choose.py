"""Who takes a slot: warm and fresh for its role, no blocker, near, least used, by id."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from msgspec.structs import replace
from rpds import HashTrieSet

from statemachine.choose import choose_joiner
from statemachine.evolve import fold
from statemachine.ids import NodeId, Slot
from statemachine.lifecycle import Warmth
from statemachine.state import FleetState, Node
from tests.properties.fleet import JOB, begun

Worsen = Callable[[Node], Node]
STANDBYS = ("n3", "n4", "n5")
HOLDER = NodeId("n0")
HERE = (("fabric", "a"),)


def cold(node: Node) -> Node:
    """It has not rehearsed."""
    return replace(node, rehearsals=())


def stale(node: Node) -> Node:
    """It has rehearsed other code than its process runs."""
    return replace(node, rehearsals=tuple(replace(r, digest="old") for r in node.rehearsals))


def rehearsing(node: Node) -> Node:
    """It is at it."""
    return replace(
        node, rehearsals=tuple(replace(r, warmth=Warmth.WARMING) for r in node.rehearsals)
    )


def blocker(node: Node) -> Node:
    """It blocked a transition."""
    return replace(node, blocked=1)


def far(node: Node) -> Node:
    """It sits in another part of the network than who held the slot."""
    return replace(node, labels=(("fabric", "b"),))


def used(node: Node) -> Node:
    """It was promoted before."""
    return replace(node, promotions=node.promotions + 1)


ORDER: tuple[Worsen, ...] = (cold, blocker, far, used)
"""What counts more comes first; what is equal in all is decided by the id."""


def fleet(**changes: Worsen) -> FleetState:
    """Three warm standbys that are equal but for their ids, and for these changes."""
    state = begun(lambda choices: choices[0]).state
    nodes = state.nodes.insert(HOLDER, replace(state.nodes[HOLDER], labels=HERE))
    for name in map(NodeId, STANDBYS):
        node = replace(nodes[name], labels=HERE, promotions=0, blocked=0)
        if name in changes:
            node = changes[name](node)
        nodes = nodes.insert(name, node)
    assert sorted(state.pool) == list(STANDBYS)
    return replace(state, nodes=nodes)


def chosen(state: FleetState, taken: tuple[str, ...] = ("n5",)) -> str:
    """Who of them takes slot 0."""
    choice = choose_joiner(state, state.jobs[JOB], Slot(0), set(map(NodeId, taken)), cold=True)
    assert choice.node is not None
    others = {line.partition(":")[0] for line in choice.considered}
    assert others == set(STANDBYS) - {choice.node.node}, "each that was passed over is named"
    return choice.node.node


def test_where_all_else_is_equal_the_id_decides() -> None:
    """The lowest of those that are free."""
    assert chosen(fleet(), ()) == "n3"
    assert chosen(fleet(), ("n3", "n5")) == "n4"


@pytest.mark.parametrize("worse", [*ORDER, stale, rehearsing], ids=lambda each: each.__name__)
def test_each_of_them_counts_more_than_the_id(worse: Worsen) -> None:
    """Whoever is worse in one thing is passed over, whatever it is called."""
    assert chosen(fleet(n3=worse)) == "n4"


@pytest.mark.parametrize(
    ("more", "less"), list(combinations(ORDER, 2)), ids=lambda each: each.__name__
)
def test_what_comes_first_counts_more(more: Worsen, less: Worsen) -> None:
    """Of two nodes, each worse in one thing, the one goes that is worse in what counts less."""
    assert chosen(fleet(n3=more, n4=less)) == "n4"
    assert chosen(fleet(n3=less, n4=more)) == "n3"


@pytest.mark.parametrize(
    "change",
    [
        lambda node: replace(node, quarantine="slow"),
        lambda node: replace(node, retired="third time"),
        lambda node: replace(node, wanted_out="drain"),
        lambda node: replace(node, sweep_wanted="ann"),
        lambda node: replace(node, worker=None),
    ],
    ids=["quarantine", "retired", "wanted out", "to be swept", "no process"],
)
def test_who_is_kept_out_is_not_considered(change: Worsen) -> None:
    """However warm, near and little used: such a node takes no slot, even if nobody else can."""
    state = fleet(n3=change)
    assert chosen(state) == "n4"
    choice = choose_joiner(state, state.jobs[JOB], Slot(0), {NodeId("n4"), NodeId("n5")}, cold=True)
    assert choice.node is None


def test_the_order_of_arrival_does_not_matter() -> None:
    """The same nodes, put into the pool in another order, give the same choice and words."""
    state = fleet(n3=used, n4=far)
    turned = replace(state, pool=HashTrieSet(map(NodeId, reversed(STANDBYS))))
    choices = [
        choose_joiner(each, each.jobs[JOB], Slot(0), set(), cold=True) for each in (state, turned)
    ]

    assert choices[0] == choices[1]
    assert "promoted 0 times" in choices[0].reason


def test_a_promotion_is_counted() -> None:
    """Who took a slot was used once more; a log says so again whenever it is folded."""
    told = begun(lambda choices: choices[0])
    holder = told.state.jobs[JOB].holders[Slot(0)]
    before = told.state.nodes[holder].promotions

    assert before == 1
    assert fold(FleetState(), told.log).nodes[holder].promotions == before

"""One turn of the sequencer: what enters the log, in which order, and what becomes true with it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.eventlog import BATCH_OPS_MAX, InboxItem
from controlplane.projection import everything
from controlplane.turn import BATCH_BYTES_MAX, Ledger, Turn, counters_of, plan_turn
from statemachine import events as e
from statemachine.codec import decode_recorded, encode_fact
from statemachine.evolve import fold
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, SweepId, TransitionId
from statemachine.lifecycle import NodeState
from statemachine.state import FleetState
from statemachine.topology import decode_desired, decode_orders

NOW_MS = 1_000_000
JOB = JobId("job")


def item(
    event: e.AnyEvent, writer: str, counter: int, *, incarnation: int = 1, revision: int = 0
) -> InboxItem:
    """A fact that waits in the inbox."""
    fact = e.Fact(
        event=event,
        at_ms=NOW_MS - 5,
        writer=writer,
        incarnation=Incarnation(incarnation),
        counter=counter,
    )
    place = revision or counter
    return InboxItem(writer, Incarnation(incarnation), counter, place, encode_fact(fact))


def joined(node: str, incarnation: int = 1) -> e.NodeJoined:
    """A node joins."""
    return e.NodeJoined(node=NodeId(node), incarnation=Incarnation(incarnation), host="h")


def ready(node: str, incarnation: int = 1) -> e.WorkerReady:
    """Its training process is ready."""
    return e.WorkerReady(
        node=NodeId(node),
        incarnation=Incarnation(incarnation),
        job=JOB,
        host="127.0.0.1",
        port=1,
        transfer_port=2,
        pid=3,
        digest="d",
    )


def exited(node: str, incarnation: int = 1) -> e.WorkerExited:
    """Its training process ended."""
    return e.WorkerExited(
        node=NodeId(node), incarnation=Incarnation(incarnation), job=JOB, reason="signal 9"
    )


def turn(ledger: Ledger, *facts: InboxItem, own: tuple[e.AnyEvent, ...] = ()) -> Turn:
    """Plan a turn at the usual time."""
    return plan_turn(ledger, facts, own, now_ms=NOW_MS, writer="c0")


def entries(planned: Turn) -> list[e.Recorded]:
    """The entries of all appends, decoded."""
    return [decode_recorded(raw) for batch in planned.batches for raw in batch.entries]


def kinds(planned: Turn) -> list[str]:
    """The names of the events that a turn appends."""
    return [type(entry.event).__name__ for entry in entries(planned)]


def test_nothing_to_do_appends_nothing() -> None:
    """An idle turn makes no transaction."""
    assert turn(Ledger()).batches == ()


def test_positions_are_dense_and_continue_those_of_the_ledger() -> None:
    """Facts and own events get the next positions, facts first, in order of arrival."""
    first = turn(Ledger(), item(joined("n1"), "n1", 1), item(joined("n0"), "n0", 1, revision=2))
    own = e.LeaderElected(controller="c0", term=7)
    second = turn(first.ledger, item(ready("n1"), "n1", 2), own=(own,))
    assert [entry.position for entry in entries(first) + entries(second)] == [1, 2, 3, 4]
    assert [entry.writer for entry in entries(first)] == ["n1", "n0"]
    assert kinds(second) == ["WorkerReady", "LeaderElected"]
    assert second.batches[0].after == 2


def test_the_ledger_after_a_turn_is_the_fold_of_what_it_appends() -> None:
    """What the controller believes is what a reader of the log will believe."""
    planned = turn(Ledger(), item(joined("n0"), "n0", 1), item(ready("n0"), "n0", 2))
    assert fold(FleetState(), entries(planned)) == planned.ledger.state
    assert planned.recorded == tuple(entries(planned))


def test_a_fact_enters_with_the_bytes_of_its_writer() -> None:
    """A field that only a newer release knows survives sequencing."""
    known = item(joined("n0"), "n0", 1)
    newer = known.raw.replace(b'"host":"h"', b'"host":"h","rack":"r7"')
    planned = turn(Ledger(), InboxItem("n0", Incarnation(1), 1, 1, newer))
    assert b'"rack":"r7"' in planned.batches[0].entries[0]


def test_time_never_decreases_along_the_log() -> None:
    """A controller whose clock is behind its predecessor's stamps with the last time."""
    ahead = Ledger(state=FleetState(at_ms=NOW_MS + 60_000))
    planned = turn(ahead, item(joined("n0"), "n0", 1))
    assert entries(planned)[0].at_ms == NOW_MS + 60_000


def test_a_loss_is_fenced_in_the_append_that_records_it() -> None:
    """`NodeLost` and the deletion of the incarnation's key are one transaction."""
    ledger = turn(Ledger(), item(joined("n0"), "n0", 1)).ledger
    planned = turn(ledger, item(exited("n0"), "n0", 2))
    assert kinds(planned) == ["WorkerExited", "NodeLost"]
    (batch,) = planned.batches
    assert batch.fenced == ((NodeId("n0"), Incarnation(1)),)


def test_a_gap_holds_back_what_its_writer_stated_later_and_nobody_else() -> None:
    """Fact 3 waits for fact 2; the other writer's facts enter; fact 2 lets both in, in order."""
    ledger = turn(Ledger(), item(joined("n0"), "n0", 1)).ledger
    late = item(exited("n0"), "n0", 3)
    planned = turn(ledger, late, item(joined("n1"), "n1", 1))
    assert kinds(planned) == ["NodeJoined"]
    assert [(each.item, each.reason) for each in planned.held_back] == [(late, "fact 2 is missing")]
    healed = turn(planned.ledger, item(ready("n0"), "n0", 2), late)
    assert kinds(healed)[:2] == ["WorkerReady", "WorkerExited"]
    assert healed.held_back == ()


def test_a_gap_of_an_incarnation_that_is_over_holds_back_nothing() -> None:
    """Once a newer incarnation spoke nobody can fill the gap any more."""
    ledger = turn(Ledger(), item(joined("n0", 2), "n0", 1, incarnation=2)).ledger
    planned = turn(ledger, item(exited("n0"), "n0", 9))
    assert kinds(planned) == ["WorkerExited"]
    assert planned.held_back == ()


def test_a_new_incarnation_counts_from_one() -> None:
    """The counter belongs to the incarnation, not to the machine."""
    ledger = turn(Ledger(), item(joined("n0"), "n0", 1)).ledger
    second = turn(ledger, item(joined("n0", 2), "n0", 2, incarnation=2))
    assert [each.reason for each in second.held_back] == ["fact 1 is missing"]
    third = turn(ledger, item(joined("n0", 2), "n0", 1, incarnation=2))
    assert third.held_back == ()


def test_a_corrupt_fact_is_set_aside_and_its_counter_counts() -> None:
    """It stays in the inbox; what its writer stated afterwards is not held back."""
    corrupt = InboxItem("n0", Incarnation(1), 1, 1, b"\xff not json")
    planned = turn(Ledger(), corrupt, item(joined("n0"), "n0", 2))
    assert [each.item for each in planned.set_aside] == [corrupt]
    assert "does not decode" in planned.set_aside[0].reason
    assert kinds(planned) == ["NodeJoined"]
    assert [consumed.counter for consumed in planned.batches[0].consumed] == [2]


@pytest.mark.parametrize(
    ("writer", "event", "why"),
    [
        ("n1", joined("n0"), "speaks for n0/1"),
        ("n1", e.NodeLost(node=NodeId("n0"), incarnation=Incarnation(1), reason="x"), "node's"),
        ("operator.eve", joined("n0"), "operator's"),
        ("operator.eve", e.JobFinished(job=JOB, step=1), "operator's"),
    ],
)
def test_a_fact_that_is_not_its_writers_to_state_stays_out(
    writer: str, event: e.AnyEvent, why: str
) -> None:
    """Nobody speaks for another node, and only the controller decides."""
    planned = turn(Ledger(), item(event, writer, 1))
    assert planned.batches == ()
    assert why in planned.set_aside[0].reason


def test_a_partner_may_state_the_round_it_measured() -> None:
    """The reference round of a sweep is about its subject, and comes from the partner."""
    event = e.SweepRoundFinished(
        sweep=SweepId(1),
        node=NodeId("n0"),
        incarnation=Incarnation(1),
        round="reference",
        partner=NodeId("n1"),
    )
    assert kinds(turn(Ledger(), item(event, "n1", 1))) == ["SweepRoundFinished"]
    assert turn(Ledger(), item(event, "n2", 1)).batches == ()


def test_an_event_of_a_newer_release_enters_the_log() -> None:
    """An unknown tag is kept for whoever can read it."""
    raw = encode_fact(
        e.Fact(
            event=e.UnknownEvent(tag="Teleported", raw=b'{"type":"Teleported","to":"moon"}'),
            at_ms=1,
            writer="n0",
            incarnation=Incarnation(1),
            counter=1,
        )
    )
    planned = turn(Ledger(), InboxItem("n0", Incarnation(1), 1, 1, raw))
    assert b'"Teleported","to":"moon"' in planned.batches[0].entries[0]


def test_own_evidence_about_an_incarnation_that_is_over_is_dropped() -> None:
    """A lease that ended after its node left in good order is no news."""
    event = e.LeaseExpired(node=NodeId("n0"), incarnation=Incarnation(1))
    assert turn(Ledger(), own=(event,)).batches == ()


def test_only_keys_that_say_something_new_are_written() -> None:
    """A fact without consequence for anybody writes no projection."""
    first = turn(Ledger(), item(joined("n0"), "n0", 1))
    ((node, value),) = first.batches[-1].orders
    assert (node, decode_orders(value).state) == ("n0", "joining")
    late_ack = e.TransitionApplied(
        job=JOB,
        transition=TransitionId(9),
        epoch=Epoch(9),
        node=NodeId("n0"),
        incarnation=Incarnation(1),
        step=1,
    )
    second = turn(first.ledger, item(late_ack, "n0", 2))
    assert [(batch.desired, batch.orders) for batch in second.batches] == [((), ())]


def test_a_takeover_compares_every_key_and_writes_those_that_differ() -> None:
    """Keys that stand as the fold asks are left alone; the others are written again."""
    state = turn(Ledger(), item(joined("n0"), "n0", 1), item(joined("n1"), "n1", 1)).ledger.state
    planned = plan_turn(
        Ledger(state=state), (), (), now_ms=NOW_MS, writer="c1", also_project=everything(state)
    )
    assert [node for batch in planned.batches for node, _ in batch.orders] == ["n0", "n1"]
    assert entries(planned) == []
    again = plan_turn(
        planned.ledger, (), (), now_ms=NOW_MS, writer="c1", also_project=everything(state)
    )
    assert again.batches == ()


def test_the_key_of_a_job_follows_its_declaration() -> None:
    """Workers see a declared job in the same transaction as its event."""
    event = e.JobDeclared(job=JOB, axes={"dp": 2})
    planned = turn(Ledger(), item(event, "operator.op", 1))
    ((job, value),) = planned.batches[-1].desired
    assert (job, decode_desired(value).epoch) == (JOB, 0)


def test_every_append_keeps_to_the_limits_of_the_store() -> None:
    """A hundred nodes lost at once are cut into appends, each fenced with its own entries."""
    nodes = [f"n{number:03d}" for number in range(100)]
    ledger = Ledger()
    for node in nodes:
        ledger = turn(ledger, item(joined(node), node, 1)).ledger
    lost = tuple(e.LeaseExpired(node=NodeId(node), incarnation=Incarnation(1)) for node in nodes)
    planned = turn(ledger, own=lost)
    assert len(planned.batches) > 2
    assert max(batch.ops for batch in planned.batches) <= BATCH_OPS_MAX
    for batch in planned.batches:
        told = {
            (recorded.event.node, recorded.event.incarnation)
            for raw in batch.entries
            if isinstance((recorded := decode_recorded(raw)).event, e.NodeLost)
        }
        assert set(batch.fenced) == told
    assert [b.after for b in planned.batches][1] == len(planned.batches[0].entries) + 100


def test_any_prefix_of_a_turn_leads_to_the_same_losses() -> None:
    """A controller that dies between two appends leaves a log from which the rest follows."""
    ledger = Ledger()
    for number in range(60):
        ledger = turn(ledger, item(joined(f"n{number}"), f"n{number}", 1)).ledger
    lost = tuple(
        e.LeaseExpired(node=NodeId(f"n{number}"), incarnation=Incarnation(1))
        for number in range(60)
    )
    planned = turn(ledger, own=lost)
    assert len(planned.batches) > 1, "the turn must be cut for this to say anything"
    for cut in range(1, len(planned.batches)):
        prefix = [decode_recorded(raw) for b in planned.batches[:cut] for raw in b.entries]
        state = fold(ledger.state, prefix)
        rest = turn(Ledger(state=state, counters=ledger.counters))
        fate = {node.state for node in rest.ledger.state.nodes.values()}
        assert fate == {NodeState.LOST}, f"cut after append {cut}"


def test_large_facts_are_cut_by_bytes() -> None:
    """An append stays below the store's limit in bytes, too."""
    facts = [
        item(
            e.WorkerExited(
                node=NodeId("n0"), incarnation=Incarnation(1), job=JOB, reason="x" * 60_000
            ),
            "n0",
            c,
        )
        for c in range(1, 31)
    ]
    planned = turn(Ledger(), *facts)
    assert planned.left, "there is no room for all of them in one turn"
    assert all(sum(map(len, batch.entries)) <= BATCH_BYTES_MAX for batch in planned.batches)
    assert [each.counter for each in planned.left] == list(range(31 - len(planned.left), 31))


def test_facts_in_a_row_leave_the_inbox_in_one_go() -> None:
    """A writer that states many at once fills an append with entries, not with deletions."""
    facts = [item(exited("n0"), "n0", 2 + number) for number in range(100)]
    first = turn(Ledger(), item(joined("n0"), "n0", 1)).ledger
    planned = turn(first, *facts)
    (batch,) = planned.batches
    assert len(batch.consumed) > 80
    assert batch.ops <= BATCH_OPS_MAX
    assert [left.counter for left in planned.left] == [
        each.counter for each in facts[len(batch.consumed) :]
    ]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=30), st.randoms())
def test_appends_of_any_mixture_keep_to_the_limits(
    runs: list[tuple[int, int]], random: Random
) -> None:
    """However the facts of several writers are interleaved, and however long their rows are."""
    ledger = turn(Ledger(), *(item(joined(f"n{n}"), f"n{n}", 1) for n in range(10))).ledger
    last = dict.fromkeys(range(10), 1)
    facts = []
    for writer, length in runs:
        for _ in range(length):
            last[writer] += 1
            facts.append(item(exited(f"n{writer}"), f"n{writer}", last[writer]))
        if random.random() < 0.3:
            random.shuffle(facts)
    while facts:
        planned = turn(ledger, *facts)
        taken = sum(len(batch.consumed) for batch in planned.batches)
        assert all(batch.ops <= BATCH_OPS_MAX for batch in planned.batches)
        ledger, facts = planned.ledger, [*planned.left]
        if not taken:
            break  # what is left waits for an earlier fact of its writer


def test_counters_of_a_log_are_what_sequencing_it_left() -> None:
    """A successor that folds the log knows each writer's last fact."""
    planned = turn(
        Ledger(),
        item(joined("n0"), "n0", 1),
        item(ready("n0"), "n0", 2),
        item(joined("n1", 3), "n1", 1, incarnation=3),
        item(e.DecisionsPaused(by="op"), "operator.op", 1, incarnation=77),
    )
    again = counters_of(Ledger().counters, entries(planned))
    assert dict(again.items()) == dict(planned.ledger.counters.items())
    assert dict(again.items()) == {"n0": (1, 2), "n1": (3, 1)}

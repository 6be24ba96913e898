"""The detector: who is found, when, and who never is; order, epochs, hysteresis, takeover."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine.detector import DetectorPolicy, observe, restored
from statemachine.events import Verdict, VerdictIssued
from statemachine.ids import Epoch, Incarnation, NodeId, Role
from statemachine.vitals import CPU_MS, WAIT_MS, WORK_MS, summarise
from tests.unit.statemachine.grey_fleet import (
    ACTED_UPON,
    NOISY,
    POLICY,
    QUIET,
    STILL,
    Alter,
    Watch,
    altered,
    without,
)

# --- who is found -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_grey_node_of_four_is_found_within_four_windows(seed: int) -> None:
    """On two noisy cores a node at 1.4x is judged by its fourth window, and nobody else is."""
    watch = Watch().watch(replace(NOISY, slow={2: 1.4}, onset=20), 30, seed)

    found = [r for r, node, verdict in watch.verdicts if verdict in ACTED_UPON and node == "n2"]
    assert {node for _, node, _ in watch.verdicts} == {"n2"}, f"seed {seed}: {watch.verdicts}"
    assert 20 < found[0] <= 23, f"seed {seed}: onset in window 20, verdict in window {found[0]}"


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_noisy_run_accuses_nobody(seed: int) -> None:
    """Four clean nodes that differ by 8 % from window to window are never judged."""
    watch = Watch().watch(NOISY, 120, seed)

    assert watch.said == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_ten_percent_are_found_on_a_quiet_fleet(seed: int) -> None:
    """A node at 1.1x is degraded, and not faulty, whether or not processor time is measured."""
    for cpu in (True, False):
        watch = Watch().watch(replace(QUIET, slow={3: 1.1}, onset=12, cpu=cpu), 40, seed)
        final = {node: verdict for _, node, verdict in watch.verdicts}

        assert final == {"n3": Verdict.DEGRADED}, f"seed {seed} cpu {cpu}"


def test_one_of_a_thousand_is_found() -> None:
    """With 1,000 nodes the one at 1.25x is faulty, and no other is judged."""
    fleet = replace(QUIET, nodes=1_000, steps=5, slow={617: 1.25})
    watch = Watch().watch(fleet, POLICY.grace_windows + POLICY.windows_to_judge)

    assert [(node, verdict) for _, node, verdict in watch.verdicts][-1:] == [("n617", "faulty")]
    assert {node for _, node, _ in watch.verdicts} == {"n617"}


def test_steps_as_long_as_a_window_do_not_blind_the_detector() -> None:
    """With one step of 17 s per window a node at 1.3x is found, and a clean run accuses nobody."""
    fleet = replace(QUIET, steps=1, work_ms=14_000, exchange_ms=3_000)

    assert Watch().watch(fleet, 40).said == []
    watch = Watch().watch(replace(fleet, slow={5: 1.3}, onset=10), 20)
    assert watch.verdicts[-1][1:] == ("n5", Verdict.FAULTY)


def test_two_of_six_are_found() -> None:
    """A minority of slow nodes hides neither of them."""
    watch = Watch().watch(replace(QUIET, nodes=6, slow={1: 1.3, 4: 1.5}), 10)

    assert {node for _, node, v in watch.verdicts if v is Verdict.FAULTY} == {"n1", "n4"}


def test_a_verdict_carries_its_evidence() -> None:
    """Numbers, windows, peers, version and expiry are in the event; the reason is a sentence."""
    watch = Watch().watch(replace(STILL, slow={0: 1.4}), 6)
    verdict = next(
        j for _, j in watch.said if isinstance(j, VerdictIssued) and j.verdict == "faulty"
    )

    assert re.fullmatch(
        r"work 1\.4\dx its 3 peers' median for 4 windows; "
        r"peers wait 12\.\d ms per step more than it does; "
        r"steps are 3\d% longer because of it; compute: it computes longer",
        verdict.reason,
    ), verdict.reason
    assert [i.metric for i in verdict.indicators] == [WORK_MS, WAIT_MS, CPU_MS]
    assert all(i.peers == 3 and i.windows == 4 for i in verdict.indicators)
    assert (verdict.window_first, verdict.window_last) == (2, 5)
    assert verdict.detector == "peers-3"
    assert verdict.expires_at_ms == watch.now_ms + 900_000
    assert (verdict.node, verdict.incarnation, verdict.job) == ("n0", 1, "j")


def test_a_verdict_only_becomes_worse() -> None:
    """Suspect, degraded, faulty: each is said once, and a milder spell does not soften it."""
    watch = Watch()
    for index, batch in enumerate(replace(STILL, slow={1: 1.12}).windows(1, 40)):
        worse = next(iter(replace(STILL, slow={1: 1.3}).windows(1, 1)))
        source = worse if 15 <= index < 22 else batch
        watch.see(
            [
                altered(v, window=index, last_step=b.last_step)
                for v, b in zip(source, batch, strict=True)
            ]
        )

    assert [verdict for _, _, verdict in watch.verdicts] == ["suspect", "degraded", "faulty"]
    assert watch.withdrawn == []


# --- who never is -----------------------------------------------------------------------------


def test_when_all_are_slow_nobody_is_flagged() -> None:
    """A common slowdown is noted with its numbers and is no node's fault."""
    everybody = dict.fromkeys(range(4), 1.5)
    watch = Watch().watch(replace(STILL, slow=everybody, onset=20), 30)

    assert watch.said == []
    assert any("all are slow" in note and "1.50x" in note for note in watch.notes), watch.notes


def test_too_few_peers_judge_nobody() -> None:
    """With two peers no node is judged, however slow, and the note says how many are needed."""
    watch = Watch().watch(replace(STILL, nodes=3, slow={0: 3.0}), 20)

    assert watch.said == []
    assert "j/only: n0 is not compared: 3 comparable, 4 needed" in watch.notes


def test_roles_are_not_compared_with_each_other() -> None:
    """A last stage that works twice as long as the first ones is no straggler."""
    watch = Watch().watch(
        replace(STILL, nodes=8, slow=dict.fromkeys(range(4, 8), 2.0)),
        20,
        alter=lambda v: altered(v, role=Role("last" if v.slot >= 4 else "first")),
    )

    assert watch.said == []
    assert len(watch.state.cohorts) == 2


def test_long_work_for_which_nobody_waits_is_no_evidence() -> None:
    """If peers wait no longer than the node does, its long work costs nobody anything."""
    slow = replace(STILL, slow={0: 1.4})
    even = summarise([6.0] * 20)
    watch = Watch().watch(slow, 20, alter=lambda v: altered(v, metrics=v.metrics | {WAIT_MS: even}))

    assert watch.said == []


def test_one_indicator_alone_is_no_evidence() -> None:
    """Long work without a measured wait or processor time convicts nobody."""
    watch = Watch().watch(
        replace(STILL, slow={0: 1.4}), 20, alter=lambda v: without(v, WAIT_MS, CPU_MS)
    )

    assert watch.said == []


def test_a_slowdown_that_costs_nothing_is_no_evidence() -> None:
    """Forty percent more of work that is a fiftieth of the step is nobody's business."""
    watch = Watch().watch(replace(STILL, slow={0: 1.4}, work_ms=2, exchange_ms=100), 20)

    assert watch.said == []


@pytest.mark.parametrize(
    ("alter", "note"),
    [
        (lambda v: without(v, WORK_MS), "it is blind: no work_ms"),
        (lambda v: altered(v, blind=(WORK_MS,)), "it is blind: no work_ms"),
        (lambda v: altered(v, phase="evaluation"), "it is in phase evaluation"),
        (lambda v: altered(v, steps=0), "0 steps, 1 needed"),
        (lambda v: altered(v, last_step=v.last_step + 500), "it covers other steps than its peers"),
    ],
)
def test_a_window_that_cannot_be_compared_is_no_evidence(alter: Alter, note: str) -> None:
    """Blind, in another phase, almost empty, or of other steps: noted, never judged."""
    watch = Watch().watch(
        replace(STILL, nodes=5, slow={0: 2.0}),
        20,
        alter=lambda v: alter(v) if v.node == "n0" else v,
    )

    assert watch.said == []
    assert f"j/only: n0 is not compared: {note}" in watch.notes


def test_clocks_of_nodes_do_not_matter() -> None:
    """Nodes whose clocks are hours apart are judged as if they were not."""
    fleet = replace(STILL, slow={1: 1.3})
    hour_ms = 3_600_000
    skewed: Alter = lambda v: altered(  # noqa: E731 - a name for the case
        v,
        started_at_ms=v.started_at_ms - v.slot * hour_ms,
        ended_at_ms=v.ended_at_ms - v.slot * hour_ms,
    )

    assert Watch().watch(fleet, 12).said == Watch().watch(fleet, 12, alter=skewed).said != []


# --- newcomers, epochs, order -----------------------------------------------------------------


def test_a_node_that_just_joined_is_not_judged_by_its_first_windows() -> None:
    """A joiner that is slow while it warms up, and no longer, is never judged."""
    warming = replace(STILL, slow={3: 2.5}, onset=10, end=10 + POLICY.grace_windows)
    watch = Watch().watch(
        warming, 30, alter=lambda v: v if v.node != "n3" or v.window >= 10 else None
    )

    assert watch.said == []
    assert "j/only: n3 is not compared: it, or its epoch, is new" in watch.notes


def test_a_new_epoch_gives_everybody_grace() -> None:
    """Windows right after a transition count for nothing, and evidence before it still does."""
    settling = replace(STILL, slow={0: 3.0}, onset=10, end=10 + POLICY.grace_windows)
    later: Alter = lambda v: altered(v, epoch=Epoch(2 if v.window >= 10 else 1))  # noqa: E731

    assert Watch().watch(settling, 30, alter=later).said == []
    sick = Watch().watch(replace(STILL, slow={0: 1.3}, onset=8), 15, alter=later)
    faulty = [r for r, _, verdict in sick.verdicts if verdict is Verdict.FAULTY]
    assert faulty == [12], "two windows before the transition, two of grace, then one of three"


def test_windows_of_ghosts_and_repeated_windows_change_nothing() -> None:
    """An earlier incarnation, an earlier epoch and a window seen before are ignored."""
    watch = Watch().watch(STILL, 5)
    again = list(STILL.windows(1, 5))[-1]
    old = [altered(v, incarnation=Incarnation(0), window=99) for v in again]
    past = [altered(v, epoch=Epoch(0), window=99) for v in again]

    for batch in (again, old, past):
        seen = observe(watch.state, batch, watch.now_ms, POLICY)

        assert seen.state.records == watch.state.records
        assert seen.judgements == ()
        assert seen.notes == ()


def test_a_silent_node_holds_nobody_up() -> None:
    """When a node stops reporting, the others are still compared."""
    sick = replace(STILL, nodes=5, slow={0: 1.4}, onset=10)
    watch = Watch().watch(sick, 20, alter=lambda v: v if v.node != "n4" or v.window < 8 else None)

    assert ("n0", "faulty") in {(node, verdict) for _, node, verdict in watch.verdicts}


def test_missed_windows_are_bridged_and_a_long_gap_forgets() -> None:
    """A lost window does not clear a slow node; a long silence makes its evidence void."""
    sick = replace(STILL, slow={0: 1.4}, nodes=5)
    lossy = Watch().watch(sick, 14, alter=lambda v: v if v.node != "n0" or v.window % 2 else None)
    assert "n0" in {node for _, node, _ in lossy.verdicts}

    gone: Alter = lambda v: v if v.node != "n0" or v.window in (2, 3, 10, 11) else None  # noqa: E731
    assert Watch().watch(sick, 12, alter=gone).said == []


def test_a_restarted_agent_starts_with_no_evidence() -> None:
    """Evidence is bound to an incarnation: what the one before did is no proof against this one."""
    sick = replace(STILL, slow={0: 1.4}, end=5)
    anew: Alter = lambda v: v if v.window < 5 else altered(v, incarnation=Incarnation(2))  # noqa: E731

    assert {verdict for _, _, verdict in Watch().watch(sick, 30, alter=anew).verdicts} <= {
        "suspect"
    }


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_the_order_of_arrival_within_a_round_does_not_matter(
    chance: random.Random, seed: int
) -> None:
    """However the windows of a round arrive, together or one by one, the judgements are equal."""
    fleet = replace(STILL, nodes=5, slow={2: 1.3})
    straight, shuffled = Watch(), Watch()
    for batch in fleet.windows(seed, 10):
        straight.see(batch)
        mixed = chance.sample(batch, len(batch))
        cut = chance.randrange(len(mixed) + 1)
        shuffled.see(mixed[:cut]).see(mixed[cut:], pass_ms=0)
        shuffled.round -= 1

    expected = [judgement for _, judgement in straight.said]
    assert [judgement for _, judgement in shuffled.said] == expected != []


# --- hysteresis, renewal, expiry, takeover ----------------------------------------------------


def test_a_verdict_is_withdrawn_only_after_more_windows_than_it_took() -> None:
    """Ten windows like the peers' clear a node; fewer, or a ratio of 1.06, do not."""
    recovering = replace(STILL, slow={0: 1.4}, end=6)  # the verdict of window 5 is the last
    watch = Watch().watch(recovering, 15)
    assert [verdict for _, _, verdict in watch.verdicts][-1] is Verdict.FAULTY
    assert watch.withdrawn == []
    watch = Watch().watch(recovering, 30)
    assert watch.withdrawn == [(15, "n0")]
    assert watch.state.standing.get(NodeId("n0")) is None
    assert max(r for r, _, _ in watch.verdicts) == 5

    half = Watch().watch(recovering, 6)
    for batch in replace(STILL, slow={0: 1.06}).windows(2, 40):
        half.see([altered(v, window=v.window + 6, last_step=v.last_step + 120) for v in batch])
    assert half.withdrawn == []


def test_a_standing_verdict_is_confirmed_when_half_its_validity_is_over() -> None:
    """A node that stays slow keeps its verdict: it is issued again, not every window."""
    watch = Watch(policy=DetectorPolicy(verdict_ttl_s=20))
    watch.watch(replace(STILL, slow={0: 1.4}), 40)
    rounds = [r for r, _, verdict in watch.verdicts if verdict is Verdict.FAULTY]

    assert rounds == [5, 16, 27, 38]
    assert watch.withdrawn == []


def test_a_verdict_without_confirmation_expires() -> None:
    """Once the node no longer reports, its verdict ends with its validity, even in silence."""
    watch = Watch(policy=DetectorPolicy(verdict_ttl_s=20)).watch(replace(STILL, slow={0: 1.4}), 8)
    last_ms = max(j.expires_at_ms for _, j in watch.said if isinstance(j, VerdictIssued))

    assert observe(watch.state, [], last_ms - 1, POLICY).judgements == ()
    seen = observe(watch.state, [], last_ms, POLICY)
    assert [(j.node, j.reason) for j in seen.judgements] == [
        ("n0", "expired: faulty was not confirmed again")
    ]
    assert observe(seen.state, [], last_ms + 1, POLICY).judgements == ()


def test_a_detector_that_takes_over_knows_what_stands() -> None:
    """After a change of controller a standing verdict is neither said again nor lost."""
    sick = replace(STILL, slow={0: 1.4})
    issued = [j for _, j in Watch().watch(sick, 6).said if isinstance(j, VerdictIssued)]
    taken = Watch(state=restored(issued[-1:]))
    by_hand = VerdictIssued(
        node=NodeId("n1"), incarnation=Incarnation(1), verdict=Verdict.FAULTY, reason="x", by="ann"
    )

    assert taken.watch(sick, 12).said == []
    assert restored([by_hand]).standing.get(NodeId("n1")) is None, "an operator's verdict"
    recovered = Watch(state=restored(issued[-1:])).watch(replace(STILL), 30)
    assert [node for _, node in recovered.withdrawn] == ["n0"]

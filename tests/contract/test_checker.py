"""Never a lost, doubled or re-ordered event: what was acknowledged against what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from controlplane.eventlog import CLIENTS
from statemachine.events import LeaderElected, Recorded, StepResumed
from statemachine.ids import Incarnation, JobId, NodeId, Position, TransitionId
from tests.contract.checker import History, Stated, judge, play
from tests.contract.conftest import SPEAKERS, need_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.etcd_server import EtcdServer

SECURE_SPEAKERS = SPEAKERS[len(CLIENTS) :]
SEEDS = (1, 2)
SEEDS_OVER_TLS = (3, 4)
SOAK_SEEDS = range(100, 110)


async def play_and_judge(
    servers: list[EtcdServer], fleet: str, seed: int, duration_s: float, client: str = "thin"
) -> None:
    """Play once; a failure shows the seed and what was done to the store."""
    print(f"seed {seed}, {duration_s:g} s, {len(servers)} servers, client {client}")
    history, log = await play(servers, fleet, seed, duration_s, client)
    terms = sum(isinstance(entry.event, LeaderElected) for entry in log)
    print(
        f"{len(history.stated)} facts acknowledged, {len(log)} entries, {terms} terms, "
        f"faults: {', '.join(history.faults)}"
    )
    assert judge(history, log) == []
    assert len(history.stated) > 50
    assert history.faults


@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "client"), [*zip(SEEDS, CLIENTS, strict=True)])
async def test_one_server_killed_frozen_and_compacted(
    own_etcd: EtcdServer, fleet: str, seed: int, client: str
) -> None:
    """One server, eight seconds of faults: every acknowledged fact is there once, in order."""
    need_client(client)
    await play_and_judge([own_etcd], fleet, seed, 8, client)


@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "client"), [*zip(SEEDS, CLIENTS, strict=True)])
async def test_a_cluster_whose_leaders_are_hurt(
    members: list[EtcdServer], fleet: str, seed: int, client: str
) -> None:
    """Three servers, killed, frozen, compacted, told to hand over, mostly the leading: the same."""
    need_client(client)
    await play_and_judge(members, fleet, seed, 10, client)


PLAYS_OVER_TLS = list(zip(SEEDS_OVER_TLS, SECURE_SPEAKERS, strict=True))


@pytest.mark.etcd
@pytest.mark.soak
@pytest.mark.parametrize(("seed", "speaker"), PLAYS_OVER_TLS, indirect=["speaker"])
async def test_one_server_over_tls_killed_frozen_and_compacted(
    own_etcd: EtcdServer, fleet: str, seed: int, speaker: str
) -> None:
    """The same with certificates, asked of everybody by a server that knows its users."""
    await play_and_judge([own_etcd], fleet, seed, 8, speaker)


@pytest.mark.etcd
@pytest.mark.soak
@pytest.mark.parametrize(("seed", "speaker"), PLAYS_OVER_TLS, indirect=["speaker"])
async def test_a_cluster_over_tls_whose_leaders_are_hurt(
    members: list[EtcdServer], fleet: str, seed: int, speaker: str
) -> None:
    """The same of a cluster whose members, too, know each other by certificates."""
    await play_and_judge(members, fleet, seed, 10, speaker)


@pytest.mark.etcd
@pytest.mark.soak
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
async def test_one_server_for_long(
    own_etcd: EtcdServer, fleet: str, seed: int, client: str
) -> None:
    """The same for a minute."""
    need_client(client)
    await play_and_judge([own_etcd], fleet, seed, 60, client)


@pytest.mark.etcd
@pytest.mark.soak
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
async def test_a_cluster_for_long(
    members: list[EtcdServer], fleet: str, seed: int, client: str
) -> None:
    """The same for a minute."""
    need_client(client)
    await play_and_judge(members, fleet, seed, 60, client)


# --- the judge itself -----------------------------------------------------------------------------


def entry(position: int, writer: str, counter: int) -> Recorded:
    """One fact in the log."""
    event = StepResumed(
        node=NodeId(writer),
        incarnation=Incarnation(1),
        job=JobId("j"),
        transition=TransitionId(0),
        step=counter,
        step_ms=0.0,
    )
    return Recorded(
        position=Position(position), at_ms=0, writer=writer, counter=counter, event=event
    )


def truth() -> tuple[History, list[Recorded]]:
    """A history in which all went well: two writers in turn, each after the other's answer."""
    stated = [
        Stated(writer, counter, counter, 2 * number, 2 * number + 1)
        for number, (writer, counter) in enumerate((("a", 1), ("b", 1), ("a", 2), ("b", 2)))
    ]
    log = [entry(number, each.writer, each.counter) for number, each in enumerate(stated, 1)]
    return History(stated=stated, read={"r": list(log)}), log


def test_the_judge_is_content_with_the_truth() -> None:
    """No fault where there is none."""
    assert judge(*truth()) == []


def lose(log: list[Recorded]) -> None:
    """One entry is not there."""
    del log[3]


def double(log: list[Recorded]) -> None:
    """One entry is there twice."""
    log.append(entry(5, "a", 2))


def swap_a_writers_own(log: list[Recorded]) -> None:
    """What one writer said stands in another order."""
    log[0], log[2] = entry(1, "a", 2), entry(3, "a", 1)


def swap_two_writers(log: list[Recorded]) -> None:
    """What was said later stands before."""
    log[0], log[1] = entry(1, "b", 1), entry(2, "a", 1)


def leave_a_hole(log: list[Recorded]) -> None:
    """A position is missing."""
    log[3] = entry(5, "b", 2)


@pytest.mark.parametrize("harm", [lose, double, swap_a_writers_own, swap_two_writers, leave_a_hole])
def test_the_judge_finds_a_log_that_lies(harm: Callable[[list[Recorded]], None]) -> None:
    """Lost, doubled, re-ordered, with a hole: even if every reader saw the same lie."""
    history, log = truth()
    harm(log)
    history.read["r"] = list(log)
    assert judge(history, log)


@pytest.mark.parametrize("harm", [lose, double, swap_two_writers])
def test_the_judge_finds_a_reader_that_was_told_a_lie(
    harm: Callable[[list[Recorded]], None],
) -> None:
    """The log is right, one reader got something else."""
    history, log = truth()
    harm(history.read["r"])
    assert len(judge(history, log)) == 1

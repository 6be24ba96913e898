"""One agent as a real process on a real etcd, with a training process that follows a script."""

import os
import signal
import time

import psutil
import pytest

from statemachine import events as e
from statemachine.ids import Epoch, Incarnation, NodeId, Position, Slot, SweepId, TransitionId
from statemachine.lifecycle import NodeState, Phase
from statemachine.topology import Holder, Orders, Patience, Pending
from statemachine.vitals import decode_vitals
from tests.integration.agent.bench import JOB, AgentRun, Bench, is_alive

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(40)]

N0, N1 = NodeId("n0"), NodeId("n1")
HOLDER = Holder(
    slot=Slot(0), node=N0, incarnation=Incarnation(1), host="127.0.0.1", port=1, transfer_port=2
)


def pending(
    transition: int, phase: Phase, motive: e.Motive = e.Motive.PLANNED, *, resume_step: int = -1
) -> Pending:
    """A pending transition in which the node holds slot 0."""
    return Pending(
        transition=TransitionId(transition),
        motive=motive,
        phase=phase,
        to_epoch=Epoch(transition),
        members=(HOLDER,),
        required=(N0,),
        joiners=(),
        leavers=(),
        deadline_at_ms=int(time.time() * 1000) + 30_000,
        reason="a test",
        resume_step=resume_step,
    )


async def until_ready(
    bench: Bench, *trainee: str, options: tuple[str, ...] = ()
) -> tuple[AgentRun, e.WorkerReady]:
    """An agent whose training process is ready."""
    agent = bench.start(*trainee, options=options)
    await bench.declare()
    ready = await bench.fact(e.WorkerReady)
    return agent, ready


async def make_member(bench: Bench) -> None:
    """Launch: the node holds slot 0 at epoch 1."""
    await bench.declare(2, pending=pending(1, Phase.PREPARING, e.Motive.LAUNCH))
    await bench.fact(e.TransitionPrepared)
    committed = pending(1, Phase.COMMITTED, e.Motive.LAUNCH, resume_step=0)
    await bench.declare(3, epoch=Epoch(1), members=(HOLDER,), pending=committed)
    await bench.fact(e.TransitionApplied)


async def test_a_node_joins_and_its_training_process_turns_ready(bench: Bench) -> None:
    """An agent states that it joined, waits for the job, greets its process, and states ready."""
    agent = bench.start()
    joined = await bench.fact(e.NodeJoined)
    assert (joined.node, joined.incarnation, joined.pid) == (N0, 1, agent.pid)
    assert joined.probe_port > 0
    await agent.until(
        lambda: "waiting for job gpt" in agent.log.read_text(), "a line that says what it waits for"
    )
    assert not any(word.startswith("Hello") for word in agent.words())

    await bench.declare()

    ready = await bench.fact(e.WorkerReady)
    await agent.heard("Hello n0 1 gpt")
    assert os.getpgid(ready.pid) == agent.pid, "agent and training process are one process group"
    assert psutil.Process(ready.pid).ppid() == agent.pid
    async with bench.log.watch_vitals() as view:
        async for delta in view:
            if delta.updated:
                assert decode_vitals(delta.updated[0].value).window == 0
                break


async def test_a_transition_is_relayed_once_per_phase(bench: Bench) -> None:
    """Prepare and commit reach the process once each, and its answers become facts in order."""
    agent, _ = await until_ready(bench)
    await make_member(bench)
    await bench.declare(4, pending=pending(1, Phase.COMMITTED, e.Motive.LAUNCH, resume_step=0))

    began_at = time.perf_counter()
    await bench.declare(5, epoch=Epoch(1), members=(HOLDER,), pending=pending(2, Phase.PREPARING))
    await bench.fact(e.TransitionPrepared, transition=2)
    print(
        f"desired put -> told -> answered -> seen: {(time.perf_counter() - began_at) * 1e3:.1f} ms"
    )
    usage = psutil.Process(agent.pid)
    print(
        f"agent: {usage.memory_info().rss / 2**20:.0f} MiB, {sum(usage.cpu_times()[:2]):.2f} s CPU"
    )

    kinds = [type(fact.event).__name__ for fact in await bench.facts()]
    counters = [fact.counter for fact in await bench.facts()]
    assert kinds[:4] == ["NodeJoined", "WorkerReady", "TransitionPrepared", "TransitionApplied"]
    assert counters == list(range(1, len(counters) + 1))
    heard = [word for word in agent.words() if word.startswith("heard")]
    assert heard == ["heard Prepare 1", "heard Commit 1", "heard Prepare 2"]


async def test_the_training_process_waits_as_the_fleets_policy_says(bench: Bench) -> None:
    """How long it waits for its peers comes with the desired topology, not with the agent."""
    agent = bench.start()
    await bench.declare(2, patience=Patience(hang_deadline_s=7.0))

    await agent.heard("patience 7.0")


async def test_what_was_wanted_before_ready_is_told_after(bench: Bench) -> None:
    """A topology that was projected while the process still started reaches it once it is ready."""
    await bench.declare(2, pending=pending(1, Phase.PREPARING, e.Motive.LAUNCH))
    orders = Orders(
        node=N0,
        incarnation=Incarnation(1),
        position=Position(1),
        state=NodeState.WARMING,
        job=JOB,
        rehearse="only",
    )
    await bench.put(orders=orders)

    agent = bench.start()

    await bench.fact(e.TransitionPrepared)
    await agent.heard("heard Prepare 1")
    passed = await bench.fact(e.WarmupPassed)
    assert passed.role == "only"


async def test_a_killed_training_process_is_reported_at_once(bench: Bench) -> None:
    """The end of the training process is a fact within 100 ms, with the signal that ended it."""
    agent, ready = await until_ready(bench)
    killed_at = time.time()
    os.kill(ready.pid, signal.SIGKILL)

    exited = await bench.fact(e.WorkerExited)

    took_ms = (time.time() - killed_at) * 1000
    stated_ms = next(
        fact.at_ms for fact in await bench.facts() if isinstance(fact.event, e.WorkerExited)
    )
    print(
        f"SIGKILL -> seen by a watcher: {took_ms:.1f} ms; observed by the agent: "
        f"{stated_ms - killed_at * 1000:.1f} ms"
    )
    assert (exited.signal, exited.exit_code) == (signal.SIGKILL, None)
    assert took_ms < 250, agent.story()  # 13 ms where the machine is idle
    await bench.fence(1)
    assert await agent.ended() == 1


async def test_killing_the_process_group_leaves_nothing(bench: Bench) -> None:
    """A node is one process group: killed, neither agent nor training process is left."""
    agent, ready = await until_ready(bench)
    assert len(agent.members()) == 2

    agent.kill_node()

    await agent.until(lambda: not agent.members(), "an empty process group")
    assert not is_alive(ready.pid)


async def test_a_training_process_dies_with_its_agent(bench: Bench) -> None:
    """An agent that is killed alone takes its training process with it."""
    agent, ready = await until_ready(bench)

    os.kill(agent.pid, signal.SIGKILL)
    agent.popen.wait()

    await agent.until(lambda: not agent.members(), "the training process's end")
    assert not is_alive(ready.pid)


async def test_a_fenced_node_stops_training_and_exits(bench: Bench) -> None:
    """Declared lost, an agent ends its training process at once and exits with code 3."""
    agent, ready = await until_ready(bench)
    fenced_at = time.monotonic()
    await bench.fence(1)

    await agent.until(lambda: not is_alive(ready.pid), "the training process's end")
    took_ms = (time.monotonic() - fenced_at) * 1000
    print(f"fence -> training process gone: {took_ms:.0f} ms")

    assert took_ms < 1000, agent.story()
    assert await agent.ended() == 3
    assert "fenced" in agent.log.read_text().splitlines()[-1]
    kinds = [type(fact.event) for fact in await bench.facts()]
    assert e.WorkerExited not in kinds, "a ghost states nothing"
    assert e.NodeLeft not in kinds


async def test_with_rejoin_a_fenced_node_comes_back_anew(bench: Bench) -> None:
    """With --rejoin a lost node returns as the next incarnation with a new training process, and
    says how far the one before had come.
    """
    agent, ready = await until_ready(bench, "--at-step", options=("--rejoin",))
    await agent.heard("at step 41")
    await bench.fence(1)

    again = await bench.fact(e.WorkerReady, incarnation=2)

    assert again.pid != ready.pid
    assert (ready.reached, again.reached) == (-1, 41), "it knows how far the life before came"
    assert not is_alive(ready.pid)
    assert agent.popen.poll() is None


async def test_a_process_that_keeps_failing_is_not_restarted_forever(bench: Bench) -> None:
    """A command that ends before its step loop again and again ends the agent with code 1."""
    agent = bench.start("--crash-at-start", options=("--rejoin",))
    for incarnation in range(1, 4):
        exited = await bench.fact(e.WorkerExited, incarnation=incarnation)
        assert exited.exit_code == 7
        await bench.fence(incarnation)

    assert await agent.ended() == 1
    assert "worker-n0.log" in agent.log.read_text().splitlines()[-1]


async def test_asked_to_stop_it_leaves_in_good_order(bench: Bench) -> None:
    """SIGTERM ends the training process and its descendants, states that the node left, exits 0."""
    agent, ready = await until_ready(bench, "--child")
    child = int(next(word for word in agent.words() if word.startswith("child")).split()[1])

    os.kill(agent.pid, signal.SIGTERM)

    assert await agent.ended() == 0
    left = await bench.fact(e.NodeLeft)
    assert left.incarnation == 1
    assert not await bench.log.nodes(), "its lease was given back"
    assert not is_alive(ready.pid)
    await agent.until(
        lambda: not is_alive(child),
        "the end of what the training process had started",
    )


async def test_a_process_that_does_not_stop_is_killed(bench: Bench) -> None:
    """A training process that ignores its stop is ended after the grace."""
    agent, ready = await until_ready(bench, "--linger")

    os.kill(agent.pid, signal.SIGINT)

    assert await agent.ended() == 0
    assert not is_alive(ready.pid)
    await bench.fact(e.NodeLeft)


async def test_a_finished_job_ends_the_agent(bench: Bench) -> None:
    """When the job is finished the process is told to stop, and the agent leaves with code 0."""
    agent, _ = await until_ready(bench)
    await make_member(bench)

    await bench.declare(9, epoch=Epoch(1), members=(HOLDER,), finished=True)

    finished = await bench.fact(e.WorkerFinished)
    assert finished.weights_digest == "w"
    await bench.fact(e.NodeLeft)
    assert await agent.ended() == 0
    assert e.WorkerExited not in [type(fact.event) for fact in await bench.facts()]


async def test_a_hung_abort_is_escalated(bench: Bench) -> None:
    """A member that does not leave its abandoned collectives in time is killed for that reason."""
    agent, ready = await until_ready(bench, "--deaf", options=("--abort-deadline-s", "0.5"))
    await make_member(bench)

    await bench.declare(
        5,
        epoch=Epoch(1),
        members=(HOLDER,),
        pending=pending(2, Phase.PREPARING, e.Motive.UNPLANNED),
    )

    exited = await bench.fact(e.WorkerExited)
    assert "did not leave its collectives" in exited.reason
    assert exited.signal == signal.SIGKILL
    assert not is_alive(ready.pid)
    await bench.fence(1)
    await agent.ended()


async def test_a_parked_process_may_wait_for_its_peers(bench: Bench) -> None:
    """A member that left its collectives is not killed because links take longer."""
    agent, ready = await until_ready(bench, "--park-only", options=("--abort-deadline-s", "0.3"))
    await make_member(bench)
    await bench.declare(
        5,
        epoch=Epoch(1),
        members=(HOLDER,),
        pending=pending(2, Phase.PREPARING, e.Motive.UNPLANNED),
    )
    await agent.heard("heard Prepare 2")
    parked_at = time.monotonic()

    await agent.until(lambda: time.monotonic() > parked_at + 0.8, "well past the deadline")

    assert is_alive(ready.pid), agent.story()


async def test_a_short_absence_of_the_store_is_not_noticed(own_bench: Bench) -> None:
    """Etcd killed and brought back within the lease: same incarnation, same process, facts kept."""
    bench = own_bench
    agent, ready = await until_ready(bench)
    bench.etcd.kill()
    away_at = time.monotonic()
    await agent.until(lambda: time.monotonic() > away_at + 1.5, "the store away for a while")
    await bench.etcd.start()

    await bench.declare(2, pending=pending(1, Phase.PREPARING, e.Motive.LAUNCH))

    prepared = await bench.fact(e.TransitionPrepared)
    assert prepared.incarnation == 1
    assert is_alive(ready.pid)
    assert [fact.counter for fact in await bench.facts()] == [1, 2, 3]


async def test_after_a_long_absence_of_the_store_it_comes_back_as_it_was(own_bench: Bench) -> None:
    """Etcd away for longer than the lease: training goes on, the same incarnation is established
    again, and what was said meanwhile is stated.
    """
    bench = own_bench
    agent, ready = await until_ready(bench)
    await make_member(bench)
    bench.etcd.kill()
    await agent.until(
        lambda: "training goes on" in agent.log.read_text(), "the lease's end, as the agent sees it"
    )
    await bench.etcd.start()
    await agent.until(lambda: "alive again" in agent.log.read_text(), "its coming back")

    await bench.declare(6, epoch=Epoch(1), members=(HOLDER,), pending=pending(2, Phase.PREPARING))
    await agent.heard("heard Prepare 2")

    assert is_alive(ready.pid)
    nodes = await bench.log.nodes()
    assert [(node.node, node.incarnation) for node in nodes] == [(N0, 1)]


async def test_a_node_declared_lost_while_the_store_was_away_ends(own_bench: Bench) -> None:
    """A ghost that comes back after its loss was declared ends its training process."""
    bench = own_bench
    agent, ready = await until_ready(bench)
    os.killpg(agent.pid, signal.SIGSTOP)
    await bench.fence(1)
    os.killpg(agent.pid, signal.SIGCONT)

    assert await agent.ended() == 3
    assert not is_alive(ready.pid)


async def test_a_second_agent_of_the_same_name_waits_its_turn(bench: Bench) -> None:
    """A rebooted machine's agent waits for the dead one's lease, then joins as the next."""
    first, _ = await until_ready(bench)
    first.kill_node()

    second = bench.start()

    joined = await bench.fact(e.NodeJoined, incarnation=2)
    assert joined.pid == second.pid
    assert "cannot join yet" in second.log.read_text()


async def test_an_unreachable_store_is_one_line_and_code_1(bench: Bench) -> None:
    """Without a store an agent says so and exits with 1, having started nothing."""
    agent = bench.start(options=("--etcd", "http://127.0.0.1:9", "--patience-s", "0.5"))

    assert await agent.ended() == 1
    assert "does not answer" in agent.log.read_text().splitlines()[-1]
    assert not agent.words()


def sweeping(sweep: e.SweepRequested, node: NodeId, *rounds: str) -> Orders:
    """Orders of a node to measure rounds of a sweep."""
    return Orders(
        node=node,
        incarnation=Incarnation(1),
        position=Position(1),
        state=NodeState.SWEEPING if node == sweep.node else NodeState.STANDBY,
        sweep=sweep,
        rounds=rounds,
    )


async def test_a_sweep_is_measured_by_node_and_partner(bench: Bench) -> None:
    """Each round becomes one fact with numbers: alone, the partner's reference, and together."""
    bench.start()
    partner = bench.start(node=N1)
    await bench.fact(e.NodeJoined, node=N0)
    probe_port = (await bench.fact(e.NodeJoined, node=N1)).probe_port
    sweep = e.SweepRequested(
        sweep=SweepId(3),
        node=N0,
        incarnation=Incarnation(1),
        rounds=("solo", "reference", "pair"),
        reason="a test",
        partner=N1,
        partner_host="127.0.0.1",
        partner_port=probe_port,
        deadline_at_ms=int(time.time() * 1000) + 60_000,
    )
    await bench.put(orders=sweeping(sweep, N0, "solo", "pair"))
    await bench.put(orders=sweeping(sweep, N1, "reference"))

    solo = await bench.fact(e.SweepRoundFinished, round="solo")
    reference = await bench.fact(e.SweepRoundFinished, round="reference")
    pair = await bench.fact(e.SweepRoundFinished, round="pair")

    assert [finished.failure for finished in (solo, reference, pair)] == ["", "", ""]
    assert {finished.node for finished in (solo, reference, pair)} == {N0}
    assert solo.measurements.keys() == reference.measurements.keys()
    assert {"gemm_gflops_best", "memory_gbps_best"} <= solo.measurements.keys()
    assert {"link_mbps_out_best", "link_mbps_in_best", "link_latency_us_best"} <= (
        pair.measurements.keys()
    )
    writers = {fact.writer: fact.event for fact in await bench.facts()}
    assert writers["n1"] == reference
    await partner.until(lambda: len(partner.members()) == 2, "the end of the partner's half")


async def test_a_partner_that_does_not_answer_is_a_failure_text(bench: Bench) -> None:
    """A pair round without a living partner has a reason and no numbers."""
    bench.start()
    await bench.fact(e.NodeJoined)
    sweep = e.SweepRequested(
        sweep=SweepId(4),
        node=N0,
        incarnation=Incarnation(1),
        rounds=("pair",),
        reason="a test",
        partner=N1,
        partner_host="127.0.0.1",
        partner_port=9,
    )
    await bench.put(orders=sweeping(sweep, N0, "pair"))

    finished = await bench.fact(e.SweepRoundFinished)

    assert "link and collective probe" in finished.failure
    assert "refused" in finished.failure
    assert finished.measurements == {}

"""A toy scheduler that embeds the control plane, with a rule of its own, and follows its decisions.

Run it: `python examples/embed_scheduler.py`. It needs no etcd: the log is in this process's memory.
The machines are made up: `Machine` states what an agent would state (joined, ready, prepared,
applied). What matters is the other side: how a scheduler starts a control plane, puts a rule into
it, hears of its decisions, and acts.
"""

from __future__ import annotations

import time

import anyio

from controlplane.embedding import ControlPlane, Decision, Plugins, control_plane, memory_log
from controlplane.eventlog import EventLog, NodeSession
from statemachine import events as e
from statemachine.ids import JobId, NodeId
from statemachine.lifecycle import Phase
from statemachine.policy import Policy
from statemachine.state import FleetState
from statemachine.topology import Desired, Orders, decode_desired, decode_orders

JOB = JobId("toy")
MACHINES = ("m0", "m1", "m2", "m3", "m4")


def rest_the_tired(state: FleetState, _: int, __: Policy) -> Decision | None:
    """A rule of our own: a machine that was promoted twice is kept out of the pool, to be swept.

    It is pure: the same state gives the same answer, on any machine and at any time. Where it says
    None, the control plane's own rules decide. `tests/unit/examples/test_embed_scheduler.py` tests
    it on virtual time.
    """
    for name in sorted(state.pool):
        node = state.nodes[name]
        if node.promotions >= 2 and not node.quarantine and not node.quarantined_at_ms:
            reason = f"{name} was promoted {node.promotions} times: let it rest"
            event = e.NodeQuarantined(node=name, incarnation=node.incarnation, reason=reason)
            return Decision((event,), reason)
    return None


def now_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


class Machine:
    """A made-up machine: it does at once whatever the control plane wants of it."""

    def __init__(self, log: EventLog, name: str) -> None:
        self.node = NodeId(name)
        self.session: NodeSession
        self._log = log
        self._answered: set[tuple[int, Phase]] = set()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Join, and serve until cut."""
        with self._scope:
            self.session = await self._log.join(self.node, b"{}", 10.0)
            life = self.session.incarnation
            await self.say(e.NodeJoined(node=self.node, incarnation=life, host=self.node))
            await self.say(
                e.WorkerReady(
                    node=self.node,
                    incarnation=life,
                    job=JOB,
                    host=self.node,
                    port=1,
                    transfer_port=2,
                    pid=1,
                    digest="toy",
                )
            )
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow_topology)
                group.start_soon(self._follow_orders)

    def cut(self) -> None:
        """Cut the power."""
        self._scope.cancel()

    async def say(self, event: e.AnyEvent) -> None:
        """State a fact."""
        await self.session.submit(event, now_ms())

    async def saw_reset(self, peer: Machine, epoch: int) -> None:
        """Report that the link to a peer is gone."""
        await self.say(
            e.PeerReset(
                node=self.node,
                incarnation=self.session.incarnation,
                job=JOB,
                epoch=epoch,  # type: ignore[arg-type]
                peer=peer.node,
                peer_incarnation=peer.session.incarnation,
                group="dp[0]",  # type: ignore[arg-type]
            )
        )

    async def _follow_topology(self) -> None:
        async with self._log.watch_desired(JOB) as view:
            async for delta in view:
                for item in delta.updated:
                    await self._answer(decode_desired(item.value))

    async def _answer(self, desired: Desired) -> None:
        pending = desired.pending
        if pending is None or (pending.transition, pending.phase) in self._answered:
            return
        self._answered.add((pending.transition, pending.phase))
        life, transition = self.session.incarnation, pending.transition
        fresh = self.node in pending.joiners or pending.motive is e.Motive.LAUNCH
        if pending.phase is Phase.PREPARING and self.node in pending.required:
            parked = pending.motive is not e.Motive.PLANNED
            report = e.Report(has_state=not fresh, applied=9) if parked else None
            await self.say(
                e.TransitionPrepared(
                    job=JOB, transition=transition, node=self.node, incarnation=life, report=report
                )
            )
        elif pending.phase is Phase.COMMITTED and self.node in {m.node for m in pending.members}:
            await self.say(
                e.TransitionApplied(
                    job=JOB,
                    transition=transition,
                    epoch=pending.to_epoch,
                    node=self.node,
                    incarnation=life,
                    step=10,
                )
            )

    async def _follow_orders(self) -> None:
        async with self._log.watch_orders(self.node) as view:
            async for delta in view:
                for item in delta.updated:
                    await self._rehearse(decode_orders(item.value))

    async def _rehearse(self, orders: Orders) -> None:
        if orders.rehearse and orders.incarnation == self.session.incarnation:
            await self.say(
                e.WarmupPassed(
                    node=self.node,
                    incarnation=self.session.incarnation,
                    job=JOB,
                    role=orders.rehearse,  # type: ignore[arg-type]
                    digest="toy",
                    first_step_ms=1.0,
                    steady_step_ms=1.0,
                    took_ms=1.0,
                )
            )


async def tell_decisions(plane: ControlPlane) -> None:
    """Print every decision, with its reason."""
    async for decided in plane.decisions():
        print(f"  decided at {decided.first}: {decided.reason or type(decided.events[0]).__name__}")


async def until_trains(plane: ControlPlane, epoch: int) -> list[str]:
    """Wait until the job trains at an epoch; returns who holds its slots."""
    async for _ in plane.events():
        job = plane.state.jobs.get(JOB)
        if job is not None and job.epoch >= epoch and job.pending is None:
            return [str(job.holders[slot]) for slot in sorted(job.holders)]
    raise AssertionError


async def main() -> None:
    """Train on three machines, lose one, take another out, and say what was decided."""
    log = memory_log("toy")
    plugins = Plugins(rule=rest_the_tired)
    async with control_plane(log=log, plugins=plugins) as plane, anyio.create_task_group() as group:
        await plane.until_leading()
        group.start_soon(tell_decisions, plane)
        machines = {name: Machine(log, name) for name in MACHINES}
        for machine in machines.values():
            group.start_soon(machine.run)
        await plane.act("toy", e.JobDeclared(job=JOB, axes={"dp": 3}, standbys=2))
        first, second, _ = await until_trains(plane, 1)

        print(f"the power of {first} is cut")
        machines[first].cut()
        await machines[second].saw_reset(machines[first], plane.state.jobs[JOB].epoch)
        print(f"trains on {', '.join(await until_trains(plane, 2))}")

        acted = await plane.act("ada", e.DrainRequested(node=NodeId(second), by="ada"))
        print(f"the drain of {second} is at position {acted.position}")
        print(f"trains on {', '.join(await until_trains(plane, 3))}")
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)

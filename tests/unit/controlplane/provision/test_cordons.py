"""A scheduler follows the folded state: what it was told in the end is what the fold says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from controlplane.provision.cordons import Cordons, machine_of
from controlplane.provision.port import Condition, Standing, ToolRefused
from statemachine.codec import decode_recorded
from statemachine.evolve import evolve
from statemachine.ids import NodeId
from statemachine.state import FleetState, replace

DEMO = Path(__file__).parents[3] / "history" / "demo_kill_and_grey.events.jsonl"


class Scheduler:
    """Remembers what it was told; fails as often as it is asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.told: list[tuple[str, str]] = []
        self.failures = failures
        self.changed = anyio.Event()

    async def cordon(self, machine: str, reason: str) -> None:
        self._tell(("cordon", machine))

    async def uncordon(self, machine: str) -> None:
        self._tell(("uncordon", machine))

    async def condition(self, machine: str) -> Condition:
        return Condition(standing=Standing.UNKNOWN)

    async def request(self, count: int, reason: str) -> None:
        raise NotImplementedError

    def _tell(self, what: tuple[str, str]) -> None:
        if self.failures:
            self.failures -= 1
            raise ToolRefused("away")
        self.told.append(what)
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, told: list[tuple[str, str]]) -> None:
        """Wait until it was told all that."""
        with anyio.move_on_after(10):
            while self.told != told:
                await self.changed.wait()
        assert self.told == told


async def play(scheduler: Scheduler, upto: int, told: list[tuple[str, str]]) -> None:
    """Let a demo's log pass, entry by entry, up to a position."""
    state = FleetState()
    cordons = Cordons(scheduler, "m-{node}", lambda: state, pause_s=0.01)
    cordons.begin(state)
    async with anyio.create_task_group() as group:
        group.start_soon(cordons.run)
        for raw in DEMO.read_bytes().splitlines()[:upto]:
            recorded = decode_recorded(raw)
            state = evolve(state, recorded)
            cordons.heard([recorded], state)
            await anyio.lowlevel.checkpoint()
        await scheduler.until(told)
        group.cancel_scope.cancel()


async def test_a_node_is_cordoned_while_it_is_kept_out_and_given_back_after() -> None:
    """The grey node of a demo: quarantined, swept, certified; the lost one is left alone."""
    await play(Scheduler(), 92, [("cordon", "m-n2"), ("uncordon", "m-n2")])


async def test_a_scheduler_that_is_away_is_told_later() -> None:
    """It fails three times and still ends where the fold is."""
    await play(Scheduler(failures=3), 75, [("cordon", "m-n2")])


async def test_a_takeover_looks_at_who_is_kept_out_and_at_who_was() -> None:
    """What a controller before it could not tell any more is told now."""
    states = [FleetState()]
    for raw in DEMO.read_bytes().splitlines():
        states.append(evolve(states[-1], decode_recorded(raw)))

    for position, told in [(75, ("cordon", "m-n2")), (92, ("uncordon", "m-n2"))]:
        scheduler = Scheduler()
        cordons = Cordons(scheduler, "m-{node}", partial(states.__getitem__, position))
        cordons.begin(states[position])
        async with anyio.create_task_group() as group:
            group.start_soon(cordons.run)
            await scheduler.until([told])
            group.cancel_scope.cancel()


def test_a_machine_is_named_as_the_scheduler_names_it() -> None:
    """By host, by node, by a label; without that label it is left alone."""
    state = FleetState()
    for raw in DEMO.read_bytes().splitlines():
        state = evolve(state, decode_recorded(raw))
    node = replace(state.nodes[NodeId("n0")], labels=(("slurm", "gpu-07"),))

    assert machine_of(node, "{host}") == "127.0.0.1"
    assert machine_of(node, "{label.slurm}") == "gpu-07"
    assert machine_of(node, "{label.k8s}") == ""

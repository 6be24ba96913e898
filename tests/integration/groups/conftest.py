"""Fleets of ranks, each a real process, for tests that kill, stop and swap them."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest

from tests.integration.groups import rank as rank_program
from worker.groups.port import GroupPlan, Member

ANSWER_S = 60.0
"""How long ranks that are told the same may take; the first of torch's layers loads much."""

_numbers = itertools.count(1)


class RankProcess:
    """One child and the pipe to it."""

    def __init__(
        self,
        context: ForkServerContext,
        node: str,
        incarnation: int,
        secret: bytes,
        *,
        locally: bool,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self._pipe, child = context.Pipe()
        self.process = context.Process(
            target=rank_program.run, args=(child, node, incarnation, secret, locally), daemon=True
        )
        self.process.start()
        child.close()
        self._answers: dict[int, Any] = {}
        self.address: tuple[str, int] = ("", 0)

    def await_ready(self) -> None:
        """Learn where it listens."""
        assert self._pipe.poll(30), f"{self.node} did not start"
        _, self.address = self._pipe.recv()

    def start(self, command: str, *arguments: Any) -> Callable[[float], Any]:
        """Give an order; call what comes back to get the answer within so many seconds."""
        number = next(_numbers)
        self._pipe.send((number, command, arguments))

        def answer(within_s: float = 20.0) -> Any:
            ends = time.monotonic() + within_s
            while number not in self._answers:
                left = ends - time.monotonic()
                if left <= 0:
                    self.send_signal(signal.SIGUSR1)  # every thread's stack, to standard error
                    raise AssertionError(
                        f"{self.node}: no answer to {command}{arguments} in {within_s} s"
                    )
                if self._pipe.poll(left):
                    found, value = self._pipe.recv()
                    self._answers[found] = value
            value = self._answers.pop(number)
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    def tell(self, command: str, *arguments: Any) -> Any:
        """Give an order and wait for its answer."""
        return self.start(command, *arguments)(20.0)

    def send_signal(self, number: int) -> float:
        """Send a real signal; returns when."""
        assert self.process.pid is not None
        now = time.monotonic()
        os.kill(self.process.pid, number)
        return now

    def stop(self) -> None:
        """End the child whatever state it is in."""
        if self.process.is_alive():
            self.send_signal(signal.SIGKILL)
        self.process.join(10)
        self._pipe.close()


class Fleet:
    """Ranks by node name."""

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context
        self.ranks: dict[str, RankProcess] = {}

    def spawn(
        self,
        *nodes: str,
        incarnation: int = 1,
        secret: bytes = rank_program.SECRET,
        locally: bool = True,
    ) -> None:
        """Start children and wait until all listen; not `locally`: as if each had its machine."""
        fresh = [
            RankProcess(self._context, node, incarnation, secret, locally=locally) for node in nodes
        ]
        for one in fresh:
            self.ranks[one.node] = one
        for one in fresh:
            one.await_ready()

    def __getitem__(self, node: str) -> RankProcess:
        return self.ranks[node]

    def make(self, name: str, nodes: list[str], size: int, **options: Any) -> None:
        """Create the group in each of `nodes`."""
        self.all(nodes, "make", name, size, *options.values())

    def plans(
        self, name: str, nodes: list[str], epoch: int, transition: int | None = None
    ) -> dict[str, GroupPlan]:
        """One plan per node; slots in the order given."""
        members = tuple(
            Member(slot, slot, node, self[node].incarnation, *self[node].address)
            for slot, node in enumerate(nodes)
        )
        return {
            node: GroupPlan(name, "job", epoch, transition or epoch, index, members)
            for index, node in enumerate(nodes)
        }

    def all(self, nodes: list[str], command: str, *arguments: Any) -> dict[str, Any]:
        """Give the same order to several and collect the answers."""
        pending = {node: self[node].start(command, *arguments) for node in nodes}
        return {node: answer(ANSWER_S) for node, answer in pending.items()}

    def each(self, command: str, plans: dict[str, GroupPlan]) -> dict[str, Any]:
        """Give each its plan."""
        pending = {node: self[node].start(command, plan) for node, plan in plans.items()}
        return {node: answer(ANSWER_S) for node, answer in pending.items()}

    def launch(self, name: str, nodes: list[str], epoch: int = 1) -> dict[str, GroupPlan]:
        """Create a group in all of `nodes`, prepare it and switch to it."""
        self.all(nodes, "make", name, len(nodes))
        plans = self.plans(name, nodes, epoch)
        prepared = self.each("prepare", plans)
        assert all("opened" in one for one in prepared.values()), prepared
        assert set(self.each("switch", plans).values()) == {"switched"}
        return plans

    def stop(self) -> None:
        """End every child."""
        for one in self.ranks.values():
            one.stop()


@pytest.fixture(scope="session")
def forkserver() -> ForkServerContext:
    """A context whose children start with torch already imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "tests.integration.groups.rank"])
    return context


@pytest.fixture
def fleet(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """An empty fleet; whatever is spawned in it ends with the test."""
    found = Fleet(forkserver)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def four(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """Four ranks n0..n3 in group `dp`, shared by tests that break nothing."""
    found = Fleet(forkserver)
    nodes = [f"n{index}" for index in range(4)]
    found.spawn(*nodes)
    found.launch("dp", nodes)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def three(forkserver: ForkServerContext) -> Iterator[Fleet]:
    """Three ranks n0..n2 in group `dp`, shared by tests that break nothing."""
    found = Fleet(forkserver)
    nodes = [f"n{index}" for index in range(3)]
    found.spawn(*nodes)
    found.launch("dp", nodes)
    yield found
    found.stop()

"""Ranks that are processes, each with an object that does as it is told.

What belongs here: forking, telling, collecting. What does not: what is measured.
"""

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch

from worker.groups.links import LinkEndpoint
from worker.groups.port import GroupPlan, Member

SECRET = b"a secret for one benchmark"
ANSWER_S = 120.0


class Ranks:
    """`count` forks of this process, each with `make(index)`; a context that leaves none behind.

    Make it before anything in this process starts a thread.
    """

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        torch.set_num_threads(1)
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for index in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_obey, args=(theirs, make, index), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def each(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Let ranks do something at once, each with arguments of its own; what they returned."""
        for index, one in arguments.items():
            self._pipes[index].send((method, tuple(one)))
        return {index: self._answer(index, method) for index in arguments}

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """Let every rank do the same."""
        found = self.each(method, dict.fromkeys(range(len(self._pipes)), arguments))
        return [found[index] for index in range(len(self._pipes))]

    def start(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Let every rank do the same; call what comes back to wait for what they returned."""
        for pipe in self._pipes:
            pipe.send((method, arguments))
        return lambda: [self._answer(index, method) for index in range(len(self._pipes))]

    def _answer(self, index: int, method: str) -> Any:
        if not self._pipes[index].poll(ANSWER_S):
            raise TimeoutError(f"rank {index} did not answer to {method} within {ANSWER_S:g} s")
        answer = self._pipes[index].recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _obey(pipe: Connection, make: Callable[[int], Any], index: int) -> None:
    rank = make(index)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(rank, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again in the parent
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send(answer)


def endpoint_of(index: int) -> LinkEndpoint:
    """The links of one rank."""
    return LinkEndpoint("bench", f"n{index}", 1, SECRET)


def plan_of(
    name: str,
    addresses: Sequence[tuple[str, int]],
    members: Sequence[int],
    me: int,
    epoch: int = 1,
) -> GroupPlan:
    """A group's plan: `members` are ranks in slot order, `me` is one of them."""
    places = tuple(
        Member(slot, slot, f"n{rank}", 1, *addresses[rank]) for slot, rank in enumerate(members)
    )
    return GroupPlan(name, "bench", epoch, epoch, list(members).index(me), places)


def own_socket_inodes() -> set[str]:
    """Every socket that this process has open, by what the kernel calls it."""
    found: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            found.add(str(entry.readlink()))
    return {target for target in found if target.startswith("socket:")}

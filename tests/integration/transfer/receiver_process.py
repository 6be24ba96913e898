"""A process that takes in a state, in the way it is told, into memory that it has already.

Started by test_memory.py with the way and its arguments in JSON; says when it is ready, waits for a
line, and says the digest of what it then has.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.integration.transfer.source_process import image_of
from worker.transfer import Party, Source, StateImage, fetch


def touched(image: StateImage) -> StateImage:
    """The same image, every page of which is there and holds nothing."""
    for view in image.tensors:
        view.memory[:] = bytes(len(view.memory))
    return image


def from_sources(told: dict[str, Any]) -> Callable[[], str]:
    """From processes that offer: a leaver, or replicas, through the machine or the network."""
    into = touched(image_of(1, told["nbytes"]))
    sources = [
        Source("127.0.0.1", port, Party(node, 1), locally=told["locally"])
        for node, port in told["sources"]
    ]

    def go() -> str:
        fetch(
            sources,
            secret=bytes.fromhex(told["secret"]),
            job=told["job"],
            transition=told["transition"],
            joiner=Party("n9", 3),
            into=into,
        )
        return into.digest()

    return go


def way_of(told: dict[str, Any]) -> Callable[[], str]:
    """What takes in the state; what needs torch loads it."""
    if told["way"] == "sources":
        return from_sources(told)
    from tests.integration.transfer.kept_state import WAYS

    return WAYS[told["way"]](told)


def main() -> None:
    """Be ready, wait for the word, take it in."""
    told = json.loads(sys.argv[1])
    go = way_of(told)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"digest": go()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

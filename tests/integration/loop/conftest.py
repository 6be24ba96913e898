"""Fleets of real training processes for the loop's tests, and what undisturbed runs end with."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statemachine import events as e
from tests.integration.loop.core_fleet import JOB, SCRIPT, CoreFleet, Machine
from tests.integration.loop.zygote import Zygote

SAMPLED = {
    "test_during_a_transition.py": 4,
    "test_each_point.py": 3,
    "test_failed_rehearsals.py": 3,
    "test_sources.py": 2,
    "test_same_run.py": 2,
    "test_sharded.py": 3,
    "test_causes.py": 3,
    "test_frozen.py": 3,
    "test_shrink.py": 3,
}
"""Walks of which an ordinary run takes one case in so many, another each time; `make soak` all."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave most cases of the long walks to `make soak`; the seed picks those that stay."""
    if config.getoption("lf", default=False):
        return  # what failed is tried again, whatever this run's turn would be
    everything = config.option.markexpr == "soak"
    seed = config.getoption("randomly_seed", 0)
    turn = seed if isinstance(seed, int) else 0
    for name, share in SAMPLED.items():
        walk = sorted((i for i in items if i.path.name == name), key=lambda item: item.nodeid)
        for index, item in enumerate(walk):
            if everything or (index + turn) % share:
                item.add_marker(pytest.mark.soak)


Launch = Callable[..., "Awaitable[CoreFleet]"]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Any]:
    """A process with torch loaded, to fork training processes from."""
    one = Zygote()
    yield one
    one.close()


@pytest.fixture
async def launch(zygote: Any, tmp_path: Path) -> AsyncIterator[Launch]:
    """A function that launches a fleet of real training processes."""
    fleets: list[CoreFleet] = []

    async def start(
        *,
        nodes: int = 4,
        standbys: int = 1,
        steps: int = 20,
        axes: dict[str, int] | None = None,
        extra: list[str] | None = None,
        knobs: dict[str, Any] | None = None,
        script: Path = SCRIPT,
        machines: dict[str, Machine] | None = None,
        more: dict[str, Any] | None = None,
    ) -> CoreFleet:
        folder = tmp_path / f"fleet{len(fleets)}"
        folder.mkdir()
        declared = e.JobDeclared(
            job=JOB,
            axes=axes or {"dp": nodes},
            standbys=standbys,
            seed=7,
            steps=steps,
            **(more or {}),
        )
        fleet = CoreFleet(zygote, folder, declared, extra or [], script)
        fleets.append(fleet)
        fleet.machines = machines or {}
        if knobs:
            fleet.say(e.PolicyChanged(version=1, knobs=knobs, by="test"))
        fleet.say(fleet.declared)
        for index in range(nodes + standbys):
            await fleet.start(f"n{index}")
        return fleet

    try:
        yield start
    finally:
        for fleet in fleets:
            await fleet.stop()


class Calm(dict[tuple[int, int, tuple[str, ...]], tuple[str, dict[tuple[int, int], set[float]]]]):
    """What uninterrupted runs ended with, by nodes, steps and arguments: each is run once."""


@pytest.fixture(scope="session")
def calm_runs() -> Calm:
    """The uninterrupted runs of this session."""
    return Calm()


@pytest.fixture
def calm(launch: Launch, calm_runs: Calm) -> Callable[..., Any]:
    """Digest and losses of a run that nobody disturbs."""

    async def run(nodes: int, steps: int, **more: Any) -> Any:
        key = (nodes, steps, (str(sorted(more.items(), key=str)),))
        if key not in calm_runs:
            fleet = await launch(nodes=nodes, standbys=0, steps=steps, **more)
            digest = await fleet.digest(60.0 + 0.1 * steps)  # a busy machine is no failure
            calm_runs[key] = digest, fleet.losses()
            await fleet.stop()
        return calm_runs[key]

    return run

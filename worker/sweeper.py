"""Rounds of a sweep, measured by probe children; numbers only, the judgement is the controller's.

What belongs here: starting probes (`worker.probes`) as children that can be killed, and turning
what they print into the fact that a round was measured. Nothing here knows what a good number is:
a probe that crashes, hangs or prints nonsense is a failure text with no measurements, which the
controller takes as inconclusive, never as a pass.

Theory of operation. A probe runs in a child because it may hang on broken hardware, niced because
a training run may go on beside it: on a node in duty it works a small share of its time, from its
first import on, and leaves GPUs alone, which are the run's. A partner's half of a link probe is a
child too, started by the agent when somebody connects to the probe port (as inetd did with
``wait``): while no sweep runs, nothing runs, and no measurement shares the agent's event loop.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

import anyio
import msgspec

from statemachine.events import AnyEvent, SweepRequested, SweepRoundFinished
from statemachine.sweep import PAIR, REFERENCE, SOLO, THIRD
from worker.agent_facts import now_ms
from worker.gauges.sampler import GPUS_VARIABLE
from worker.supervise import Child

log = logging.getLogger("worker.agent")

ALONE: Final = ("compute", "memory")
"""Probes of a node alone, and of its partner as a reference."""

TOGETHER: Final = ("link", "collective")
"""Probes of a node and its partner, or a third party."""

_DEVICES: Final = ("device",)

BUDGET_S: Final = {
    "compute": 1.0,
    "memory": 1.0,
    "device": 5.0,
    "link": 1.0,
    "collective": 1.0,
}
"""Seconds of measuring that each probe gets, unless `BUDGET_VARIABLE` says otherwise."""

BUDGET_VARIABLE: Final = "CHANGEOVER_PROBE_BUDGET_S"
"""Environment variable: seconds of measuring that each probe gets; a demo is in a hurry."""

SHARE_BESIDE: Final = 0.03
"""Share of its time that a probe works where a node in duty takes part: the partner, by itself and
at the other end, from the start of the probe to its end. The swept node is out of the run, and
works all the time: some faults show under load alone."""

SHARE_VARIABLE: Final = "CHANGEOVER_PROBE_SHARE"
"""Environment variable: another share; a demo is in a hurry."""

SHARE_MIN: Final = 0.001

START_S: Final = 20.0
"""Seconds that a probe gets on top to start and to end: torch may have to be imported."""

WORK_S: Final = 1.0
"""Processor time that a probe which rests may take in all; it takes a third of that."""

NICENESS: Final = 5
"""Niceness of a probe: it yields to a training step, but not so much that it measures the queue."""

ECHO_S: Final = 60.0
"""Longest life of a partner's half of a link probe."""

_OUTPUT_BYTES_MAX: Final = 64 * 1024


class RoundFailed(Exception):
    """A round gave no measurements; the message says why."""


class Sweeper:
    """Measures rounds; `state` takes the facts, partners know each other by `secret_path`, and
    `in_duty` says whether a run goes on in this node meanwhile.
    """

    def __init__(
        self,
        state: Callable[[AnyEvent], None],
        secret_path: Path,
        in_duty: Callable[[], bool] = lambda: False,
    ) -> None:
        self._state = state
        self._secret_path = secret_path
        self._in_duty = in_duty
        self._one_at_a_time = anyio.Lock()

    async def run(self, sweep: SweepRequested, name: str) -> None:
        """Measure one round and state the result; cancelled, it leaves no child."""
        measurements: dict[str, float] = {}
        failure = ""
        async with self._one_at_a_time:
            log.info("sweep %d: measuring round %s", sweep.sweep, name)
            try:
                measurements = await self._measure(sweep, name)
            except RoundFailed as failed:
                failure = str(failed)
                log.warning("sweep %d: round %s: %s", sweep.sweep, name, failure)
        finished = SweepRoundFinished(
            sweep=sweep.sweep,
            node=sweep.node,
            incarnation=sweep.incarnation,
            round=name,
            measurements=measurements,
            failure=failure,
            partner=sweep.partner,
        )
        self._state(finished)

    async def _measure(self, sweep: SweepRequested, name: str) -> dict[str, float]:
        probes, arguments = _probes_of(sweep, name, in_duty=self._in_duty())
        longest_s = max(BUDGET_S[probe] for probe in probes)
        share = _share() if self._in_duty() or name in (PAIR, THIRD) else 1.0
        limit_s = START_S + longest_s * len(probes) + WORK_S * (1 / share - 1)
        if sweep.deadline_at_ms:
            limit_s = min(limit_s, (sweep.deadline_at_ms - now_ms()) / 1000)
        if limit_s <= 0:
            raise RoundFailed(f"no time left for the {_listed(probes)} probe")
        budget = os.environ.get(BUDGET_VARIABLE, f"{longest_s:g}")
        known = ("--secret-file", str(self._secret_path), "--share", f"{share:g}")
        command = _command(probes, ("--budget-s", budget, "--json", *known, *arguments))
        return await run_probe(_listed(probes), command, limit_s)


def _probes_of(
    sweep: SweepRequested, name: str, *, in_duty: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The probes of a round, which one child measures, and their arguments."""
    if name in (SOLO, REFERENCE):
        return (*ALONE, *_DEVICES) if _expects_gpus() and not in_duty else ALONE, ()
    if name in (PAIR, THIRD):
        if not sweep.partner_port:
            raise RoundFailed("the partner has no probe port")
        return TOGETHER, ("--host", sweep.partner_host, "--port", str(sweep.partner_port))
    raise RoundFailed(f"this agent knows no round {name!r}")


def _share() -> float:
    """The share of its time that a probe works beside a run."""
    try:
        share = float(os.environ.get(SHARE_VARIABLE, ""))
    except ValueError:
        return SHARE_BESIDE
    return share if SHARE_MIN <= share <= 1 else SHARE_BESIDE


def _expects_gpus() -> bool:
    """Whether this node should have GPUs: then a sweep that finds none has measured nothing."""
    return os.environ.get(GPUS_VARIABLE, "0") not in ("", "0")


def _listed(probes: Sequence[str]) -> str:
    return " and ".join(probes)


async def run_probe(probe: str, command: Sequence[str], limit_s: float) -> dict[str, float]:
    """Run a probe in a child and return its numbers; at most `limit_s` seconds.

    The last line that `command` prints is the measurements, as one JSON object of numbers.

    Raises:
        RoundFailed: it crashed, ran too long, or printed something else than numbers.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = Child.start(command, stdout=output, stderr=errors, niceness=NICENESS)
        except OSError as error:
            raise RoundFailed(f"the {probe} probe cannot be started: {error.strerror}") from error
        try:
            with anyio.move_on_after(limit_s) as scope:
                await child.wait()
        finally:
            child.kill()
        if scope.cancelled_caught or child.exit is None:
            raise RoundFailed(f"the {probe} probe took over {limit_s:.0f} s and was killed")
        if not child.exit.is_clean:
            last = _last_line(errors).decode(errors="replace") or "no word"
            raise RoundFailed(f"the {probe} probe ended with {child.exit}: {last}")
        return _numbers(probe, _last_line(output))


def _last_line(file: IO[bytes]) -> bytes:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _OUTPUT_BYTES_MAX))
    return file.read().strip().rpartition(b"\n")[2]


def _command(probes: Sequence[str], arguments: Sequence[str]) -> list[str]:
    named = [word for probe in probes for word in ("--probe", probe)]
    return [sys.executable, "-m", "worker.probes", *named, *arguments]


def _numbers(probe: str, line: bytes) -> dict[str, float]:
    try:
        found = msgspec.json.decode(line, type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise RoundFailed(f"the {probe} probe printed no measurements: {error}") from error
    if not found or not all(math.isfinite(value) for value in found.values()):
        raise RoundFailed(f"the {probe} probe measured nothing: {found}")
    return found


# --- the partner's half -----------------------------------------------------------------------


class ProbePort:
    """A listening port whose callers are served by a child, one at a time, if they prove that they
    know the secret. `in_duty` says whether a run goes on beside it.
    """

    def __init__(
        self, listener: socket.socket, secret_path: Path, in_duty: Callable[[], bool]
    ) -> None:
        self._listener = listener
        self._secret_path = secret_path
        self._in_duty = in_duty

    @property
    def port(self) -> int:
        """Where partners connect."""
        port = self._listener.getsockname()[1]
        assert isinstance(port, int)
        return port

    @classmethod
    @asynccontextmanager
    async def open(
        cls, host: str, secret_path: Path, in_duty: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[ProbePort]:
        """Listen at a free port of `host` while the body runs.

        Raises:
            OSError: the address is not this machine's.
        """
        with socket.create_server((host, 0)) as listener:
            listener.setblocking(False)
            port = cls(listener, secret_path, in_duty)
            async with anyio.create_task_group() as group:
                group.start_soon(port._serve)
                yield port
                group.cancel_scope.cancel()

    async def _serve(self) -> None:
        """Start a child whenever somebody calls; it accepts, serves until idle, and ends."""
        while True:
            await anyio.wait_readable(self._listener)
            number = self._listener.fileno()
            known = ["--secret-file", str(self._secret_path)]
            if self._in_duty():
                known += ["--share", f"{_share():g}"]
            command = _command(("echo",), ("--listen-fd", str(number), *known))
            with open(os.devnull, "wb") as nowhere:  # noqa: ASYNC230, PTH123 - a device, at once
                child = Child.start(
                    command,
                    stdout=nowhere,
                    stderr=nowhere,
                    pass_fds=(number,),
                    niceness=NICENESS,
                )
            try:
                with anyio.move_on_after(ECHO_S):
                    await child.wait()
            finally:
                child.kill()
                with anyio.CancelScope(shield=True):
                    await child.wait()
            if child.exit is None or not child.exit.is_clean:
                log.warning("the echo of a link probe ended with %s", child.exit or "its deadline")
                self._turn_away()

    def _turn_away(self) -> None:
        """Drop a caller whom no child served, lest it be served by a failing child forever."""
        with suppress(OSError):
            self._listener.accept()[0].close()

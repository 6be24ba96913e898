"""The agent of one node: `python -m worker.agent ... -- python train.py`.

The composition root: command line, store, signals, and one incarnation after the other. It holds
the node's lease and runs its training process; it is a process of its own so that a training step
that hangs, or holds the interpreter's lock for seconds, does not cost the lease. No torch.

Exit codes: 0 the job finished, or the agent was asked to stop; 1 failure; 2 usage; 3 fenced.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from controlplane.eventlog import (
    EventLog,
    EventLogError,
    NodeAlreadyAlive,
    NodeSession,
    NoSpace,
    OutcomeUnknown,
    Retry,
    Store,
    open_store,
)
from controlplane.eventlog.etcd_url import parse_url
from controlplane.eventlog.promptness import be_prompt
from controlplane.eventlog.silence import why_silent
from statemachine.errors import SchemaTooNew, UsageError
from worker.agent_node import End, EndKind, NodeLife
from worker.agent_settings import AgentSettings, log_level, parse_arguments
from worker.relapses import Relapses
from worker.supervise import adopt_orphans
from worker.sweeper import ProbePort

log = logging.getLogger("worker.agent")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_FENCED: Final = 3

REJOIN_PAUSES_S: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Pauses before joining anew, by the number of crashes in a row; the last one repeats."""

_RETRY_S: Final = 0.5


class Stopped(Exception):
    """The agent was asked to stop before it had joined."""


class Agent:
    """Serves one node, incarnation after incarnation, on a store that is open."""

    def __init__(self, settings: AgentSettings, store: Store, stop: anyio.Event) -> None:
        self._settings = settings
        self._event_log = EventLog(store, settings.fleet)
        self._stop = stop
        self._life: NodeLife | None = None

    def _in_duty(self) -> bool:
        return self._life is not None and self._life.in_duty

    async def serve(self) -> int:
        """Return an exit code; what led to it was logged."""
        opened = ProbePort.open(self._settings.host, self._settings.secret_path, self._in_duty)
        async with opened as probes:
            relapses = Relapses()
            reached = -1
            while True:
                session = await self._join(probes)
                log.info("joined as incarnation %d", session.incarnation)
                self._life = NodeLife(self._settings, self._event_log, session, probes, reached)
                began_at = anyio.current_time()
                end = await self._life.run(self._stop)
                relapses.heed(end, anyio.current_time() - began_at)
                code = self._exit_code(end, relapses.hopeless())
                if code is not None:
                    return code
                log.warning("%s; joining anew", end.reason)
                reached = -1 if end.kind is EndKind.ASSIGNED else end.reached
                if end.kind is EndKind.ASSIGNED:
                    self._settings = self._settings.serving(end.job)
                await pause(self._stop, pause_after(relapses.crashes))

    def _exit_code(self, end: End, hopeless: str) -> int | None:
        """The code to exit with; None to join anew."""
        if end.kind in (EndKind.FINISHED, EndKind.STOPPED):
            log.info("left: %s", end.reason)
            return EXIT_OK
        if end.kind is EndKind.ASSIGNED:
            return None
        may_rejoin = self._settings.rejoin and end.kind is not EndKind.FAILED
        if may_rejoin and not hopeless:
            return None
        given_up = f"; given up: {hopeless}" if may_rejoin else ""
        hint = f"; see {self._settings.log_path}" if end.kind is EndKind.CRASHED else ""
        log.error("%s: %s%s%s", end.kind, end.reason, given_up, hint)
        return EXIT_FENCED if end.kind is EndKind.FENCED else EXIT_FAILED

    async def _join(self, probes: ProbePort) -> NodeSession:
        """Take the next incarnation; wait for an earlier one's lease to end."""
        policy = self._settings.policy
        record = msgspec.json.encode({"host": self._settings.host, "pid": os.getpid()})
        patience_s = max(self._settings.patience_s, 2 * policy.lease_ttl_s)
        give_up_at = anyio.current_time() + patience_s
        told = False
        while True:
            try:
                return await self._event_log.join(
                    self._settings.node,
                    record,
                    policy.lease_ttl_s,
                    policy.self_fence_s / policy.lease_ttl_s,
                )
            except (NodeAlreadyAlive, Retry, OutcomeUnknown, NoSpace) as error:
                if anyio.current_time() >= give_up_at:
                    raise
                if not told:
                    log.warning("cannot join yet: %s", error)
                told = True
            await pause(self._stop, _RETRY_S)


def pause_after(crashes: int) -> float:
    """Seconds to wait before joining anew, after so many crashes in a row."""
    return REJOIN_PAUSES_S[min(crashes, len(REJOIN_PAUSES_S) - 1)]


async def pause(stop: anyio.Event, seconds: float) -> None:
    """Wait, but not beyond a wish to stop.

    Raises:
        Stopped: the agent was asked to stop.
    """
    with anyio.move_on_after(seconds):
        await stop.wait()
    if stop.is_set():
        raise Stopped


async def _open(settings: AgentSettings, stop: anyio.Event) -> Store:
    """Connect; a store that is not there yet gets as long as the settings say."""
    give_up_at = anyio.current_time() + settings.patience_s
    demo = os.environ.get("CHANGEOVER_DEMO") == "1"
    told = False
    while True:
        try:
            return await open_store(settings.etcd, settings.tls, demo=demo)
        except Retry as error:
            if anyio.current_time() >= give_up_at:
                raise
            if not told:
                ask = partial(why_silent, parse_url(settings.etcd), settings.tls)
                why = await anyio.to_thread.run_sync(ask)
                log.warning("waiting for the store: %s: %s: %s", error, why.words, why.cure)
            told = True
        await pause(stop, _RETRY_S)


async def _await_signals(stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("asked to stop by %s", number.name)
            stop.set()


async def run_agent(settings: AgentSettings) -> int:
    """Serve one node until it ends; return the exit code."""
    stop = anyio.Event()
    code = EXIT_OK
    async with anyio.create_task_group() as group:
        group.start_soon(_await_signals, stop)
        try:
            code = await _serve(settings, stop)
        except Stopped:
            log.info("stopped before it had joined")
        except (EventLogError, SchemaTooNew, OSError, ValueError) as error:
            log.error("failed: %s", error)
            code = EXIT_FAILED
        group.cancel_scope.cancel()
    return code


async def _serve(settings: AgentSettings, stop: anyio.Event) -> int:
    store = await _open(settings, stop)
    try:
        return await Agent(settings, store, stop).serve()
    finally:
        with anyio.move_on_after(1, shield=True), suppress(EventLogError):
            await store.aclose()


def _log_to_stderr(node: str) -> None:
    logging.basicConfig(
        level=log_level(),
        format=f"%(asctime)s.%(msecs)03d %(levelname)s agent {node}: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    try:
        settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        _log_to_stderr(settings.node)
    except UsageError as error:
        sys.stderr.write(f"changeover: agent: {error}\n")
        return EXIT_USAGE
    adopt_orphans()
    be_prompt()
    gc.freeze()  # what was imported is no garbage: looking through it would stall an answer
    return anyio.run(run_agent, settings)


if __name__ == "__main__":
    sys.exit(main())

"""The controller's composition root: a store, a leadership, a term; again until told to stop.

What belongs here: the order in which things begin and end. Losing a term is normal; whatever else
ends a term ends the controller, in one line.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from controlplane import journal
from controlplane.config import Settings
from controlplane.errors import StoreAbsent
from controlplane.eventlog import (
    Deposed,
    EventLog,
    EventLogError,
    HeadMoved,
    Leadership,
    NoSpace,
    OutcomeUnknown,
    Retry,
    open_store,
)
from controlplane.eventlog.etcd_url import parse_url
from controlplane.eventlog.opening import store_class
from controlplane.eventlog.silence import Silence, why_silent
from controlplane.eventlog.versions import judge_version
from controlplane.eventlog.view import running
from controlplane.leadership import Preview, win
from controlplane.outside import outside_of
from controlplane.plugins import Plugins, plugins_of
from controlplane.term import Term

if TYPE_CHECKING:
    from controlplane.metrics import Meters

OPEN_S = 3.0
"""How long the store may take to answer the first time, in seconds."""

RESIGN_S = 1.0
"""How long giving the leadership back may take, in seconds."""

PAUSE_S = 0.5
"""Pause after a campaign that the store did not answer, in seconds."""


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[EventLog]:
    """Open the fleet's log for as long as the body runs.

    Raises:
        StoreAbsent: nobody answers within `OPEN_S`; says why, as far as can be found out.
        UnsupportedServer: the store is too old.
        ValueError: the URL or a TLS file is wrong.
    """
    store_class(settings.client)  # loads it, before the clock runs
    try:
        with anyio.fail_after(OPEN_S):
            store = await open_store(
                settings.etcd, settings.tls, demo=settings.demo, client=settings.client
            )
    except (Retry, TimeoutError) as error:
        why = await silence_of(settings)
        raise StoreAbsent(
            f"no etcd answers at {settings.etcd} within {OPEN_S:.0f} s: {why.words}: {why.cure}"
        ) from error
    try:
        yield EventLog(store, settings.fleet)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def silence_of(settings: Settings) -> Silence:
    """Why the store does not answer, and the cure.

    Raises:
        ValueError: the URL or a TLS file is wrong.
    """
    ask = partial(why_silent, parse_url(settings.etcd), settings.tls)
    return await anyio.to_thread.run_sync(ask)


async def run_controller(settings: Settings, *, wait: bool = True) -> None:
    """Lead a fleet, or stand by to, until SIGTERM or SIGINT; then resign.

    Raises:
        LeaderPresent: `wait` is false, and another controller leads.
        StoreAbsent, UnsupportedServer, LogCorrupt, InvariantBroken, PermissionDenied.
    """
    async with opened(settings) as log, anyio.create_task_group() as group:
        group.start_soon(_until_signalled, group.cancel_scope)
        await _warn_of_version(log, settings)
        async with _paged(log, settings) as meters:
            await lead_again_and_again(log, settings, wait=wait, meters=meters)


@asynccontextmanager
async def _paged(log: EventLog, settings: Settings) -> AsyncIterator[Meters | None]:
    """Serve the page and the metrics beside the body, if the settings say where."""
    if not settings.listen:
        yield None
        return
    from controlplane.metrics import Meters
    from controlplane.web.serving import address_of, read_token, serving

    token = read_token(Path(settings.token_file) if settings.token_file else None)
    meters = Meters()
    async with serving(log, address_of(settings.listen), token=token, meters=meters):
        yield meters


async def run_page(settings: Settings, told: Callable[[str], None] = lambda _: None) -> None:
    """Serve the page alone until SIGTERM or SIGINT; `told` hears where.

    Raises:
        BadConfig: the address cannot be listened on, or the token file is wrong.
        StoreAbsent.
    """
    from controlplane.web.serving import address_of, read_token, serving

    token = read_token(Path(settings.token_file) if settings.token_file else None)
    async with opened(settings) as log, anyio.create_task_group() as group:
        group.start_soon(_until_signalled, group.cancel_scope)
        async with serving(log, address_of(settings.listen), token=token) as address:
            told(str(address))
            await anyio.sleep_forever()


async def _until_signalled(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            journal.note("stopping", signal=signal.Signals(number).name)
            scope.cancel()
            return


async def _warn_of_version(log: EventLog, settings: Settings) -> None:
    with suppress(Retry):
        info = await log.server_info()
        warning = judge_version(info.version, demo=settings.demo)
        if warning:
            journal.warn(warning, etcd=settings.etcd)


async def lead_again_and_again(
    log: EventLog,
    settings: Settings,
    *,
    wait: bool,
    meters: Meters | None = None,
    plugins: Plugins | None = None,
    on_term: Callable[[Term], None] = lambda _: None,
) -> None:
    """Campaign, lead, be deposed, campaign again; without end. `on_term` hears of each term.

    A store that is away or full ends a term, not the controller: training goes on meanwhile, and
    whoever brings the store back should not have to think of us.
    """
    plugins = plugins if plugins is not None else plugins_of(settings)
    preview = Preview(log)
    while True:
        if wait:
            journal.note("campaigning", controller=settings.controller, fleet=settings.fleet)
        try:
            async with running(preview.follow):
                leadership = await win(log, settings, wait=wait)
        except (Retry, OutcomeUnknown, NoSpace) as error:
            journal.warn("the campaign goes on", why=error)
            await anyio.sleep(PAUSE_S)
            continue
        journal.note("leading", controller=settings.controller, term=leadership.term)
        try:
            term = Term(
                log,
                leadership,
                knobs=settings.knobs,
                preview=preview,
                meters=meters,
                outside=outside_of(settings, meters),
                plugins=plugins,
            )
            on_term(term)
            await _lead(term, leadership, meters)
        except* (Deposed, HeadMoved, Retry, NoSpace) as over:
            journal.warn("the term is over", term=leadership.term, why=_first_of(over))
        wait = True


async def _lead(term: Term, leadership: Leadership, meters: Meters | None) -> None:
    try:
        await term.run()
    finally:
        if meters is not None:
            meters.leading.set(0)
        with anyio.move_on_after(RESIGN_S, shield=True), suppress(EventLogError):
            await leadership.resign()


def _first_of(group: BaseExceptionGroup[EventLogError]) -> BaseException:
    """The innermost first error of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

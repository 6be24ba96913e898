"""A sign of life to somebody outside: who does not hear it any more raises the alarm.

What belongs here: when the sign is given. It says that a controller leads *and* that its appends
are answered: a leader whose store is away stays silent, which is the point.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import anyio

from controlplane import journal
from controlplane.eventlog import EventLogError
from controlplane.hooks.delivering import NotDelivered, Request_, call
from controlplane.hooks.hook import Heartbeat


async def beat(
    heartbeat: Heartbeat,
    fleet: str,
    answers: Callable[[], Awaitable[object]],
    *,
    environment: Mapping[str, str] = os.environ,
) -> NoReturn:
    """Give a sign every `every_s` seconds, as long as `answers` returns, until cancelled."""
    url = environment[heartbeat.url_env] if heartbeat.url_env else heartbeat.url
    silent = False
    while True:
        try:
            with anyio.fail_after(heartbeat.timeout_s):
                await answers()
            request = Request_(
                url=url, body=b"", content_type="text/plain", key=f"{fleet}/heartbeat"
            )
            await call(request, heartbeat.timeout_s)
        except (EventLogError, TimeoutError, NotDelivered) as error:
            if not silent:
                journal.warn("the heartbeat is silent", why=type(error).__name__)
            silent = True
        else:
            silent = False
        await anyio.sleep(heartbeat.every_s)

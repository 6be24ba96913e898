"""What a term tells the world beside it: hooks, a heartbeat, the scheduler.

What belongs here: wiring. Each part listens to the log and has a task in the term's group; none of
them delays a turn, and none of their failures ends a term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from controlplane import journal

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from controlplane.config import Settings
    from controlplane.eventlog import EventLog
    from controlplane.hooks.hook import Heartbeat, Hook
    from controlplane.metrics import Meters
    from controlplane.provision.opening import ProvisionerSettings
    from controlplane.provision.port import Provisioner
    from controlplane.reconciler import Reconciler


class Outside(Struct, frozen=True, kw_only=True):
    """Who is told what during a term. `provisioner` stands for `scheduler` where one is at hand."""

    hooks: tuple[Hook, ...] = ()
    heartbeat: Heartbeat | None = None
    scheduler: ProvisionerSettings | None = None
    provisioner: Provisioner | None = None
    machine: str = "{host}"
    meters: Meters | None = None

    async def begin(
        self, group: TaskGroup, log: EventLog, reconciler: Reconciler, now_ms: int
    ) -> None:
        """Start telling; returns at once. `now_ms` is Unix time: what is old is not told again."""
        if self.hooks:
            await self._begin_hooks(group, log, reconciler, now_ms)
        if self.heartbeat is not None:
            from controlplane.hooks.heartbeat import beat

            group.start_soon(beat, self.heartbeat, log.fleet, log.head)
        self._begin_cordons(group, reconciler)

    async def _begin_hooks(
        self, group: TaskGroup, log: EventLog, reconciler: Reconciler, now_ms: int
    ) -> None:
        from controlplane.hooks.dispatch import Dispatcher
        from controlplane.metrics import Meters

        meters = self.meters if self.meters is not None else Meters()
        dispatcher = Dispatcher(log.fleet, self.hooks, meters)
        state = reconciler.state
        await dispatcher.begin(log, state.position, now_ms)
        reconciler.listeners.append(dispatcher.heard)
        group.start_soon(dispatcher.run)

    def _begin_cordons(self, group: TaskGroup, reconciler: Reconciler) -> None:
        from controlplane.provision.cordons import Cordons
        from controlplane.provision.opening import open_provisioner
        from controlplane.provision.port import ProvisionerError

        provisioner, machine = self.provisioner, self.machine
        if provisioner is None and self.scheduler is not None:
            machine = self.scheduler.machine
            try:
                provisioner = open_provisioner(self.scheduler)
            except ProvisionerError as error:
                journal.warn("no scheduler is told anything", why=error)
        if provisioner is None:
            return
        cordons = Cordons(provisioner, machine, lambda: reconciler.state)
        cordons.begin(reconciler.state)
        reconciler.listeners.append(cordons.heard)
        group.start_soon(cordons.run)


def outside_of(settings: Settings, meters: Meters | None) -> Outside:
    """What the settings say."""
    return Outside(
        hooks=settings.hooks,
        heartbeat=settings.heartbeat,
        scheduler=settings.provisioner,
        meters=meters,
    )

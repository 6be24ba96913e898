"""From ``[provisioner]`` of the settings file, or an entry point, to a provisioner.

    [provisioner]
    kind = "slurm"                    # slurm | kubernetes | exec | the name of an entry point
    machine = "{host}"                # the scheduler's name of a node: {node}, {host}, {label.NAME}
    context = "prod"                  # kubernetes: which context of the kubeconfig
    cordon = ["site-drain", "{machine}", "{reason}"]     # exec: one command line per verb

A provisioner of one's own is a callable under the entry point group ``changeover.provisioners``; it
is given the table and returns an object with the four verbs of `port.Provisioner`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from controlplane.errors import BadConfig
from controlplane.provision.commands import CommandLines, ExecProvisioner
from controlplane.provision.kubernetes import connect
from controlplane.provision.port import Provisioner
from controlplane.provision.slurm import SlurmProvisioner

GROUP: Final = "changeover.provisioners"
KINDS: Final = ("exec", "kubernetes", "slurm")


class ProvisionerSettings(Struct, frozen=True, kw_only=True):
    """What the settings say of the scheduler; `table` has all of it."""

    kind: str
    machine: str = "{host}"
    table: dict[str, Any] = field(default_factory=dict)


def settings_of(table: Any, source: str) -> ProvisionerSettings:
    """Read and check ``[provisioner]``.

    Raises:
        BadConfig: names the field, the value and what is allowed.
    """
    if not isinstance(table, dict) or not isinstance(table.get("kind"), str):
        raise BadConfig(f"{source}: provisioner", table, "needs kind = slurm, kubernetes or exec")
    kind, rest = table["kind"], {k: v for k, v in table.items() if k not in ("kind", "machine")}
    if kind not in (*KINDS, *entry_points(group=GROUP).names):
        allowed = ", ".join(sorted({*KINDS, *entry_points(group=GROUP).names}))
        raise BadConfig(f"{source}: provisioner.kind", kind, f"must be one of {allowed}")
    if kind == "exec":
        try:
            msgspec.convert(rest, CommandLines)
        except msgspec.ValidationError as error:
            raise BadConfig(f"{source}: provisioner", sorted(rest), str(error)) from error
    return ProvisionerSettings(kind=kind, machine=str(table.get("machine", "{host}")), table=rest)


def open_provisioner(settings: ProvisionerSettings) -> Provisioner:
    """The provisioner that the settings name.

    Raises:
        ProvisionerError: it cannot be reached at all.
    """
    match settings.kind:
        case "exec":
            return ExecProvisioner(msgspec.convert(settings.table, CommandLines))
        case "slurm":
            return SlurmProvisioner(**settings.table)
        case "kubernetes":
            return connect(**settings.table)
        case _:
            (entry,) = entry_points(group=GROUP, name=settings.kind)
            made: Provisioner = entry.load()(settings.table)
            return made

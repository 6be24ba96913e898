"""`changeover init`: certificates, users and roles for a fleet, so that etcd asks who one is."""

import json
from pathlib import Path

import anyio
import click
from msgspec.structs import replace

from controlplane.access import ROOT, User
from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings
from controlplane.eventlog.etcd_url import TlsFiles


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover init pki --fleet lab --node n0 --node n1 --host etcd.example",
        "changeover init pki --fleet lab --etcd https://etcd.example:2379 --apply",
    ),
)
@fleet_options()
@json_option
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="a user for this node alone; none: one user for all nodes",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME|ADDRESS",
    help="what etcd is called in its certificate, beside this machine's loopback",
)
@click.option("--days", default=825, show_default=True, type=click.IntRange(1, 9000))
@click.option("--apply", "applied", is_flag=True, help="make users and roles in etcd now")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def init(
    settings: Settings,
    *,
    as_json: bool,
    nodes: tuple[str, ...],
    hosts: tuple[str, ...],
    days: int,
    applied: bool,
    folder: Path,
) -> None:
    """Make certificates in DIR, and users and roles in etcd, one for each kind of process.

    Without --apply, prints what whoever administers etcd types. Run it again to add nodes: what is
    there stays. With --apply, --etcd must speak TLS and trust DIR/ca.pem; DIR/root.pem asks, unless
    --cert and --key say otherwise. In the end etcd asks everybody who they are.
    """
    from controlplane.access import commands_of, users_of
    from controlplane.certificates import LOOPBACK, Authority

    users = users_of(settings.fleet, nodes)
    if applied:
        from controlplane.granting import check_speaks_tls

        check_speaks_tls(settings.etcd)
    names = tuple(dict.fromkeys((*LOOPBACK, *hosts)))
    made = Authority(folder, days).make(users, names)
    commands = commands_of(users)
    if applied:
        anyio.run(_apply, _as_root(settings, folder), users)
    if as_json:
        told = {"made": made, "applied": applied, "users": [user.name for user in users]}
        print(json.dumps(told if applied else told | {"commands": commands}))
        return
    print(f"{folder}: {', '.join(made) if made else 'everything was there'}")
    if applied:
        print(f"etcd asks who one is; fleet {settings.fleet} has {_list(users)}")
    else:
        print("# etcd trusts ca.pem and shows server.pem; then, as its administrator:")
        print("\n".join(commands))


def _list(users: tuple[User, ...]) -> str:
    return ", ".join(user.name for user in users)


def _as_root(settings: Settings, folder: Path) -> Settings:
    """Settings that speak as etcd's root, where no certificate was named."""
    given = settings.tls or TlsFiles()
    files = TlsFiles(
        ca=given.ca or str(folder / "ca.pem"),
        cert=given.cert or str(folder / f"{ROOT}.pem"),
        key=given.key or str(folder / f"{ROOT}.key"),
        server_name=given.server_name,
    )
    return replace(settings, tls=files, client="thin")


async def _apply(settings: Settings, users: tuple[User, ...]) -> None:
    from controlplane.granting import check_asks, grant_all
    from controlplane.server import opened

    files = settings.tls or TlsFiles()
    await check_asks(settings.etcd, files.ca, files.server_name)
    async with opened(settings) as log:
        await grant_all(log.store, users)

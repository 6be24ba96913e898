"""`changeover demo`: train, lose a machine, find a grey one, go on; all on this machine, for real.

What belongs here: knobs, signals, and what is printed. What happens is `controlplane.demo`.

Signals are taken over before anything is started: SIGINT, SIGTERM and SIGHUP end the demo in order,
with everything that it started, and leave the log.
"""

from __future__ import annotations

import signal
import sys
from math import prod
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from controlplane.cli.failing import FAILED, INTERRUPTED
from controlplane.cli.options import CONTEXT, examples
from controlplane.config import Settings
from controlplane.demo.options import GREY_KINDS, TRAIN_S, DemoOptions, Faults, faults_for
from controlplane.demo.shape import shape_of

_DEFAULTS = DemoOptions()


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover demo",
        "changeover demo --faults kill --no-baseline",
        "changeover demo --faults grey --grey-kind link",
        "changeover demo --nodes 6 --standbys 2 -- --layers 2 --batch 4",
        "changeover demo --layout pp=3,dp=2",
        "changeover demo --scenario scenarios/live.toml",
        "changeover demo --json --data ~/corpus --seed 7 > outcome.json",
    ),
)
@click.option(
    "--nodes",
    type=int,
    metavar="N",
    help=f"nodes that train, data parallel  [default: {_DEFAULTS.nodes}]",
)
@click.option(
    "--layout",
    metavar="AXES",
    help="pipeline stages, parts of a layer, replicas, such as pp=3,dp=2  [default: replicas only]",
)
@click.option(
    "--standbys",
    type=int,
    default=_DEFAULTS.standbys,
    show_default=True,
    metavar="N",
    help="nodes that stand by",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="optimizer steps of the job  [default: what this machine takes in --train-s]",
)
@click.option(
    "--train-s",
    type=float,
    default=TRAIN_S,
    show_default=True,
    metavar="S",
    help="seconds that a run takes if --steps says nothing",
)
@click.option(
    "--faults",
    type=click.Choice([each.value for each in Faults]),
    help="which nodes are hurt  [default: both; kill where a stage has too few peers for grey]",
)
@click.option(
    "--grey-kind",
    type=click.Choice(GREY_KINDS),
    default=GREY_KINDS[0],
    show_default=True,
    help="what is slow of the grey node: all its work, its memory, its links, or its input",
)
@click.option(
    "--grey-factor",
    type=click.FloatRange(1.05, 100.0),
    help="how many times as long that takes  [default: 1.4, of links 10]",
)
@click.option(
    "--scenario",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="play a scenario of simctl: its job, standbys, seed and faults",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="file or folder of text  [default: this Python's standard library]",
)
@click.option(
    "--seed",
    type=int,
    default=_DEFAULTS.seed,
    show_default=True,
    metavar="N",
    help="of weights and data order; also picks who is hurt",
)
@click.option(
    "--etcd", metavar="URL", default="", help="an etcd that runs already  [default: start one]"
)
@click.option(
    "--etcd-port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="port of the etcd to start  [default: a free one]",
)
@click.option("--name", metavar="NAME", help="write to runs/NAME  [default: runs/demo-<number>]")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="write to DIR, which must not exist",
)
@click.option("--keep", is_flag=True, help="keep etcd's data (or the fleet's keys in --etcd)")
@click.option("--no-baseline", is_flag=True, help="do not measure a torchrun restart")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print one JSON object at the end; progress goes to stderr",
)
@click.argument("training", nargs=-1, metavar="[-- TRAINING...]")
@click.pass_context
def demo(context: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Train a small transformer on a local fleet, hurt two nodes, and do not stop.

    Starts an etcd, a controller, and nodes as processes of their own. A third in, an active node is
    killed and a warm standby takes its place; two thirds in, another turns slow and is found,
    replaced without losing a step, measured, and taken back. In the end: what each incident cost,
    beside a torchrun restart, and whether the final weights equal those of an uninterrupted run.

    Needs no root, no GPU and no network once the environment is there. Ctrl-C stops everything.
    What stands behind -- goes to the training script (examples/train_gpt.py --help).
    """
    options = _options(given)
    code = anyio.run(_run, options, as_json)
    context.exit(code)


def _options(given: dict[str, Any]) -> DemoOptions:
    """Knobs as the demo takes them.

    Raises:
        UsageError: they contradict each other, or name what is not there.
    """
    name, run_dir = given.pop("name"), given.pop("run_dir")
    if name is not None:
        if run_dir is not None:
            raise click.UsageError("--name and --run-dir both say where to write: give one")
        if "/" in name or name in ("", ".", ".."):
            raise click.UsageError(f"--name {name!r}: a plain name; --run-dir takes a path")
        run_dir = _DEFAULTS.runs / name
    if given["training"] and not given["training"][0].startswith("-"):
        word = given["training"][0]
        raise click.UsageError(
            f"unexpected argument {word!r}; what is for the training goes behind --"
        )
    if given["etcd"]:
        _check_url(given["etcd"])
    given["steps"] = given["steps"] or 0
    if given["scenario"] is not None:
        return _campaign(given, run_dir)
    axes = _axes(given.pop("layout"), given["nodes"])
    given["nodes"] = prod(axes.values())
    given["layout"] = tuple(axes.items())
    wanted = given.pop("faults")
    faults = Faults(wanted) if wanted else faults_for(axes)
    baseline = not given.pop("no_baseline")
    return DemoOptions(faults=faults, baseline=baseline, run_dir=run_dir, **given)


def _campaign(given: dict[str, Any], run_dir: Path | None) -> DemoOptions:
    """Knobs of a demo whose job and faults a scenario says.

    Raises:
        BadDemo: it cannot be played here.
        UsageError: something else says what the scenario does.
    """
    from controlplane.demo.campaign import options_of, read_campaign

    if any(given[name] for name in ("layout", "nodes", "faults", "steps", "grey_factor")):
        raise click.UsageError("--scenario says the layout, the faults and when it ends")
    kept = {name: given[name] for name in ("data", "etcd", "etcd_port", "keep", "training")}
    told = options_of(read_campaign(given["scenario"]), given["scenario"])
    return DemoOptions(faults=Faults.NONE, baseline=False, run_dir=run_dir, **kept, **told)


def _axes(layout: str | None, nodes: int | None) -> dict[str, int]:
    """The job's axes from --layout or --nodes.

    Raises:
        UsageError: they contradict each other, or the layout is none.
    """
    if layout is None:
        return {"dp": _DEFAULTS.nodes if nodes is None else nodes}
    axes = shape_of(layout)
    count = prod(axes.values())
    if nodes not in (None, count):
        raise click.UsageError(f"--layout {layout} has {count} nodes, --nodes says {nodes}")
    return axes


def _check_url(url: str) -> None:
    from controlplane.eventlog.etcd_url import parse_url

    try:
        parse_url(url)
    except ValueError as error:
        raise click.UsageError(f"--etcd: {error}") from error


async def _run(options: DemoOptions, as_json: bool) -> int:
    """Run the demo; return the exit code."""
    from controlplane.demo import play as whole
    from controlplane.demo.live import Screen

    screen = Screen()
    record: whole.Record | None = None
    number = 0

    async def until_signalled(scope: anyio.CancelScope) -> None:
        nonlocal number
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for received in signals:
                if not number:
                    screen.say(f"{signal.Signals(received).name}: stopping everything")
                    number = received
                scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(until_signalled, group.cancel_scope)
        await anyio.lowlevel.checkpoint()
        if options.etcd:
            await _check_store(options.etcd)
        record = whole.Record(options, await whole.open_folder(options))
        await whole.play(record, screen)
        group.cancel_scope.cancel()
    if record is None:
        return INTERRUPTED
    return _tell(record.outcome, screen, as_json, number)


async def _check_store(url: str) -> None:
    """Refuse a store that does not answer or is too old, before a folder is made.

    Raises:
        StoreAbsent, UnsupportedServer.
    """
    from controlplane.server import opened

    async with opened(Settings(etcd=url, demo=True)):
        pass


def _tell(outcome: Any, screen: Any, as_json: bool, number: int) -> int:
    """Print how it ended; return the exit code."""
    from controlplane.demo.tables import show

    if number:
        outcome.ok, outcome.error = False, f"interrupted by {signal.Signals(number).name}"
    elif (outcome.claims or outcome.incidents) and not as_json:
        show(outcome, screen.console)
    for line in outcome.failures:
        print(f"changeover: demo: {line}", file=sys.stderr)
    print(f"log: {outcome.log}", file=sys.stderr)
    print(f"report: {outcome.report}", file=sys.stderr)
    if as_json:
        print(msgspec.json.encode(outcome).decode(), flush=True)
    if number:
        return INTERRUPTED
    return 0 if outcome.ok else FAILED

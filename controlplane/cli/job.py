"""`changeover job`: declare and stop training jobs."""

import click

from controlplane.cli.acts import by_option, perform
from controlplane.cli.options import CONTEXT, examples, fleet_options, json_option
from controlplane.config import Settings
from statemachine import events as e
from statemachine.errors import BadLayout, BadName
from statemachine.ids import JobId, check_name
from statemachine.layout import Layout

AXES_HELP = "outermost first; again, or with commas, for more"


@click.group(context_settings=CONTEXT)
def job() -> None:
    """Declare and stop jobs."""


def _pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """``dp=4,tp=2`` or ``dp=4`` several times, in the order given."""
    found: dict[str, str] = {}
    for pair in ",".join(given).split(",") if given else ():
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param=parameter)
        if name in found:
            raise click.BadParameter(f"{name!r} is named twice", param=parameter)
        found[name] = value
    return found


def _sizes(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, int]:
    sizes = {}
    for name, value in _pairs(context, parameter, given).items():
        if not value.isascii() or not value.isdigit():
            raise click.BadParameter(f"{name}={value}: a size is a whole number", param=parameter)
        sizes[name] = int(value)
    return sizes


@job.command(
    context_settings=CONTEXT,
    epilog=examples(
        "changeover job declare --axes dp=4 --standbys 1",
        "changeover job declare big --axes pp=4,dp=8,tp=8 --ranks-per-node 8 --group dpcp=dp+cp",
    ),
)
@fleet_options()
@json_option
@by_option
@click.option(
    "--axes", multiple=True, required=True, callback=_sizes, metavar="NAME=SIZE", help=AXES_HELP
)
@click.option("--ranks-per-node", default=1, type=click.IntRange(1), show_default=True)
@click.option("--group", "groups", multiple=True, callback=_pairs, metavar="NAME=AXIS+AXIS")
@click.option(
    "--replica-axis",
    default="dp",
    show_default=True,
    help="along which ranks hold equal state; '' if none do (a sharded optimizer)",
)
@click.option("--standbys", default=0, type=click.IntRange(0), show_default=True)
@click.option("--seed", default=0, type=int, show_default=True)
@click.option("--steps", default=0, type=click.IntRange(0), help="0: until told to stop")
@click.argument("name", default="job")
def declare(
    settings: Settings,
    *,
    name: str,
    axes: dict[str, int],
    ranks_per_node: int,
    groups: dict[str, str],
    replica_axis: str,
    standbys: int,
    seed: int,
    steps: int,
    by: str,
    as_json: bool,
) -> None:
    """Declare a job: its axes with their sizes, and how many standbys it should have.

    It is launched as soon as enough nodes are ready.
    """
    named = {group: tuple(joined.split("+")) for group, joined in groups.items()}
    try:
        check_name("job", name)
        layout = Layout.of(
            axes, ranks_per_node=ranks_per_node, groups=named, replica_axis=replica_axis
        )
    except (BadName, BadLayout) as error:
        raise click.UsageError(str(error)) from error
    event = e.JobDeclared(
        job=JobId(name),
        axes=axes,
        ranks_per_node=ranks_per_node,
        groups=named,
        replica_axis=replica_axis,
        standbys=standbys,
        seed=seed,
        steps=steps,
        by=by,
    )
    words = f"job {name}: {layout.world_size} ranks on {layout.slot_count} nodes"
    perform(settings, by, event, words, as_json=as_json)


@job.command(
    context_settings=CONTEXT,
    epilog=examples("changeover job stop", "changeover job stop big --comment 'loss diverged'"),
)
@fleet_options()
@json_option
@by_option
@click.option("--comment", default="", help="why; kept in the log")
@click.argument("name", default="job")
def stop(settings: Settings, *, name: str, by: str, comment: str, as_json: bool) -> None:
    """Stop a job at a step boundary that its ranks agree on, with no step lost.

    The training scripts leave their step loop as after the last step.
    """
    event = e.JobStopRequested(job=JobId(name), by=by, comment=comment)
    perform(settings, by, event, f"job {name} stops at the next boundary", as_json=as_json)

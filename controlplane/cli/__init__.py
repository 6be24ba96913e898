"""`changeover`: the command line of the control plane.

What belongs here: which verbs there are, and where each lives. A verb is imported when it is asked
for, so that `changeover --help` is there at once and no verb pays for another.
"""

import importlib
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from controlplane.cli.failing import run_to_exit

VERBS: Final = {
    "agent": ("controlplane.cli.agent", "agent", "Run one node: its agent and training process."),
    "at": ("controlplane.cli.postmortem", "at", "The fleet as a log says it was at a moment."),
    "baselines": ("controlplane.cli.baselines", "baselines", "What sweeps found usual."),
    "completion": (
        "controlplane.cli.completion",
        "completion",
        "Completion for bash, zsh or fish.",
    ),
    "controller": ("controlplane.cli.controller", "controller", "Lead a fleet, or stand by to."),
    "demo": ("controlplane.cli.demo", "demo", "Train, lose a machine, go on; on this machine."),
    "diff": ("controlplane.cli.postmortem", "diff", "What differs between two moments of a log."),
    "doctor": (
        "controlplane.cli.doctor",
        "doctor",
        "What is wrong around the fleet, and the cure.",
    ),
    "drain": ("controlplane.cli.acts", "drain", "Take a node out at the next step boundary."),
    "explain": ("controlplane.cli.explain", "explain", "Why something happened, from the log."),
    "history": (
        "controlplane.cli.history",
        "history",
        "The last incidents, and where the time went.",
    ),
    "init": ("controlplane.cli.init", "init", "Certificates, users and roles for a fleet."),
    "job": ("controlplane.cli.job", "job", "Declare and stop jobs."),
    "log": ("controlplane.cli.log", "log", "Read, verify, archive the event log."),
    "nodes": ("controlplane.cli.status", "nodes", "Every node: state, slot, warm-up, verdict."),
    "page": ("controlplane.cli.page", "page", "Serve the live page, and metrics."),
    "pause": ("controlplane.cli.acts", "pause", "Stop acting on verdicts until resumed."),
    "policy": ("controlplane.cli.policy", "policy", "Show, compare and change the knobs."),
    "quarantine": ("controlplane.cli.acts", "quarantine", "Take a node out and keep it out."),
    "release": ("controlplane.cli.acts", "release", "Give a drained or quarantined node back."),
    "replay": (
        "controlplane.cli.postmortem",
        "replay",
        "Fold a log and say in short what happened.",
    ),
    "report": ("controlplane.cli.postmortem", "report", "A log as one HTML page."),
    "remedied": ("controlplane.cli.remedied", "remedied", "Report that a remedy was carried out."),
    "resume": ("controlplane.cli.acts", "resume", "Act on verdicts again."),
    "status": ("controlplane.cli.status", "status", "The fleet now: jobs, nodes, transition."),
    "sweep": ("controlplane.cli.sweep", "sweep", "Measure nodes beside the run, or all."),
    "switchover": ("controlplane.cli.acts", "switchover", "Replace the node in a slot."),
    "timeline": (
        "controlplane.cli.postmortem",
        "timeline",
        "Incidents of a log, and where the time went.",
    ),
    "topology": (
        "controlplane.cli.topology",
        "topology",
        "Who is connected to whom; what a change touched.",
    ),
    "trace": ("controlplane.cli.postmortem", "trace", "A log as a trace for Perfetto."),
}
"""Verb -> module, name in it, and one line of help."""


class Verbs(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, in order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        module, name, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), f"{module}.{name} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, _, line) in sorted(VERBS.items())])


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="changeover", message="%(prog)s %(version)s")
def cli() -> None:
    """Operate a fleet that trains on while its machines come and go.

    Every verb takes --etcd URL (or CHANGEOVER_ETCD) and --fleet NAME (or CHANGEOVER_FLEET), says
    what it did in plain lines or with --json, and exits 0 when it held, 1 when it did not, 2 when
    it was asked for something that cannot be. Verbs that take a LOG need no etcd.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run_to_exit(cli, "changeover", arguments)

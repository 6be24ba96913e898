"""A whole demo: the restart it is compared with, the run that is hurt, the same run unhurt.

What belongs here: the order of the three, what is written where, and what becomes of errors. Each
runs alone on the machine, so that none disturbs another's measurement.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from controlplane.demo import campaign
from controlplane.demo.baseline import measured_pace, restart_cost
from controlplane.demo.chronicle import Chronicle, Overdue
from controlplane.demo.greys import GREYS
from controlplane.demo.live import Screen
from controlplane.demo.options import (
    SPARE_SHARE,
    STEPS_MIN,
    BadDemo,
    DemoOptions,
    Faults,
    steps_for,
)
from controlplane.demo.outcome import ClaimOutcome, Outcome, incident_outcomes, shown
from controlplane.demo.peers import read_windows
from controlplane.demo.plot import Hurt, Plot
from controlplane.demo.probed import link_baseline, with_links
from controlplane.demo.proof import (
    Claim,
    Finish,
    claims_of_campaign,
    claims_of_run,
    claims_of_sameness,
    claims_of_work,
    finish_of,
    survivors_unchanged,
)
from controlplane.demo.report import write_report
from controlplane.demo.stage import (
    KNOBS,
    Stage,
    check_training,
    staged,
    store_for,
    training_command,
)
from controlplane.demo.steps import JobStep, job_steps, ordinary_ms, read_diaries
from controlplane.errors import ControlError
from controlplane.etcd_binary import EtcdMissing
from controlplane.etcd_server import EtcdServerError
from controlplane.eventlog import EventLogError
from controlplane.localfleet.fleet import FleetError
from controlplane.localfleet.folder import RunFolder
from statemachine import events as e

STARTS = 3.0
"""How many times longer than a start a run takes at least: within a third of it, a killed node has
to start again, and within another a grey one is swept twice."""

_ID_BYTES = 3


@dataclass(slots=True)
class Record:
    """What one demo saw, filled as it goes, so that an interrupted one leaves what it had."""

    options: DemoOptions
    folder: RunFolder
    chronicle: Chronicle | None = None
    hurts: list[Hurt] = field(default_factory=list)
    finish: Finish | None = None
    plain: Finish | None = None
    steps: list[JobStep] = field(default_factory=list)
    plain_steps: list[JobStep] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def entries(self) -> list[e.Recorded]:
        """The log of the run that was hurt."""
        return self.chronicle.entries if self.chronicle is not None else []


async def open_folder(options: DemoOptions) -> RunFolder:
    """Make the folder of a demo.

    Raises:
        BadDemo: this installation has no scripts to train with, or they do not take the arguments
            that they shall get; nothing was made.
        FolderTaken: the folder that was named exists.
    """
    try:
        await check_training(options)
        training_command(options)
    except FleetError as error:
        raise BadDemo(str(error)) from error
    if options.run_dir is not None:
        return RunFolder.made(options.run_dir)
    return RunFolder.numbered(options.runs, "demo")


async def play(record: Record, screen: Screen) -> None:
    """Play a demo and sum it up in `record.outcome`, whatever happens."""
    try:
        await _play(record, screen)
    except (
        ControlError,
        EtcdMissing,
        EtcdServerError,
        EventLogError,
        FleetError,
        Overdue,
    ) as error:
        record.outcome.error = str(error)
    finally:
        sum_up(record, screen.elapsed_s)


async def _play(record: Record, screen: Screen) -> None:
    folder = record.folder
    name = f"{_fleet_stem(folder.path)}-{secrets.token_hex(_ID_BYTES)}"
    screen.say(f"run {shown(folder.path)}; the log grows in {shown(folder.events)}")
    async with store_for(record.options, folder) as url:
        await _measure_machine(record, screen)
        screen.say(f"from another terminal: changeover status --etcd {url} --fleet {name}")
        await _play_hurt(record, screen, url, name)
        screen.say("the same job again, uninterrupted: its weights have to be the same")
        await _play_unhurt(record, screen, url, f"{name}-plain")


async def _measure_machine(record: Record, screen: Screen) -> None:
    """What a restart costs here, and how many steps this machine takes in the time of a run."""
    options, folder = record.options, record.folder.path / "torchrun"
    if options.baseline:
        screen.say("what a restart costs here: torchrun, the same model, one worker killed")
        baseline, pace = await restart_cost(options, folder)
        record.outcome.baseline = baseline
        screen.say(f"a restart takes {baseline.restart_ms / 1000:.1f} s")
    elif options.steps:
        return
    else:
        screen.say("how fast this machine is: a few steps of the model under torchrun")
        pace = await measured_pace(options, folder)
    if not options.steps:
        train_s = max(options.train_s, STARTS * pace.start_s)
        steps = steps_for(train_s, pace.step_ms)
        if options.scenario is None:
            record.options = replace(options, steps=steps, steps_spare=SPARE_SHARE * steps)
        else:  # a campaign ends by the clock
            spare = (1 + SPARE_SHARE) * steps
            record.options = replace(options, steps=STEPS_MIN, steps_spare=spare)
            return
        screen.say(
            f"{record.options.steps} steps of {pace.step_ms:.0f} ms: a run shall take about "
            f"{train_s:.0f} s here, where a start takes {pace.start_s:.0f} s"
        )


async def _play_hurt(record: Record, screen: Screen, url: str, name: str) -> None:
    """Run the plot, and take from it what it claims."""
    options = record.options
    async with staged(options, record.folder, name, url, await _knobs(record, screen)) as stage:
        chronicle = record.chronicle = stage.chronicle
        chronicle.on_entry = screen.hear
        plot = _plot_of(stage, screen)
        record.hurts = plot.hurts
        async with screen.showing(chronicle, "training", options.steps):
            await plot.play()
        await chronicle.complete()
    record.finish, record.steps = _end_of(chronicle, record.folder)
    claims_of = claims_of_run if options.scenario is None else claims_of_campaign
    record.claims += claims_of(
        options, chronicle.entries, record.hurts, record.steps, record.finish
    )
    if isinstance(plot, campaign.Director) and options.scenario is not None:
        step_ms, count = ordinary_ms(record.steps) or 0.0, record.finish.step + 1
        campaign.leave(plot, options.scenario, record.folder.path, step_ms, count)
    # Where the run was stopped is where the uninterrupted one has to end.
    record.options = replace(options, steps=record.finish.step + 1, steps_spare=0)


async def _knobs(record: Record, screen: Screen) -> dict[str, object]:
    """The policy of the run; where a link will be slow, with what links carry here."""
    options = record.options
    if not options.faults.greys or "link_" not in GREYS[options.grey_kind].metrics:
        return KNOBS
    screen.say("what a link carries here, for the sweep to judge by")
    return with_links(KNOBS, await link_baseline(record.folder.path / "probed"))


def _plot_of(stage: Stage, screen: Screen) -> Plot:
    """What is played: the demo's own plot, or a scenario."""
    if stage.options.scenario is None:
        return Plot(stage, screen.say)
    read = campaign.read_campaign(stage.options.scenario)
    return campaign.Director(stage, screen.say, read)


async def _play_unhurt(record: Record, screen: Screen, url: str, name: str) -> None:
    """Run the same job on the same machinery, with nobody hurt and no standby."""
    unhurt = replace(record.options, standbys=0, faults=Faults.NONE, scenario=None)
    folder = record.folder.within("uninterrupted")
    async with staged(unhurt, folder, name, url) as stage:
        async with screen.showing(stage.chronicle, "uninterrupted", unhurt.steps):
            await Plot(stage, lambda _: None).play()
        await stage.chronicle.complete()
    record.plain, record.plain_steps = _end_of(stage.chronicle, folder)
    assert record.finish is not None
    record.claims += claims_of_sameness(record.finish, record.plain)


def _end_of(chronicle: Chronicle, folder: RunFolder) -> tuple[Finish, list[JobStep]]:
    job = chronicle.job
    holders = {slot: job.holders[slot] for slot in job.holders} if job is not None else {}
    layout = job.layout if job is not None else None
    return finish_of(chronicle.entries, holders, layout), job_steps(
        read_diaries(folder.steps).values()
    )


def _fleet_stem(path: Path) -> str:
    """A run's name as a part of a fleet's name."""
    kept = "".join(c if c.isalnum() and c.isascii() else "-" for c in path.name.lower())
    return (kept.strip("-") or "demo")[:40]


def sum_up(record: Record, took_s: float) -> None:
    """Fill the outcome from what was seen, and write it and the report."""
    options, outcome, folder = record.options, record.outcome, record.folder
    record.steps = record.steps or job_steps(read_diaries(folder.steps).values())
    outcome.steps = record.finish.step + 1 if record.finish is not None else 0
    outcome.final_loss = record.finish.loss if record.finish is not None else None
    outcome.weights_digest = record.finish.digest if record.finish is not None else ""
    outcome.uninterrupted_digest = record.plain.digest if record.plain is not None else ""
    windows = read_windows(folder.vitals)
    outcome.incidents = incident_outcomes(record.entries, record.hurts, record.steps, windows)
    if record.hurts and record.finish is not None:
        outcome.survivor_pids_unchanged = survivors_unchanged(record.hurts, record.entries)
    outcome.events = len(record.entries)
    outcome.log, outcome.report = shown(folder.events), shown(folder.report)
    outcome.run_dir = shown(folder.path)
    outcome.step_ms = ordinary_ms(record.steps)
    outcome.uninterrupted_step_ms = ordinary_ms(record.plain_steps)
    outcome.first_loss = record.steps[0].loss if record.steps else None
    outcome.nodes, outcome.standbys, outcome.seed = options.nodes, options.standbys, options.seed
    outcome.took_s = round(took_s, 1)
    worked = claims_of_work(outcome.incidents, options.grey_kind) if not options.scenario else []
    outcome.claims = [
        ClaimOutcome(claim=claim.text, holds=claim.holds, detail=claim.detail)
        for claim in (*record.claims, *worked)
    ]
    complete = record.finish is not None and record.plain is not None
    outcome.ok = complete and not outcome.failures
    folder.outcome.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")
    write_report(record.folder, outcome, record.entries, record.steps)

"""What is wrong with a fleet's surroundings, and the cure: one finding per thing looked at.

What belongs here: looking, and words. Nothing is changed. A thing that cannot be looked at is
unknown, which is neither good nor bad.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Awaitable, Callable
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import anyio
from msgspec import Struct

from controlplane.config import Settings
from controlplane.eventlog import (
    EventLog,
    EventLogError,
    PermissionDenied,
    StoreUnavailable,
    UnsupportedServer,
)
from controlplane.eventlog.etcd_url import parse_url
from controlplane.eventlog.silence import NOBODY, Silence
from controlplane.eventlog.versions import judge_version
from controlplane.logstats import ALARM_SHARE, stats_of
from controlplane.picture import Picture, look
from statemachine.errors import CodecError
from statemachine.lifecycle import NodeState
from statemachine.policy import LATTICE, Policy, policy_of
from statemachine.vitals import Vitals

OFFSET_S_MAX: Final = 1.0
"""Clocks apart by more than that make a postmortem hard to read; nothing is ordered by them."""

PATIENCE_S: Final = 5.0

PACKAGES: Final = ("statemachine", "controlplane", "worker", "simulator")


class Grade(StrEnum):
    """How a finding is to be taken."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    subject: str
    grade: Grade
    words: str
    cure: str = ""


def good(subject: str, words: str) -> Finding:
    """Nothing to do."""
    return Finding(subject=subject, grade=Grade.GOOD, words=words)


def bad(subject: str, words: str, cure: str) -> Finding:
    """Something to do."""
    return Finding(subject=subject, grade=Grade.BAD, words=words, cure=cure)


def warning(subject: str, words: str, cure: str) -> Finding:
    """Something to look at."""
    return Finding(subject=subject, grade=Grade.WARNING, words=words, cure=cure)


def unknown(subject: str, words: str) -> Finding:
    """Could not be looked at."""
    return Finding(subject=subject, grade=Grade.UNKNOWN, words=words)


# --- this machine -----------------------------------------------------------------------------


def origin() -> Finding:
    """Whether our packages are ours: their names are short, and others use them too."""
    subject = "package origin"
    try:
        ours = distribution("changeover")
    except PackageNotFoundError:
        cure = "install it into a virtual environment of its own"
        return bad(subject, "no distribution 'changeover' is installed here", cure)
    here = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin or Path(spec.origin).resolve().parents[1] != here:
            where = spec.origin if spec is not None else "nowhere"
            cure = "another distribution owns that name: use a virtual environment of our own"
            return bad(subject, f"{name} loads from {where}", cure)
    return good(subject, f"changeover {ours.version}, all four packages from one place")


def python() -> Finding:
    """The interpreter."""
    version = platform.python_version()
    return good("python", f"{version} on {platform.machine()}")


def torch_facts() -> Finding:
    """Whether this machine can train: looked up, not imported, which would take seconds."""
    subject = "torch"
    if importlib.util.find_spec("torch") is None:
        return unknown(subject, "not installed here; a training node needs changeover[worker]")
    return good(subject, f"torch {distribution('torch').version}")


async def gpus() -> Finding:
    """What the driver says, from a child with a deadline: a wedged driver must not hang us."""
    subject = "GPUs"
    program = shutil.which("nvidia-smi")
    if program is None:
        return unknown(subject, "no nvidia-smi here: this machine has no GPU, or no driver")
    ask = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        with anyio.fail_after(PATIENCE_S):
            done = await anyio.run_process(ask, check=False)
    except TimeoutError:
        cure = "the driver hangs: drain this node and reboot it"
        return bad(subject, f"nvidia-smi said nothing for {PATIENCE_S:.0f} s", cure)
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    found = [line.strip() for line in lines if line.strip()]
    if done.returncode != 0 or not found:
        cure = "see nvidia-smi; drain the node if the driver lost a GPU"
        return bad(subject, f"nvidia-smi exited with {done.returncode}", cure)
    return good(subject, f"{len(found)} x {found[0]}")


def lattice(policy: Policy, source: str) -> Finding:
    """Whether the timeouts leave room for each other; an unsafe set cannot be in force, since it is
    refused wherever it is said.
    """
    subject = "timeouts"
    pairs = [(a, getattr(policy, a), b, getattr(policy, b)) for a, b in LATTICE]
    tight = [f"{a} {x:g} s, {b} {y:g} s" for a, x, b, y in pairs if x * 1.2 > y]
    if tight:
        cure = "leave a fifth between them: a slow store then costs no node"
        return warning(subject, f"close together: {'; '.join(tight)}", cure)
    return good(subject, f"{len(LATTICE)} inequalities hold, with room ({source})")


# --- the store --------------------------------------------------------------------------------


def tls(settings: Settings) -> Finding:
    """Whether the way to the store is private."""
    hosts = [host for host, _ in parse_url(settings.etcd).hosts]
    local = all(host in ("localhost", "127.0.0.1", "::1") for host in hosts)
    if settings.etcd.startswith("https"):
        return good("TLS", "on" + (", with a certificate of our own" if settings.tls else ""))
    if local:
        return good("TLS", "off, on loopback")
    cure = "use https and certificates: changeover init makes them"
    return warning("TLS", f"off, to {', '.join(hosts)}", cure)


async def server_version(log: EventLog, settings: Settings) -> Finding:
    """Whether the server keeps what it acknowledged."""
    info = await log.server_info()
    try:
        said = judge_version(info.version, demo=settings.demo)
    except UnsupportedServer as error:
        return bad("etcd", str(error), "upgrade to 3.5.13 or newer")
    if said:
        return warning("etcd", said, "upgrade to 3.5.13 or newer")
    if not info.leader:
        return bad("etcd", "the cluster has no leader", "bring its members back: see etcdctl")
    return good("etcd", f"{info.version}, revision {info.revision}")


async def fullness(log: EventLog, now_ms: int) -> Finding:
    """How full it is: a full store refuses leases too."""
    stats = await stats_of(log, now_ms=now_ms)
    words = f"{stats.store_bytes / 2**20:.1f} MiB, {stats.quota_share:.0%} of a 2 GiB quota"
    if stats.quota_share >= ALARM_SHARE:
        return bad("quota", words, "changeover log archive DIR --reclaim")
    return good("quota", words)


async def permissions(log: EventLog) -> Finding:
    """Whether we may read what an operator reads."""
    subject = "permissions"
    asked: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("the log", log.head),
        ("the leader", log.leader),
        ("live nodes", log.nodes),
        ("vitals", log.vitals),
        ("snapshots", log.snapshots),
    ]
    for what, ask in asked:
        try:
            await ask()
        except PermissionDenied as error:
            cure = "give this user the role of an operator: changeover init"
            return bad(subject, f"may not read {what}: {error}", cure)
    return good(subject, "may read log, leader, nodes, vitals, snapshots")


def clocks(picture: Picture, now_ms: int) -> Finding:
    """How far the clocks of nodes are from ours, by their last windows."""
    subject = "clocks"
    ahead = {
        name: (vitals.ended_at_ms - now_ms) / 1000
        for name, vitals in picture.vitals.items()
        if vitals.ended_at_ms > now_ms
    }
    log_ahead_s = (picture.state.at_ms - now_ms) / 1000
    if log_ahead_s > OFFSET_S_MAX:
        cure = "run chrony or ntpd here and where the controller runs"
        return warning(subject, f"the log is {log_ahead_s:.1f} s ahead of this machine", cure)
    if ahead and max(ahead.values()) > OFFSET_S_MAX:
        worst = max(ahead, key=lambda name: ahead[name])
        cure = f"run chrony or ntpd on {worst}: nothing is ordered by it, but people read it"
        return warning(subject, f"{worst} is {ahead[worst]:.1f} s ahead of this machine", cure)
    late = {
        name: (now_ms - vitals.ended_at_ms) / 1000
        for name, vitals in picture.vitals.items()
        if now_ms - vitals.ended_at_ms > 2 * _window_ms(vitals) + 1000 * OFFSET_S_MAX
    }
    if late:
        worst = max(late, key=lambda name: late[name])
        words = f"the last window of {worst} ended {late[worst]:.1f} s ago by our clock"
        usual = f"and it has one every {_window_ms(picture.vitals[worst]) / 1000:g} s"
        cure = f"its clock is behind: run chrony or ntpd; or it hangs: changeover explain {worst}"
        return warning(subject, f"{words}, {usual}", cure)
    return good(subject, f"none of {len(picture.vitals)} nodes is ahead of us or behind")


def _window_ms(vitals: Vitals) -> int:
    return max(1000, vitals.ended_at_ms - vitals.started_at_ms)


async def leases(log: EventLog, picture: Picture) -> Finding:
    """Whether there are live keys that the log knows nothing of, or the reverse."""
    subject = "leases"
    live = {(item.node, item.incarnation) for item in await log.nodes()}
    away = (NodeState.LOST, NodeState.GONE)
    known = {
        (name, node.incarnation)
        for name, node in picture.state.nodes.items()
        if node.state not in away
    }
    if picture.leader is None:
        return warning(
            subject,
            f"{len(live)} nodes hold a lease and nobody leads",
            "start a controller: changeover controller",
        )
    left = sorted(f"{name}/{incarnation}" for name, incarnation in live - known)
    gone = sorted(f"{name}/{incarnation}" for name, incarnation in known - live)
    if left:
        cure = "they end with their TTL; if they stay, an agent lives that the log declared lost"
        return warning(subject, f"left over: {', '.join(left[:8])}", cure)
    if gone:
        cure = "the controller declares them lost after the grace; if it does not, see its log"
        return warning(subject, f"without a lease: {', '.join(gone[:8])}", cure)
    return good(subject, f"{len(live)} nodes, each known to the log")


def controllers(picture: Picture) -> Finding:
    """Whether somebody decides."""
    if picture.leader is None:
        cure = "start one, better two: changeover controller; training goes on meanwhile"
        return bad("controller", "nobody leads: facts wait, repairs are not made", cure)
    if picture.state.paused_by:
        cure = "changeover resume"
        words = f"paused by {picture.state.paused_by}: verdicts are not acted upon"
        return warning("controller", words, cure)
    if picture.state.unknown_tags:
        cure = "upgrade Changeover here, and every controller that stands by"
        words = f"{len(picture.state.unknown_tags)} events of a newer release are in the log"
        return warning("controller", words, cure)
    return good("controller", f"{picture.leader[0]} leads (term {picture.leader[1]})")


def standbys(picture: Picture) -> Finding:
    """Whether the next loss has somebody to take the slot."""
    jobs = [j for j in picture.state.jobs.values() if j.launched and not j.finished]
    warm = [n for n in picture.state.nodes.values() if n.state is NodeState.STANDBY]
    if jobs and not warm:
        cure = "start an agent on a spare machine, or release one that is kept out"
        return warning("standbys", "none is warm: the next loss waits for a machine", cure)
    return good("standbys", f"{len(warm)} warm for {len(jobs)} running jobs")


async def examine(
    settings: Settings, log: EventLog | None, now_ms: int, silence: Silence = NOBODY
) -> list[Finding]:
    """Look at everything; `log` is None where the store does not answer, for `silence`.

    Raises nothing of the store: what fails is a finding.
    """
    private = tls(settings)
    if log is None and silence.is_of_tls:
        private = bad("TLS", silence.words, silence.cure)
    found = [origin(), python(), torch_facts(), await gpus(), private]
    if settings.knobs is not None:
        found.append(lattice(policy_of(settings.knobs), "settings file"))
    if log is None:
        words = f"no answer at {settings.etcd}: {silence.words}"
        return [*found, bad("etcd", words, silence.cure)]
    looks: list[tuple[str, Callable[[], Awaitable[Finding]]]] = [
        ("etcd", lambda: server_version(log, settings)),
        ("quota", lambda: fullness(log, now_ms)),
        ("permissions", lambda: permissions(log)),
    ]
    for subject, ask in looks:
        try:
            found.append(await ask())
        except (EventLogError, CodecError) as error:
            found.append(_of_error(subject, error))
    try:
        picture = await look(log)
        found += [lattice(picture.state.policy, "in force"), controllers(picture)]
        found += [clocks(picture, now_ms), await leases(log, picture), standbys(picture)]
    except (EventLogError, CodecError) as error:
        found.append(_of_error("log", error))
    return found


def _of_error(subject: str, error: Exception) -> Finding:
    match error:
        case PermissionDenied():
            cure = "give this user the role of an operator: changeover init"
        case StoreUnavailable():
            cure = "see whether etcd answers: etcdctl endpoint health"
        case _:
            cure = "changeover log verify etcd says where"
    return bad(subject, str(error), cure)


def as_values(found: list[Finding]) -> list[dict[str, Any]]:
    """For `--json`."""
    return [
        {
            "subject": each.subject,
            "grade": str(each.grade),
            "words": each.words,
            "cure": each.cure or None,
        }
        for each in found
    ]

"""What an agent is told on its command line, checked before anything is started.

What belongs here: names, paths, durations, and the one line that refuses them. Nothing is opened
but the secret. Where the store is and which fleet is meant may stand in the environment, as for
every other verb; a flag wins.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from controlplane.eventlog.etcd_url import TlsFiles, parse_url
from statemachine.errors import UsageError
from statemachine.ids import JobId, NodeId, check_name
from statemachine.policy import Policy, policy_of

_DESCRIPTION: Final = """\
Serve one node of a fleet: hold its lease, run its training process, and keep both honest."""

_EPILOG: Final = """\
example:
  python -m worker.agent --node n0 --fleet lab --etcd http://127.0.0.1:2379 --job gpt \\
      --run-dir runs/gpt -- python examples/train_gpt.py --steps 400

The first word "python" of the command means the interpreter that runs the agent.
exit codes: 0 the job finished or the agent was asked to stop, 1 failure, 2 usage, 3 fenced."""

ETCD_VARIABLE: Final = "CHANGEOVER_ETCD"
FLEET_VARIABLE: Final = "CHANGEOVER_FLEET"
LEVEL_VARIABLE: Final = "CHANGEOVER_LOG_LEVEL"
"""Environment variables of the whole command line; the agent heeds these three."""

_LEVELS: Final = ("debug", "info", "warning", "error")
_SECRET_BYTES: Final = 32


class BadAgentSettings(UsageError):
    """An argument of the agent that cannot be used."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one agent needs to know. Durations in seconds."""

    node: NodeId
    fleet: str
    job: JobId
    etcd: str
    command: tuple[str, ...]
    run_dir: Path
    secret_path: Path
    host: str = "127.0.0.1"
    hardware: str = "cpu"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    rejoin: bool = False
    patience_s: float = 30.0
    """How long the store, or the name of the node, may be unavailable at the start."""
    stop_grace_s: float = 1.0
    """How long the training process may take to end when the agent is asked to stop."""
    policy: Policy = msgspec.field(default_factory=Policy)
    tls: TlsFiles | None = None
    also: dict[JobId, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Commands of further jobs that this node can serve when it is assigned to one."""

    def serving(self, job: JobId) -> AgentSettings:
        """The same node in the service of another job; it can still come back to this one."""
        also = {name: command for name, command in self.also.items() if name != job}
        also[self.job] = self.command
        return msgspec.structs.replace(self, job=job, command=self.also[job], also=also)

    @property
    def log_path(self) -> Path:
        """Where the output of the training process goes."""
        return self.run_dir / f"worker-{self.node}.log"

    @property
    def recordings(self) -> Path:
        """Where recordings of the job's groups are kept, for standbys to rehearse with."""
        return self.run_dir / "recordings" / self.job


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadAgentSettings(f"{message}; see --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="changeover agent",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--node", required=True, help="name of this machine in the fleet")
    add(
        "--fleet",
        default=os.environ.get(FLEET_VARIABLE, ""),
        help=f"name of the fleet ({FLEET_VARIABLE})",
    )
    add(
        "--etcd",
        default=os.environ.get(ETCD_VARIABLE, ""),
        metavar="URL",
        help=f"http[s]://host:port[,host:port...] ({ETCD_VARIABLE})",
    )
    add("--job", required=True, help="name of the job that this node serves")
    add("--run-dir", required=True, type=Path, help="where the training process's log goes")
    add("--host", default="127.0.0.1", help="address at which peers reach this node")
    add("--hardware", default="cpu", help="class of machine that it is compared with")
    add("--label", action="append", default=[], metavar="K=V", help="a remark on this machine")
    add("--secret-file", type=Path, help="the fleet's secret (default: RUN_DIR/secret)")
    add("--also", action="append", default=[], metavar="JOB=COMMAND", help="a job to lend it to")
    add("--rejoin", action="store_true", help="join anew after a loss, as long as that helps")
    add("--patience-s", type=_seconds, default=30.0, help="how long to wait for the store to begin")
    add("--stop-grace-s", type=_seconds, default=1.0, help="time that training gets to end itself")
    add("--lease-ttl-s", type=_seconds, default=10.0, help="life of the lease without renewal")
    add(
        "--abort-deadline-s", type=_seconds, default=5.0, help="time to leave an aborted collective"
    )
    add("--ca", default="", help="PEM file of the authority that signed etcd's certificate")
    add("--cert", default="", help="PEM file of this agent's certificate")
    add("--key", default="", help="PEM file of its key")
    add("command", nargs=argparse.REMAINDER, help="-- the training command and its arguments")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (seconds >= 0 and isfinite(seconds)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return seconds


def parse_arguments(arguments: Sequence[str]) -> AgentSettings:
    """Read a command line.

    Raises:
        UsageError: an argument is wrong; the message is one line fit for an operator.
    """
    found = _parser().parse_args(list(arguments))
    for flag, variable, value in (
        ("--etcd", ETCD_VARIABLE, found.etcd),
        ("--fleet", FLEET_VARIABLE, found.fleet),
    ):
        if not value:
            raise BadAgentSettings(f"{flag} is missing; see --help, or set {variable}")
    try:
        parse_url(found.etcd)
    except ValueError as error:
        raise BadAgentSettings(f"--etcd: {error}") from error
    tls = TlsFiles(ca=found.ca, cert=found.cert, key=found.key)
    return AgentSettings(
        node=NodeId(check_name("node", found.node)),
        fleet=check_name("fleet", found.fleet),
        job=JobId(check_name("job", found.job)),
        etcd=found.etcd,
        command=_command(found.command),
        run_dir=_directory(found.run_dir),
        secret_path=_secret(found.secret_file, found.run_dir),
        host=_host(found.host),
        hardware=found.hardware,
        labels=_labels(found.label),
        also=_also(found.also, found.job),
        rejoin=found.rejoin,
        patience_s=found.patience_s,
        stop_grace_s=found.stop_grace_s,
        policy=_policy(found.lease_ttl_s, found.abort_deadline_s),
        tls=tls if found.etcd.startswith("https://") else None,
    )


def log_level() -> str:
    """The least level of lines on stderr, from the environment; ``INFO`` unless it says.

    Raises:
        BadAgentSettings: no such level.
    """
    level = os.environ.get(LEVEL_VARIABLE) or "info"
    if level.lower() not in _LEVELS:
        raise BadAgentSettings(f"{LEVEL_VARIABLE}={level}: expected one of {', '.join(_LEVELS)}")
    return level.upper()


def _host(host: str) -> str:
    """An address of this machine: peers are told it, and this process listens there."""
    try:
        found = socket.getaddrinfo(host or "?", 0, type=socket.SOCK_STREAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as tried:
            tried.bind(address)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadAgentSettings(f"--host {host!r} is no address of this machine: {why}") from error
    return host


def _command(words: Sequence[str]) -> tuple[str, ...]:
    rest = list(words[1:] if words[:1] == ["--"] else words)
    if not rest:
        raise BadAgentSettings("no training command: give it behind `--`; see --help")
    if rest[0] == "python":
        rest[0] = sys.executable
    return tuple(rest)


def _directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadAgentSettings(f"--run-dir {path}: {error.strerror}") from error
    return path.resolve()


def _also(pairs: Sequence[str], job: str) -> dict[JobId, tuple[str, ...]]:
    commands = {}
    for pair in pairs:
        name, _, command = pair.partition("=")
        if name == job or name in commands:
            raise BadAgentSettings(f"--also {pair!r}: job {name} has a command already")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BadAgentSettings(f"--also {pair!r}: {error}") from error
        if not words:
            raise BadAgentSettings(f"--also {pair!r}: expected JOB=COMMAND")
        commands[JobId(check_name("job", name))] = _command(words)
    return commands


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise BadAgentSettings(f"--label {pair!r}: expected NAME=VALUE")
        labels[name] = value
    return labels


def _policy(lease_ttl_s: float, abort_deadline_s: float) -> Policy:
    """Timeouts of this agent; those that hang on the lease keep their ratio to it."""
    defaults = Policy()
    share = lease_ttl_s / defaults.lease_ttl_s
    knobs = {
        "lease_ttl_s": lease_ttl_s,
        "self_fence_s": defaults.self_fence_s * share,
        "renew_interval_s": defaults.renew_interval_s * share,
        "store_try_s": min(defaults.store_try_s, defaults.renew_interval_s * share / 2),
        "abort_deadline_s": abort_deadline_s,
    }
    return policy_of(knobs, "agent")


# --- the fleet's secret -----------------------------------------------------------------------


def _secret(given: Path | None, run_dir: Path) -> Path:
    """Path of the secret; the default one is made by whoever comes first on this machine."""
    path = given or run_dir / "secret"
    if given is None and not path.exists():
        _create_secret(path)
    try:
        mode = path.stat().st_mode
        size = len(path.read_bytes())
    except OSError as error:
        raise BadAgentSettings(f"secret {path}: {error.strerror}; see --secret-file") from error
    if mode & 0o077:
        raise BadAgentSettings(f"secret {path}: others may read it; make it mode 0600")
    if size < 16:
        raise BadAgentSettings(f"secret {path}: {size} bytes are too few; 32 random ones are good")
    return path.resolve()


def _create_secret(path: Path) -> None:
    """Create it whole or not at all; an agent that comes second finds the first one's."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise BadAgentSettings(f"secret {path}: {error.strerror}") from error

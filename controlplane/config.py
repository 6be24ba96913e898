"""Settings of the control plane: flags, environment, one TOML file, defaults. Frozen once loaded.

What belongs here: where each setting may come from, and what is allowed. The knobs of the state
machine are `statemachine.policy`'s; a ``[policy]`` table is passed on to it.

Precedence, the strongest first: flags; environment; the file named by ``--config`` or
``CHANGEOVER_CONFIG``; defaults. One literal table names every setting in all three spellings. An
unknown name in the file is refused, since a misspelt setting is one that silently does nothing.

    [etcd]        url, client, ca, cert, key, server_name
    [fleet]       name
    [controller]  name, ttl_s
    [log]         level, form
    [web]         listen, token_file
    [policy]      knobs of the state machine
    [[hooks]]     who is told of events: `controlplane.hooks.hook`
    [heartbeat]   who hears that the leader lives: likewise
    [provisioner] the scheduler beside us: `controlplane.provision.opening`
    [plugins]     what others put in: `controlplane.plugins`
"""

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from controlplane.errors import BadConfig
from controlplane.eventlog import CLIENTS
from controlplane.eventlog.etcd_url import TlsFiles, parse_url
from controlplane.hooks.hook import Heartbeat, Hook, heartbeat_of, hooks_of
from controlplane.plugins import check_names
from controlplane.provision.opening import ProvisionerSettings, settings_of
from statemachine.errors import BadName, BadPolicy
from statemachine.ids import check_name
from statemachine.policy import policy_of

LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("text", "json")


class Settings(Struct, frozen=True, kw_only=True):
    """Where the fleet's log is, who we are, and how we speak. `leader_ttl_s` in seconds."""

    etcd: str = "http://127.0.0.1:2379"
    fleet: str = "default"
    controller: str = ""
    leader_ttl_s: float = 5.0
    tls: TlsFiles | None = None
    client: str = CLIENTS[0]
    demo: bool = False
    log_level: str = "info"
    log_form: str = "text"
    listen: str = ""
    """Where the live page and metrics are served, ``HOST:PORT``; empty for nowhere."""
    token_file: str = ""
    """File with the token that acting on the page needs; without one the page only shows."""
    knobs: dict[str, Any] | None = None
    """Knobs of the policy that this controller shall bring about; None leaves the log's."""
    hooks: tuple[Hook, ...] = ()
    heartbeat: Heartbeat | None = None
    provisioner: ProvisionerSettings | None = None
    plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)


class _Field(Struct, frozen=True):
    name: str
    toml: str
    env: str
    read: Callable[[Any], Any]
    default: Any = ""
    flag: str = ""
    """Its flag, where that is not its name."""


def _url(value: Any) -> str:
    parse_url(str(value))
    return str(value)


def _name(kind: str) -> Callable[[Any], str]:
    return lambda value: check_name(kind, str(value))


def _one_of(allowed: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            msg = f"must be one of {', '.join(allowed)}{hint}"
            raise ValueError(msg)
        return str(value)

    return read


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:  # etcd rounds leases up to whole seconds
        msg = "must be a number of seconds from 1 to 3600"
        raise ValueError(msg)
    return seconds


def _address(value: Any) -> str:
    host, _, port = str(value).rpartition(":")
    if str(value) and not (port.isdigit() and int(port) <= 65535 and " " not in host):
        msg = "must be HOST:PORT or PORT, such as 127.0.0.1:8787"
        raise ValueError(msg)
    return str(value)


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("0", "1", "true", "false", "yes", "no", ""):
        msg = "must be 0 or 1"
        raise ValueError(msg)
    return str(value).lower() in ("1", "true", "yes")


FIELDS: Final = (
    _Field("etcd", "etcd.url", "CHANGEOVER_ETCD", _url, Settings().etcd),
    _Field("client", "etcd.client", "CHANGEOVER_ETCD_CLIENT", _one_of(CLIENTS), CLIENTS[0]),
    _Field("ca", "etcd.ca", "CHANGEOVER_ETCD_CA", str),
    _Field("cert", "etcd.cert", "CHANGEOVER_ETCD_CERT", str),
    _Field("key", "etcd.key", "CHANGEOVER_ETCD_KEY", str),
    _Field("server_name", "etcd.server_name", "CHANGEOVER_ETCD_SERVER_NAME", str),
    _Field("fleet", "fleet.name", "CHANGEOVER_FLEET", _name("fleet"), Settings().fleet),
    _Field(
        "controller", "controller.name", "CHANGEOVER_CONTROLLER", _name("controller"), flag="--name"
    ),
    _Field("leader_ttl_s", "controller.ttl_s", "CHANGEOVER_LEADER_TTL_S", _seconds, 5.0),
    _Field("log_level", "log.level", "CHANGEOVER_LOG_LEVEL", _one_of(LEVELS), "info"),
    _Field("log_form", "log.form", "CHANGEOVER_LOG_FORM", _one_of(FORMS), "text"),
    _Field("listen", "web.listen", "CHANGEOVER_LISTEN", _address),
    _Field("token_file", "web.token_file", "CHANGEOVER_TOKEN_FILE", str),
    _Field("demo", "", "CHANGEOVER_DEMO", _flag, default=False),
)
"""Every setting, once: its name as a flag, in the file, and in the environment."""

CONFIG_ENV: Final = "CHANGEOVER_CONFIG"

_TABLES: Final = ("policy", "hooks", "heartbeat", "provisioner", "plugins")
"""Sections that are read whole."""


def load_settings(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    path: Path | None = None,
) -> Settings:
    """Gather settings. `flags` holds what was given on the command line, by name; None is unset.

    Raises:
        BadConfig: names the source, the field, the value, and what is allowed.
    """
    if path is None and environment.get(CONFIG_ENV):
        path = Path(environment[CONFIG_ENV])
    table = _read_file(path) if path is not None else {}
    knobs = table.pop("policy", None)
    outside = _outside(table, environment, str(path))
    found = {entry.name: _find(entry, flags, environment, table, path) for entry in FIELDS}
    files = TlsFiles(*(found.pop(name) for name in ("ca", "cert", "key", "server_name")))
    if not found["controller"]:
        found["controller"] = _own_name()
    return Settings(
        **found,
        **outside,
        tls=files if files != TlsFiles() else None,
        knobs=_checked(knobs, path),
    )


def _outside(table: dict[str, Any], environment: Mapping[str, str], source: str) -> dict[str, Any]:
    """Take out and check what is about the world beside us."""
    found: dict[str, Any] = {}
    if "hooks" in table:
        found["hooks"] = hooks_of(table.pop("hooks"), source, environment)
    if "heartbeat" in table:
        found["heartbeat"] = heartbeat_of(table.pop("heartbeat"), source, environment)
    if "provisioner" in table:
        found["provisioner"] = settings_of(table.pop("provisioner"), source)
    if "plugins" in table:
        found["plugins"] = check_names(table.pop("plugins"), source)
    return found


def _find(
    entry: _Field,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    table: Mapping[str, Any],
    path: Path | None,
) -> Any:
    """Take a setting from its strongest source."""
    if flags.get(entry.name) is not None:
        flag = entry.flag or f"--{entry.name.replace('_', '-')}"
        return _taken(entry, flag, flags[entry.name])
    if environment.get(entry.env, "") != "":
        return _taken(entry, f"environment variable {entry.env}", environment[entry.env])
    if entry.toml in table:
        return _taken(entry, f"{path}: {entry.toml}", table[entry.toml])
    return entry.default


def _taken(entry: _Field, source: str, value: Any) -> Any:
    try:
        return entry.read(value)
    except BadName as error:
        raise BadConfig(source, value, str(error).partition(": ")[2]) from error
    except ValueError as error:
        raise BadConfig(source, value, str(error)) from error


def _read_file(path: Path) -> dict[str, Any]:
    """Read the file into ``section.field`` -> value, and ``policy`` -> table."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig("--config", str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig("--config", str(path), f"is not TOML: {error}") from error
    known = [entry.toml for entry in FIELDS if entry.toml]
    flat: dict[str, Any] = {}
    for section, content in tables.items():
        if section in _TABLES or not isinstance(content, dict):
            flat[section] = content
        else:
            flat |= {f"{section}.{name}": value for name, value in content.items()}
    for name, value in flat.items():
        if name not in known and name not in _TABLES:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"no such setting; did you mean {near[0]}?" if near else "no such setting"
            raise BadConfig(f"{path}: {name}", value, hint)
    return flat


def _checked(knobs: Any, path: Path | None) -> dict[str, Any] | None:
    if knobs is None:
        return None
    if not isinstance(knobs, dict):
        raise BadConfig(f"{path}: policy", knobs, "must be a table of knobs")
    try:
        policy_of(knobs, f"{path}: policy")
    except BadPolicy as error:
        raise BadConfig(f"{path}: policy", knobs, str(error)) from error
    return knobs


def _own_name() -> str:
    """A controller's name that no other process of this machine has at the same time."""
    host = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-.")[:40]
    return check_name("controller", f"{host or 'controller'}-{os.getpid()}")

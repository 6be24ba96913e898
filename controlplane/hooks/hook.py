"""What a hook is: which events, to whom, how often. Read from ``[[hooks]]`` of the settings file.

[[hooks]]
name = "pager"
on = ["NodeLost", "TransitionAborted"]     # types of events
url_env = "PAGER_URL"                      # or url, or exec = ["notify", "{{ node }}"]
authorization_env = "PAGER_TOKEN"          # header "Authorization: Bearer ..."
body = '{"text": {{ words | tojson }}}'    # default: the event as JSON
key = "{{ type }}/{{ node }}"              # events of one key are told once per `once_per_s`
once_per_s = 300.0
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from controlplane.errors import BadConfig
from statemachine.codec import TAGS
from statemachine.errors import BadName
from statemachine.ids import check_name

DEFAULT_BODY: Final = (
    '{"fleet": {{ fleet | tojson }}, "position": {{ position }}, "at_ms": {{ at_ms }}, '
    '"type": {{ type | tojson }}, "words": {{ words | tojson }}, "event": {{ event | tojson }}}'
)


class Hook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hook; times in seconds."""

    name: str
    on: tuple[str, ...]
    url: str = ""
    url_env: str = ""
    exec: tuple[str, ...] = ()
    authorization_env: str = ""
    body: str = DEFAULT_BODY
    content_type: str = "application/json"
    key: str = "{{ position }}"
    once_per_s: float = 0.0
    timeout_s: float = 5.0
    tries: int = 6
    first_pause_s: float = 1.0
    """Pause after the first try that failed; it doubles, up to a minute."""


class Heartbeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the leader says every so often that it works; who hears nothing raises the alarm."""

    url: str = ""
    url_env: str = ""
    every_s: float = 30.0
    timeout_s: float = 5.0


def hooks_of(
    tables: Any, source: str, environment: Mapping[str, str] = os.environ
) -> tuple[Hook, ...]:
    """Read and check ``[[hooks]]``.

    Raises:
        BadConfig: names the hook, the field, the value and what is allowed.
    """
    if not isinstance(tables, list):
        raise BadConfig(f"{source}: hooks", tables, "must be a list of tables: [[hooks]]")
    found = [_hook(table, f"{source}: hooks[{at}]", environment) for at, table in enumerate(tables)]
    names = [hook.name for hook in found]
    for name in names:
        if names.count(name) > 1:
            raise BadConfig(f"{source}: hooks", name, "is named twice")
    return tuple(found)


def heartbeat_of(table: Any, source: str, environment: Mapping[str, str] = os.environ) -> Heartbeat:
    """Read and check ``[heartbeat]``.

    Raises:
        BadConfig: likewise.
    """
    beat: Heartbeat = _converted(table, Heartbeat, f"{source}: heartbeat")
    _check_url(beat, f"{source}: heartbeat", environment)
    for name in ("every_s", "timeout_s"):
        if not getattr(beat, name) > 0:
            raise BadConfig(
                f"{source}: heartbeat.{name}", getattr(beat, name), "must be above 0 seconds"
            )
    return beat


def _hook(table: Any, source: str, environment: Mapping[str, str]) -> Hook:
    from controlplane.hooks.rendering import check_template

    hook: Hook = _converted(table, Hook, source)
    try:
        check_name("hook", hook.name)
    except BadName as error:
        raise BadConfig(f"{source}.name", hook.name, str(error).partition(": ")[2]) from error
    for tag in hook.on:
        if tag not in TAGS:
            near = difflib.get_close_matches(tag, TAGS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadConfig(f"{source}.on", tag, f"no such type of event{hint}")
    if not hook.on:
        raise BadConfig(f"{source}.on", [], "must name a type of event at least")
    if hook.exec and (hook.url or hook.url_env):
        raise BadConfig(f"{source}.exec", list(hook.exec), "stands beside a url: choose one")
    if not hook.exec:
        _check_url(hook, source, environment)
    if hook.authorization_env and hook.authorization_env not in environment:
        words = "no such environment variable"
        raise BadConfig(f"{source}.authorization_env", hook.authorization_env, words)
    for name, text in [("body", hook.body), ("key", hook.key), *_numbered("exec", hook.exec)]:
        check_template(text, f"{source}.{name}")
    _check_numbers(hook, source)
    return hook


def _numbered(name: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"{name}[{at}]", text) for at, text in enumerate(texts)]


def _check_numbers(hook: Hook, source: str) -> None:
    for name in ("timeout_s", "first_pause_s"):
        if not getattr(hook, name) > 0:
            raise BadConfig(f"{source}.{name}", getattr(hook, name), "must be above 0 seconds")
    if hook.once_per_s < 0:
        raise BadConfig(f"{source}.once_per_s", hook.once_per_s, "must not be below 0 seconds")
    if not 1 <= hook.tries <= 100:
        raise BadConfig(f"{source}.tries", hook.tries, "must be from 1 to 100")


def _check_url(what: Hook | Heartbeat, source: str, environment: Mapping[str, str]) -> None:
    if bool(what.url) == bool(what.url_env):
        both = "url and url_env stand beside each other: choose one"
        none = "needs url, url_env or exec" if isinstance(what, Hook) else "needs url or url_env"
        raise BadConfig(source, "", both if what.url else none)
    if what.url_env and what.url_env not in environment:
        raise BadConfig(f"{source}.url_env", what.url_env, "no such environment variable")
    parts = urlsplit(environment[what.url_env] if what.url_env else what.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = what.url_env or f"{parts.scheme}://{parts.hostname or ''}"
        raise BadConfig(f"{source}.url", shown, "must be an http or https address")


def _converted(table: Any, kind: type[Any], source: str) -> Any:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        shown = sorted(table) if isinstance(table, dict) else table
        raise BadConfig(source, shown, str(error)) from error

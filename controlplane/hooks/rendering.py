"""What a hook says: templates over the fields of an event, in a sandbox.

A template sees ``fleet``, ``position``, ``at_ms``, ``writer``, ``type``, ``words`` (one line),
``node`` (empty where the event has none), ``job``, ``reason`` and ``event`` (all fields). It cannot
reach anything else: no attribute with an underscore, no module, no file. A name that it does not
know is refused when the settings are read, not at three in the morning.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import jinja2
import msgspec
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from controlplane.errors import BadConfig
from controlplane.lines import words_of
from statemachine.events import Recorded, UnknownEvent

NAMES: Final = (
    "fleet",
    "position",
    "at_ms",
    "writer",
    "type",
    "words",
    "node",
    "job",
    "reason",
    "event",
)
"""What a template may name."""

TEXT_CHARS_MAX: Final = 64 * 1024


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    # Not markup: bodies are JSON, arguments are plain; `tojson` quotes where it is asked for.
    return ImmutableSandboxedEnvironment(autoescape=False, undefined=jinja2.StrictUndefined)


@lru_cache(maxsize=256)
def _template(text: str) -> jinja2.Template:
    return _environment().from_string(text)


def check_template(text: str, source: str) -> None:
    """Refuse a template that cannot be rendered.

    Raises:
        BadConfig: a fault of syntax, or a name that no event has.
    """
    try:
        parsed = _environment().parse(text)
        _template(text)
    except jinja2.TemplateError as error:
        raise BadConfig(source, text, f"is no template: {error}") from error
    unknown = sorted(meta.find_undeclared_variables(parsed).difference(NAMES))
    if unknown:
        raise BadConfig(source, unknown[0], f"no such name; there are {', '.join(NAMES)}")


def values_of(fleet: str, recorded: Recorded) -> dict[str, Any]:
    """What a template sees of an entry."""
    event = recorded.event
    fields = {} if isinstance(event, UnknownEvent) else msgspec.to_builtins(event)
    return {
        "fleet": fleet,
        "position": recorded.position,
        "at_ms": recorded.at_ms,
        "writer": recorded.writer,
        "type": type(event).__name__,
        "words": words_of(event),
        "node": getattr(event, "node", ""),
        "job": getattr(event, "job", ""),
        "reason": getattr(event, "reason", ""),
        "event": fields,
    }


def render(text: str, values: dict[str, Any]) -> str:
    """Fill a template in.

    Raises:
        jinja2.TemplateError: a value that the template needs is not there.
    """
    return _template(text).render(values)[:TEXT_CHARS_MAX]

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
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
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
"""Of what a template gives: what is behind that is left out."""

TEMPLATE_CHARS_MAX: Final = 16 * 1024
"""Of a template itself; a page of text is 3,000."""


_SLIPS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression of a template can come to; jinja2 lets it through as it is."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Without what makes much of little: a slip of the pen shall not take a leader's memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply numbers; nothing else, and no powers."""
        if operator == "**" or not (_is_number(left) and _is_number(right)):
            raise SecurityError(f"a template multiplies numbers only, not {operator} of these")
        return super().call_binop(context, operator, left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    # Not markup: bodies are JSON, arguments are plain; `tojson` quotes where it is asked for.
    return _Sandbox(autoescape=False, undefined=jinja2.StrictUndefined)


@lru_cache(maxsize=256)
def _template(text: str) -> jinja2.Template:
    return _environment().from_string(text)


def check_template(text: str, source: str) -> None:
    """Refuse a template that cannot be rendered.

    Raises:
        BadConfig: too long, a fault of syntax, or a name that no event has.
    """
    if len(text) > TEMPLATE_CHARS_MAX:
        words = f"a template of {len(text)} characters; at most {TEMPLATE_CHARS_MAX} are allowed"
        raise BadConfig(source, text, words)
    try:
        parsed = _environment().parse(text)
        _template(text)
    except (jinja2.TemplateError, RecursionError) as error:
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
    """Fill a template in, piece by piece, up to `TEXT_CHARS_MAX`.

    Raises:
        jinja2.TemplateError: a value that the template needs is not there, or it does too much.
    """
    found: list[str] = []
    room = TEXT_CHARS_MAX
    try:
        for piece in _template(text).generate(values):
            found.append(piece[:room])
            room -= len(found[-1])
            if not room:
                break
    except _SLIPS as error:
        raise jinja2.TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
    return "".join(found)

"""The control plane's own log of its doings: one line each, as text or JSON, with the position.

What belongs here: the form of lines. Secrets never get here: no call passes TLS material, tokens
or environments. The log of events is something else (`eventlog`).
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

NAME: Final = "changeover"

_log = logging.getLogger(NAME)


def note(message: str, /, *, level: int = logging.INFO, **fields: object) -> None:
    """Say something, with fields such as ``position=17`` that programs may search for."""
    if _log.isEnabledFor(level):
        _log.log(level, message, extra={"fields": fields})


def warn(message: str, /, **fields: object) -> None:
    """Say something that an operator should look at."""
    note(message, level=logging.WARNING, **fields)


class _TextForm(logging.Formatter):
    """``time level message key=value ...``, with a trace below where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items())
        parts = (_time(record), record.levelname.lower(), record.getMessage(), fields)
        line = " ".join(part for part in parts if part)
        return (
            line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"
        )


class _JsonForm(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info is not None:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _plain(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def begin(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send lines of at least `level` to a stream (default stderr), as ``text`` or ``json``."""
    sink = logging.StreamHandler(stream if stream is not None else sys.stderr)
    sink.setFormatter(_JsonForm() if form == "json" else _TextForm())
    _log.handlers[:] = [sink]
    _log.setLevel(level.upper())
    _log.propagate = False
